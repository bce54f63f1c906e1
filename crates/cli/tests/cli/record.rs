//! `softswap record`: which functions wait for pages, and for which memory.

use crate::common::{
    UNPRIVILEGED_UID, assert_contains_all, assert_output, copy_binaries, copy_files, is_root,
    std_unprivileged,
};
use crate::support::control_client::{Program, WAIT_TIMEOUT, query, refused, wait_until};
use crate::support::processes::send;
use crate::support::{Running, compiled, python, softswap_with, wait_for_rounds};
use serde_json::Value;
use softswap_engine::base::stats::Tier;
use softswap_sys::control_socket::DIR_VARIABLE;
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::Command;

/// Its function `touch_cold` waits for pages.
fn sites() -> Program {
    Program::start(&[], &compiled("sites"), &["--seconds", "0"])
}

/// Repeats the recording: on a busy machine the program may get little CPU time.
fn record_until(
    dir: &Path,
    pid: &str,
    seconds: &str,
    find: impl Fn(&Value, &str) -> Result<(), String>,
) -> (Value, String) {
    let flame_graph_file = dir.join("record.svg");
    let path = flame_graph_file.to_str().unwrap();
    wait_until("a recording with the expected functions", || {
        let output = query(&["record", pid, "--seconds", seconds, "--output", path, "--json"]);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        if errors.contains("had no fault in") {
            return Err(errors);
        }
        assert!(output.status.success() && errors.is_empty(), "{errors}");
        let profile: Value = serde_json::from_slice(&output.stdout).unwrap();
        let svg = std::fs::read_to_string(&flame_graph_file).unwrap();
        find(&profile, &svg).map_err(|why| format!("{why}: {profile}"))?;
        Ok((profile, svg))
    })
}

fn ensure(is_so: bool, what: &str) -> Result<(), String> {
    is_so.then_some(()).ok_or_else(|| what.to_string())
}

fn wait_for_samples(program: &Program, record: &Running, flame_graph_file: &Path) {
    // The file is created when sampling has begun.
    wait_until("the picture", || match flame_graph_file.exists() {
        true => Ok(()),
        false => Err(record.stderr_so_far()),
    });
    let faults = || program.stats().faults(Tier::Disk) + program.stats().faults(Tier::Pool);
    let wanted_faults = faults() + 500;
    wait_until("faults", || match faults() {
        now if now >= wanted_faults => Ok(()),
        now => Err(format!("{now} of {wanted_faults}")),
    });
    // Each round collects the samples so far.
    wait_for_rounds(record.id(), 4);
}

fn expect_well_formed(svg: &str) {
    let script = "import sys, xml.dom.minidom as m\n\
                  d = m.parseString(sys.stdin.buffer.read())\n\
                  assert d.documentElement.tagName == 'svg'";
    let mut parser = Command::new(python());
    let mut child =
        parser.args(["-c", script]).stdin(std::process::Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), svg.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{svg}");
}

fn share(of: &Value, all: &Value) -> f64 {
    of["stalled_ns"].as_f64().unwrap() / all["stalled_ns"].as_f64().unwrap()
}

/// `cold`, called by `caller`, must have most of the time, and `hot` hardly any.
fn ensure_times(profile: &Value, [cold, caller, hot]: [&str; 3]) -> Result<(), String> {
    let functions = profile["functions"].as_array().unwrap();
    let first = &functions[0];
    let is_first = first["function"] == cold && first["caller"] == caller;
    ensure(is_first, "the cold function is not first")?;
    ensure(share(first, profile) > 0.5, "the cold function has less than half of the time")?;
    let hot = functions.iter().find(|it| it["function"] == hot);
    ensure(hot.is_none_or(|hot| share(hot, profile) < 0.1), "the hot function has too much")
}

