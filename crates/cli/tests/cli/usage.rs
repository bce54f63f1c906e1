//! Invalid values are refused before a program starts, with problem, reason and remedy.

use crate::common::{
    as_unprivileged, assert_contains_all, assert_refused, bin_dir, run, set_mode, skip, softswap,
};
use crate::support::Swapped;
use std::path::Path;

fn refused(options: &[&str], parts: &[&str]) {
    assert_refused(softswap().arg("run").args(options).args(["--", "true"]), 2, parts);
}

#[test]
fn invalid_value_is_reported_with_limit_and_remedy() {
    let table: &[(&str, &[&str])] = &[
        ("--memory 0", &["too little", "8.0 MiB", "--memory 256M"]),
        ("--memory 1M", &["too little", "8.0 MiB"]),
        ("--memory banana", &["not a size", "512M", "50%"]),
        ("--memory -5G", &["negative", "512M"]),
        ("--memory --", &["not a size", "512M"]),
        ("--memory 5X", &["not a size"]),
        ("--memory 0%", &["at most 100%"]),
        ("--memory 150%", &["available memory", "at most 100%", "such as 50%", "512M"]),
        ("--memory 512", &["a number without a unit is bytes", "512M?"]),
        ("--memory-per-process 1M", &["too little", "--memory-per-process 256M"]),
        ("--memory 999999T", &["more than any machine"]),
        ("--pool 95%", &["0% to 80%"]),
        ("--codec snappy", &["\"snappy\"", "lz4, zstd, zstd:LEVEL", "none"]),
        ("--codec zstd:99", &["from -5 to 9"]),
        ("--codec zstd:", &["from -5 to 9"]),
        ("--poll banana", &["interrupt, poll, hybrid or auto"]),
        ("--children some", &["managed or plain"]),
        ("--reserve lots", &["not a size"]),
        ("--swap /no/such/dir", &["No such file", "mkdir -p", "--swap DIR"]),
        ("--swap /tmp:banana", &["`banana`", "not a size"]),
        ("--swap /tmp:1K", &["too small", "16.0 MiB"]),
        ("--swap /etc/passwd", &["/etc/passwd ", "give a directory", "softswap mkswap FILE"]),
        ("--swap /dev/null", &["is a character device", "choose a file or a block device"]),
        (
            "--report /no/such/dir/r.json",
            &["cannot be written", "`mkdir -p /no/such/dir`, or choose another"],
        ),
        ("--config /no/such/file", &["cannot be read: No such file or directory; choose another"]),
        ("--no-such-option", &["--help"]),
    ];
    let swap = tempfile::tempdir().unwrap();
    for (line, parts) in table {
        let mut options: Vec<&str> = line.split(' ').collect();
        let parts = [&[*line], *parts].concat();
        // The default directory must not be the reason for the refusal.
        if !options.contains(&"--swap") {
            options.extend(["--swap", swap.path().to_str().unwrap()]);
        }
        if !options.contains(&"--reserve") {
            options.extend(["--reserve", "0"]);
        }
        refused(&options, &parts);
    }
}

#[test]
fn file_used_twice_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    let (one, again) = (place("a.json"), place("./a.json"));
    for (option, other, parts) in [
        ("--report", &one, ["another --report names the same file", "choose another"]),
        ("--report", &again, ["another --report names the same file", "choose another"]),
        ("--log", &again, ["--log names the same file", "choose another"]),
        ("--report", &place("no/b.json"), ["cannot be written", "another path"]),
    ] {
        let swap = dir.path().to_str().unwrap();
        let options = ["--reserve", "0", "--swap", swap, "--report", &one, option, other];
        refused(&options, &parts);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}

