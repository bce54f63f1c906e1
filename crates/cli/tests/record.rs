//! `softswap record`: which functions wait for pages, and for which memory.

mod support;

use serde_json::Value;
use softswap_sys::control_socket::DIR_VARIABLE;
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::Command;
use support::control_client::{Program, ask, refused, says, told, wait_for};
use support::other_user::{NOBODY, as_nobody, binaries_for_all, is_root};
use support::{Running, compiled, python, softswap};
use tempfile::TempDir;

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Records a program, with the picture in `dir`.
fn record(dir: &Path, pid: &str, seconds: &str) -> (Value, String) {
    let picture = dir.join("record.svg");
    let path = picture.to_str().unwrap();
    let told = told(&["record", pid, "--seconds", seconds, "--output", path, "--json"]);
    (json(&told), std::fs::read_to_string(&picture).unwrap())
}

/// As an XML parser sees it.
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

#[test]
fn the_function_that_touches_cold_memory_leads_with_its_caller_and_that_memory() {
    let program = Program::start(&[], &compiled("sites"), &["--seconds", "0"]);
    let dir = tempfile::tempdir().unwrap();
    let (profile, svg) = record(dir.path(), &program.pid(), "3");
    let functions = profile["functions"].as_array().unwrap();
    let first = &functions[0];
    assert_eq!(first["function"], "touch_cold", "{profile}");
    assert_eq!((&first["caller"], &first["file"]), (&"look_up".into(), &"sites".into()));
    assert!(share(first, &profile) > 0.5, "{profile}");
    let hot = functions.iter().find(|it| it["function"] == "touch_hot");
    assert!(hot.is_none_or(|hot| share(hot, &profile) < 0.1), "{profile}");
    let memory = &profile["memory"][0];
    assert_eq!(memory["by"], "make_cold", "{profile}");
    assert!(memory["bytes"].as_u64() >= Some(96 << 20) && memory["touched_by"] == "touch_cold");
    let faults = profile["faults"].as_u64().unwrap();
    let by_tier = profile["by_tier"].as_object().unwrap();
    assert_eq!(by_tier.values().map(|it| it.as_u64().unwrap()).sum::<u64>(), faults);
    assert!(by_tier.contains_key("disk") || by_tier.contains_key("standby"), "{profile}");
    // The whole way from main; a page that a system call was to fill is among them.
    expect_well_formed(&svg);
    for name in ["main", "sites", "look_up", "touch_cold", "take_in", "[system call]"] {
        assert!(svg.contains(&format!("<title>{name} (")), "{name}: {svg}");
    }

    // By the number of `softswap run`, in words.
    let picture = dir.path().join("again.svg");
    let path = picture.to_str().unwrap();
    let text = told(&["record", &program.supervisor(), "--seconds", "1", "-o", path]);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("softswap: sites (pid ") && lines[0].contains(" stalled over"));
    assert!(lines[2].contains("touch_cold, called by look_up"), "{text}");
    assert!(text.contains("of make_cold, touched by touch_cold"), "{text}");
    assert_eq!(lines.last(), Some(&format!("Flame graph: {path}").as_str()));

    // It ends with who asked.
    let mut program = program;
    program.expect_alive();
}

#[test]
fn code_that_is_made_at_run_time_has_the_names_that_the_program_tells() {
    let program = Program::start(&[], &compiled("sites"), &["--seconds", "0", "--made", "1"]);
    let dir = tempfile::tempdir().unwrap();
    let pid = program.pid();
    let (profile, _) = record(dir.path(), &pid, "3");
    std::fs::remove_file(format!("/tmp/perf-{pid}.map")).unwrap();
    let functions = profile["functions"].as_array().unwrap();
    let made = functions.iter().find(|it| it["function"] == "jitted_touch");
    let made = made.unwrap_or_else(|| panic!("{profile}"));
    assert!(made["caller"] == "sites" && share(made, &profile) > 0.2, "{profile}");
}

#[test]
fn a_process_that_ends_meanwhile_is_told_of_as_far_as_it_came() {
    let program = Program::start(&[], &compiled("sites"), &["--seconds", "0"]);
    let dir = tempfile::tempdir().unwrap();
    let picture = dir.path().join("ended.svg");
    let path = picture.to_str().unwrap();
    let pid = program.pid();
    std::thread::scope(|scope| {
        let recorded =
            scope.spawn(|| told(&["record", &pid, "--seconds", "600", "--output", path]));
        // It is made when the process has begun to sample.
        wait_for("the picture", || picture.exists().then_some(()));
        program.finish().expect_ok("sites");
        let text = recorded.join().unwrap();
        let parts = ["touch_cold", "The process ended after "];
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    });
    assert!(std::fs::metadata(&picture).unwrap().len() > 0);
    refused(&["record", &pid], 1, &["no such process"]);
}