#[test]
fn profile_lists_function_touching_cold_memory_first() {
    let program = sites();
    let dir = tempfile::tempdir().unwrap();
    let find = |profile: &Value, svg: &str| {
        ensure_times(profile, ["touch_cold", "look_up", "touch_hot"])?;
        let memory = &profile["memory"][0];
        let is_cold = memory["by"] == "make_cold" && memory["touched_by"] == "touch_cold";
        ensure(is_cold, "make_cold is not first")?;
        let by_tier = profile["by_tier"].as_object().unwrap();
        let is_from_disk = by_tier.contains_key("disk") || by_tier.contains_key("standby");
        ensure(is_from_disk, "no fault is from the disk")?;
        // The complete call stack from main, and a page that a system call faulted in.
        for name in ["main", "sites", "look_up", "touch_cold", "take_in", "[system call]"] {
            ensure(svg.contains(&format!("<title>{name} (")), name)?;
        }
        Ok(())
    };
    let (profile, svg) = record_until(dir.path(), &program.pid(), "3", find);
    assert_eq!(profile["functions"][0]["file"], "sites", "{profile}");
    assert!(profile["memory"][0]["bytes"].as_u64() >= Some(96 << 20), "{profile}");
    let faults = profile["faults"].as_u64().unwrap();
    let by_tier = profile["by_tier"].as_object().unwrap();
    assert_eq!(by_tier.values().map(|it| it.as_u64().unwrap()).sum::<u64>(), faults);
    expect_well_formed(&svg);

    // The PID of `softswap run` works, too, and output may be text.
    let flame_graph_file = dir.path().join("again.svg");
    let path = flame_graph_file.to_str().unwrap();
    let text = wait_until("the text lists touch_cold first", || {
        let output = query(&["record", &program.supervisor(), "--seconds", "1", "-o", path]);
        let text = String::from_utf8(output.stdout).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let is_first = lines.get(2).is_some_and(|it| it.contains("touch_cold, called by look_up"));
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure(is_first && text.contains("of make_cold, touched by touch_cold"), &text)
            .map_err(|text| format!("{text}{errors}"))?;
        Ok(text)
    });
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("softswap: sites (pid "), "{text}");
    assert_contains_all(lines[0], &[" stalled over"]);
    assert_eq!(lines.last(), Some(&format!("Flame graph: {path}").as_str()));

    let mut program = program;
    program.expect_alive();
}

#[test]
fn jit_code_is_named_by_perf_map() {
    let program = Program::start(&[], &compiled("sites"), &["--seconds", "0", "--made", "1"]);
    let dir = tempfile::tempdir().unwrap();
    let pid = program.pid();
    let map = tempfile::TempPath::try_from_path(format!("/tmp/perf-{pid}.map")).unwrap();
    record_until(dir.path(), &pid, "3", |profile, _| {
        let functions = profile["functions"].as_array().unwrap();
        let jit_function = functions.iter().find(|it| it["function"] == "jitted_touch");
        let jit_function = jit_function.ok_or("the JIT function has no name")?;
        let is_named = jit_function["caller"] == "sites" && share(jit_function, profile) > 0.2;
        ensure(is_named, "another caller")
    });
    map.close().unwrap();
}

/// Its lists and numbers fit its budget, except for one list.
const COLD_LIST: &str = "\
def make_cold():
    return [bytes(3000) + b'%d' % n for n in range(32_000)]

class Table:
    def touch_cold(self, blocks):
        total = 0
        for block in blocks:
            total += block[1500]
        return total

    def touch_hot(self, numbers):
        for n in range(20_000):
            numbers[n & 1023] = n

def work():
    table, cold, hot = Table(), make_cold(), list(range(1024))
    print('ready', flush=True)
    while True:
        table.touch_cold(cold)
        table.touch_hot(hot)

work()
";

#[test]
fn python_functions_are_named() {
    let version = "import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))";
    if !Command::new(python()).args(["-c", version]).status().unwrap().success() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("cold.py");
    std::fs::write(&source, COLD_LIST).unwrap();
    let program = Program::start(&[], &python(), &[&source]);
    let find = |profile: &Value, svg: &str| {
        let [cold, hot] = ["Table.touch_cold (cold.py:5)", "Table.touch_hot (cold.py:11)"];
        ensure_times(profile, [cold, "work (cold.py:15)", hot])?;
        for name in ["&lt;module&gt; (cold.py:1)", "work (cold.py:15)"] {
            ensure(svg.contains(&format!("<title>{name} (")), name)?;
        }
        ensure(!svg.contains("_PyEval_EvalFrameDefault"), "the loop of the interpreter is listed")
    };
    let (profile, _) = record_until(dir.path(), &program.pid(), "2", find);
    assert_eq!(profile["functions"][0]["file"], source.to_str().unwrap(), "{profile}");
}

#[test]
fn process_exiting_during_recording_is_reported() {
    let program = sites();
    let dir = tempfile::tempdir().unwrap();
    let flame_graph_file = dir.path().join("ended.svg");
    let path = flame_graph_file.to_str().unwrap();
    let pid = program.pid();
    let record =
        Running::start(&mut softswap_with(&["record", &pid, "--seconds=3600", "--output", path]));
    wait_for_samples(&program, &record, &flame_graph_file);
    program.finish().expect_ok("sites");
    let recorded = record.finish(WAIT_TIMEOUT);
    recorded.expect_success("record");
    assert_eq!(recorded.stderr, "");
    let text = recorded.stdout_text();
    let parts = ["touch_cold", "The process exited after "];
    assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    assert!(std::fs::metadata(&flame_graph_file).unwrap().len() > 0);
    refused(&["record", &pid], 1, &["no such process"]);
}