#[test]
fn common_mistakes_get_a_hint() {
    let table: &[(&[&str], i32, &[&str])] = &[
        (&["rnu", "true"], 2, &["unrecognized subcommand 'rnu'", "did you mean `softswap run`?"]),
        (&["--memory", "1G", "true"], 2, &["tip: to run a program: softswap run --memory 1G true"]),
        (&["sh", "-c", "exit 3"], 2, &["to run a program: softswap run sh -c 'exit 3'"]),
        (&["--", "python -c 1"], 2, &["to run a program: softswap run -- python -c 1"]),
        (&["true | cat"], 2, &["to run a program: softswap run sh -c 'true | cat'"]),
        (&["park", "3"], 2, &["did you mean `softswap ctl 3 park`?"]),
        (&["set", "memory", "512"], 2, &["did you mean `softswap ctl PID set memory 512`?"]),
        (&["get"], 2, &["did you mean `softswap ctl PID get`?"]),
        (&["run", "-m", "1G", "true"], 2, &["'-m'", "softswap run --memory SIZE"]),
        (&["-m", "1G", "true"], 2, &["'-m'", "softswap run --memory SIZE"]),
        (&["run", "--memroy", "1G", "true"], 2, &["a similar argument exists: '--memory'"]),
        (&["run", "-q", "-v", "true"], 2, &["--quiet", "--verbose", "cannot be used with"]),
        (&["ctl", "park", "1"], 2, &["the PID comes first: `softswap ctl 1 park`"]),
        (&["ctl", "1", "set", "memory=1G"], 2, &["`softswap ctl 1 set memory 1G`"]),
        (&["ctl", "1", "memory", "1G"], 2, &["did you mean `softswap ctl 1 set memory 1G`?"]),
        (&["ctl", "set", "memory", "auto", "1"], 2, &["first: `softswap ctl 1 set memory auto`"]),
        (&["ctl", "memory", "1G"], 2, &["first: `softswap ctl PID set memory 1G`"]),
        (&["stat", "banana"], 2, &["a PID is a number; `pgrep -a NAME` finds it"]),
        (&["record", "banana"], 2, &["a PID is a number; `pgrep -a NAME` finds it"]),
        (
            &["ctl", "1", "stat"],
            2,
            &["unrecognized subcommand 'stat'", "tip: did you mean `softswap stat 1`?"],
        ),
        (&["stat", "--json"], 2, &["<PID>", "`softswap top` shows the PIDs of all programs"]),
        (&["run", "--", "sh -c true"], 127, &["leave out the quotes", "sh -c 'sh -c true'"]),
    ];
    for (words, status, parts) in table {
        let text = assert_refused(softswap().args(*words), *status, parts);
        assert!(!text.contains("softswap run run"), "{text}");
    }
}

#[test]
fn invalid_variable_is_reported_by_name() {
    for (name, value, reason) in [
        ("SOFTSWAP_MEMORY", "banana", "not a size"),
        ("SOFTSWAP_POLL", "never", "interrupt, poll, hybrid or auto"),
    ] {
        let mut command = softswap();
        command.env(name, value).args(["run", "true"]);
        assert_refused(&mut command, 2, &[&format!("{name}={value}"), reason]);
    }
}

#[test]
fn invalid_file_is_reported_with_key() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("softswap.toml");
    let path_text = path.to_str().unwrap();
    for (contents, parts) in [
        ("memory = \"banana\"", ["memory = banana in", path_text]),
        ("memory = [1]", ["`memory` is of type array", path_text]),
        ("memory = 1", ["memory = 1 in", "did you mean 1G?"]),
        ("poll = 1", ["poll = 1 in", "interrupt, poll, hybrid or auto"]),
        ("memroy = \"1G\"", ["memroy", "expected"]),
        ("memory = ", [path_text, "line 1"]),
    ] {
        std::fs::write(&path, contents).unwrap();
        refused(&["--config", path_text], &parts);
    }
}

#[test]
fn full_swap_directory_is_rejected_at_start() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().to_str().unwrap();
    let parts = [dir, "is full", "64.0 MiB", "--reserve", "--swap DIR"];
    refused(&["--swap", dir, "--reserve", "1000T"], &parts);
}