#[test]
fn a_signal_ends_it_before_its_time_with_what_there_is() {
    let program = Program::start(&[], &compiled("sites"), &["--seconds", "0"]);
    let dir = tempfile::tempdir().unwrap();
    let picture = dir.path().join("enough.svg");
    let path = picture.to_str().unwrap();
    for signal in [2, 15] {
        let mut record = Command::new(softswap());
        record.args(["record", &program.pid(), "--seconds", "3600", "--output", path]);
        let record = Running::start(&mut record);
        wait_for("the picture", || picture.exists().then_some(()));
        // Until there are samples.
        std::thread::sleep(std::time::Duration::from_secs(2));
        softswap_sys::child::send(record.id(), signal).unwrap();
        let ended = record.finish(support::control_client::PATIENCE);
        ended.expect_success("record");
        assert!(ended.stdout_text().contains("touch_cold"), "{}", ended.stdout_text());
        expect_well_formed(&std::fs::read_to_string(&picture).unwrap());
        std::fs::remove_file(&picture).unwrap();
    }
}

#[test]
fn where_nothing_can_be_recorded_it_says_why_and_leaves_no_picture() {
    let dir = tempfile::tempdir().unwrap();
    let picture = dir.path().join("none.svg");
    let path = picture.to_str().unwrap();
    let idle = Program::script("import time; print('ready', flush=True); time.sleep(1000)");
    let pid = idle.pid();
    let ask_for = |pid: &str| ask(&["record", pid, "--seconds", "1", "--output", path]);
    says(&ask_for(&pid), 1, &["had no fault in 1.0 s", "record for longer"]);
    assert!(!picture.exists());
    refused(&["record", &pid, "-o", "/nowhere/at/all.svg"], 1, &["cannot be written", "--output"]);
    refused(&["record", &pid, "--seconds", "0"], 2, &["--seconds"]);
    says(&ask_for(&std::process::id().to_string()), 1, &["is not managed by softswap"]);

    let mut command = Command::new(softswap());
    command.args(["run", "-q", "--memory", "64M", "--", "sleep", "1000"]);
    let asleep = Running::start(&mut command);
    let number = asleep.id().to_string();
    let message = wait_for("a program that sleeps", || {
        let output = ask_for(&number);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        errors.contains("sleeps").then_some(errors)
    });
    assert!(message.contains("(sleep) sleeps: what it has fits its budget"), "{message}");
    assert!(!picture.exists());
}

#[test]
fn only_the_user_and_root_may_record() {
    if !is_root() {
        return refused(&["record", "1"], 1, &["process 1", "belongs to uid 0", "as root"]);
    }
    let program = Program::start(&[], &compiled("sites"), &["--seconds", "0"]);
    let binaries = binaries_for_all();
    let nobody = || as_nobody(binaries.path());
    let output = nobody().args(["record", &program.pid()]).output().unwrap();
    says(&output, 1, &["belongs to uid 0", "as that user, or as root"]);

    // Their own they may, and root that, too.
    let own = || -> TempDir {
        let dir = tempfile::tempdir().unwrap();
        chown(dir.path(), Some(NOBODY), Some(NOBODY)).unwrap();
        dir
    };
    let (swap, sockets, pictures) = (own(), own(), own());
    let copy = binaries.path().join("sites");
    std::fs::copy(compiled("sites"), &copy).unwrap();
    let mut command = nobody();
    command.args(["run", "-q", "--awake", "--memory", "32M", "--reserve", "0", "--swap"]);
    command.arg(swap.path()).arg("--").arg(&copy).args(["--seconds", "0"]);
    let theirs = Running::start(command.env(DIR_VARIABLE, sockets.path()));
    wait_for("its start", || {
        String::from_utf8_lossy(&theirs.stdout_so_far()).contains("ready").then_some(())
    });
    let number = theirs.id().to_string();
    let arguments = ["record", &number, "--seconds", "2", "--json", "--output"];
    let path = pictures.path().join("own.svg");
    let output = nobody().args(arguments).arg(&path).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let profile = json(&String::from_utf8(output.stdout).unwrap());
    assert_eq!(profile["functions"][0]["function"], "touch_cold", "{profile}");
    assert!(path.exists());
    let (profile, _) = record(pictures.path(), &number, "1");
    assert_eq!(profile["functions"][0]["function"], "touch_cold", "{profile}");
}