#[test]
fn signal_ends_recording_early_with_results() {
    let program = sites();
    let dir = tempfile::tempdir().unwrap();
    let flame_graph_file = dir.path().join("enough.svg");
    let path = flame_graph_file.to_str().unwrap();
    for signal in [2, 15] {
        let arguments = ["record", &program.pid(), "--seconds=3600", "--output", path];
        let record = Running::start(&mut softswap_with(&arguments));
        wait_for_samples(&program, &record, &flame_graph_file);
        send(record.id(), signal);
        let ended = record.finish(WAIT_TIMEOUT);
        ended.expect_success("record");
        assert!(ended.stdout_text().contains("touch_cold"), "{}", ended.stdout_text());
        expect_well_formed(&std::fs::read_to_string(&flame_graph_file).unwrap());
        std::fs::remove_file(&flame_graph_file).unwrap();
    }
}

#[test]
fn failed_recording_reports_reason_and_writes_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let flame_graph_file = dir.path().join("none.svg");
    let path = flame_graph_file.to_str().unwrap();
    let idle = Program::script("import time; print('ready', flush=True); time.sleep(1000)");
    let pid = idle.pid();
    let ask_for = |pid: &str| query(&["record", pid, "--seconds", "1", "--output", path]);
    // Pages touched between `ready` and the sleep may still fault.
    wait_until("no fault", || {
        let output = ask_for(&pid);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        if !errors.contains("had no fault in ") {
            let _ = std::fs::remove_file(&flame_graph_file);
            return Err(String::from_utf8_lossy(&output.stdout).into_owned() + &errors);
        }
        assert_output(&output, 1, &["record for longer"]);
        Ok(())
    });
    assert!(!flame_graph_file.exists());
    refused(&["record", &pid, "-o", "/nowhere/at/all.svg"], 1, &["cannot be written", "--output"]);
    refused(&["record", &pid, "--seconds", "0"], 2, &["--seconds"]);
    assert_output(&ask_for(&std::process::id().to_string()), 1, &["is not managed by softswap"]);

    let mut command = softswap_with(&["run", "-q", "--memory", "64M", "--", "sleep", "1000"]);
    let asleep = Running::start(&mut command);
    let number = asleep.id().to_string();
    let message = wait_until("the program is asleep", || {
        let errors = String::from_utf8_lossy(&ask_for(&number).stderr).into_owned();
        if errors.contains("asleep") { Ok(errors) } else { Err(errors) }
    });
    assert!(message.contains("(sleep) is asleep: its memory fits its budget"), "{message}");
    assert!(!flame_graph_file.exists());
}

#[test]
fn only_owner_and_root_may_record() {
    if !is_root() {
        return refused(&["record", "1"], 1, &["process 1", "belongs to uid 0", "as root"]);
    }
    let program = sites();
    let binaries = tempfile::tempdir().unwrap();
    copy_binaries(binaries.path());
    let unprivileged = || std_unprivileged(binaries.path());
    let output = unprivileged().args(["record", &program.pid()]).output().unwrap();
    assert_output(&output, 1, &["belongs to uid 0", "as that user, or as root"]);

    // The user must be able to write to the output file's directory.
    let [swap, sockets, pictures] = std::array::from_fn(|_| {
        let dir = tempfile::tempdir().unwrap();
        chown(dir.path(), Some(UNPRIVILEGED_UID), Some(UNPRIVILEGED_UID)).unwrap();
        dir
    });
    copy_files(&[compiled("sites")], binaries.path());
    let copy = binaries.path().join("sites");
    let mut command = unprivileged();
    command.args(["run", "-q", "--awake", "--memory", "32M", "--reserve", "0", "--swap"]);
    command.arg(swap.path()).arg("--").arg(&copy).args(["--seconds", "0"]);
    let mut theirs = Running::start(command.env(DIR_VARIABLE, sockets.path()));
    theirs.wait_for_line("ready");
    let number = theirs.id().to_string();
    let arguments = ["record", &number, "--seconds", "2", "--json", "--output"];
    let path = pictures.path().join("own.svg");
    let is_first = |profile: &Value| {
        let first = &profile["functions"][0]["function"];
        if first == "touch_cold" { Ok(()) } else { Err(profile.to_string()) }
    };
    wait_until("touch_cold is first", || {
        let output = unprivileged().args(arguments).arg(&path).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        if errors.contains("had no fault in") {
            return Err(errors);
        }
        assert!(output.status.success(), "{errors}");
        is_first(&serde_json::from_slice(&output.stdout).unwrap())
    });
    assert!(path.exists());
    record_until(pictures.path(), &number, "1", |profile, _| is_first(profile));
}