#[test]
fn unwritable_swap_directory_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let closed = dir.path().join("closed");
    std::fs::create_dir(&closed).unwrap();
    set_mode(&closed, 0o555);
    let mut command = as_unprivileged(dir.path());
    command.args(["run", "--reserve", "0", "--swap"]).arg(&closed).arg("true");
    assert_refused(&mut command, 2, &["closed", "not writable", "--swap DIR"]);
}

#[test]
fn read_only_swap_directory_is_rejected() {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let read_only = mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let point = fields.next()?;
        let options = fields.nth(1)?;
        let fits = options.split(',').any(|option| option == "ro") && Path::new(point).is_dir();
        fits.then(|| point.to_string())
    });
    let Some(dir) = read_only else { return skip("no read-only mount is available") };
    refused(&["--swap", &dir], &[&dir, "read-only", "--swap DIR"]);
}

#[test]
fn file_with_file_system_is_not_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("disk.img");
    let mut bytes = vec![0u8; 4 << 20];
    bytes[0x438..0x43a].copy_from_slice(b"\x53\xef");
    std::fs::write(&image, &bytes).unwrap();
    let parts = ["ext2/3/4", "not changed", "mkswap --force"];
    refused(&["--swap", image.to_str().unwrap()], &parts);
    assert_eq!(std::fs::read(&image).unwrap(), bytes);
}

#[test]
fn mkswap_and_swapon_check_reject_cluster() {
    for (command, part) in
        [("mkswap", "needs no header"), ("swapon-check", "softswap remote check URL")]
    {
        let url = "redis://user:hunter2@127.0.0.1:7000";
        let text = assert_refused(softswap().args([command, url]), 2, &[command, part]);
        assert!(!text.contains("hunter2"), "{text}");
    }
}

#[test]
fn mounted_device_is_recognised() {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let device = mounts.lines().filter_map(|line| line.split(' ').next()).find(|name| {
        use std::os::unix::fs::FileTypeExt;
        std::fs::metadata(name).is_ok_and(|meta| meta.file_type().is_block_device())
    });
    let Some(device) = device else { return skip("no mounted block device is available") };
    refused(&["--swap", device], &["mounted at", "not changed", "choose another file or device"]);
}

#[test]
fn wrong_or_missing_library_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("libsoftswap.so");
    for (library, parts) in [
        (Path::new("/etc/passwd"), ["is not a library", "unset it"]),
        (&missing, ["make install", "SOFTSWAP_LIBRARY"]),
    ] {
        let mut command = run(dir.path());
        command.env("SOFTSWAP_LIBRARY", library).arg("true");
        let parts = [&[library.to_str().unwrap(), "SOFTSWAP_LIBRARY"], &parts[..]].concat();
        assert_refused(&mut command, 125, &parts);
    }
    let own = bin_dir().join("libsoftswap.so");
    run(dir.path()).env("SOFTSWAP_LIBRARY", own).arg("true").assert().success();
}

#[test]
fn budget_is_capped_at_machine_memory() {
    let report = Swapped::within("99999G").run("true", &[""; 0]);
    report.ended.expect_success("true");
    assert!(report.figure("budget_bytes") < 1 << 44, "{}", report.figures);
}

#[test]
fn recording_overwrites_only_recordings() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("precious");
    std::fs::write(&file, "precious things").unwrap();
    let mut command = run(dir.path());
    command.env("SOFTSWAP_RECORD", &file).arg("true");
    assert_refused(&mut command, 125, &["SOFTSWAP_RECORD", "exists", "name a new file"]);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious things");
}

#[test]
fn help_and_version_go_to_stdout() {
    for (args, part) in [
        (vec!["--help"], "Exit status"),
        (vec!["run", "--help"], "126"),
        (vec!["doctor", "--help"], "Exit status"),
        (vec!["stat", "--help"], "Exit status"),
        (vec!["ctl", "--help"], "io.poll_sleep"),
        (vec!["mkswap", "--help"], "fallocate -l"),
        (vec!["swapon-check", "--help"], "Exit status"),
        (vec!["--version"], "softswap "),
    ] {
        let output = softswap().args(&args).assert().code(0).get_output().clone();
        assert!(String::from_utf8_lossy(&output.stdout).contains(part), "{args:?}");
        assert!(output.stderr.is_empty(), "{args:?}: {output:?}");
    }
    softswap().assert().code(2);
    softswap().arg("run").assert().code(2);
}

#[test]
fn failed_output_is_reported() {
    for arguments in
        [&["doctor"][..], &["doctor", "--json"], &["export", "--listen", "127.0.0.1:0"]]
    {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = std::process::Command::new(bin_dir().join("softswap"))
            .args(arguments)
            .stdout(full)
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {stderr}");
        assert_contains_all(&stderr, &["standard output cannot be written", "No space left"]);
    }
}

#[test]
fn unwritable_standard_error_changes_no_status() {
    for (line, status) in
        [("stat 999999999", 1), ("run --reserve 0 --memory 99999G -- sh -c exit+7", 7)]
    {
        let words: Vec<String> = line.split(' ').map(|word| word.replace('+', " ")).collect();
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut command = std::process::Command::new(bin_dir().join("softswap"));
        let ended = command.args(&words).stderr(full).status().unwrap();
        assert_eq!(ended.code(), Some(status), "{line}");
    }
}

#[test]
fn variable_that_is_not_text_is_refused() {
    use std::os::unix::ffi::OsStrExt;
    let value = std::ffi::OsStr::from_bytes(b"/var/tmp/\xe9");
    let mut command = softswap();
    command.env("SOFTSWAP_SWAP", value).args(["run", "--", "true"]);
    assert_refused(&mut command, 2, &["SOFTSWAP_SWAP=/var/tmp/", "not UTF-8"]);
    // Options override variables.
    let mut command = softswap();
    command.env("SOFTSWAP_SWAP", value).args(["run", "--reserve", "0", "--swap", "/var/tmp"]);
    command.args(["--", "true"]).assert().success();
}

#[test]
fn bench_and_analyze_receive_all_arguments() {
    for (line, [usage, first, second]) in [
        ("bench --help", ["bench [OPTIONS] <COMMAND>", "swap-in", "samefill"]),
        ("bench faults --help", ["bench faults", "--pages <N>", ""]),
        ("analyze --help", ["analyze [OPTIONS] <COMMAND>", "extents", "pages"]),
        ("analyze pages -h", ["analyze pages", "", ""]),
    ] {
        let output = softswap().args(line.split(' ')).assert().success().get_output().clone();
        let text = String::from_utf8(output.stdout).unwrap();
        assert_contains_all(&text, &[&format!("Usage: softswap {usage}"), first, second]);
    }
    let wrong = ["bench", "faults", "--pages", "x"];
    assert_refused(softswap().args(wrong), 2, &["'x' for '--pages <N>'"]);
}

#[test]
fn missing_companion_program_is_reported_with_path() {
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("softswap");
    let mut copied = std::process::Command::new("cp");
    copied.arg(bin_dir().join("softswap")).arg(&copy);
    assert!(copied.status().unwrap().success());
    let path = dir.path().join("softswap-bench");
    let remote = dir.path().join("softswap-remote");
    for (command, path) in [("bench", &path), ("analyze", &path), ("remote", &remote)] {
        let mut softswap = assert_cmd::Command::new(&copy);
        let parts = [path.to_str().unwrap(), "missing", "make build", "make install"];
        assert_refused(softswap.args([command, "--help"]), 127, &parts);
    }
    std::fs::write(&path, "").unwrap();
    let mut bench = assert_cmd::Command::new(&copy);
    assert_refused(
        bench.args(["bench", "faults"]),
        126,
        &[path.to_str().unwrap(), "cannot be run"],
    );
}
