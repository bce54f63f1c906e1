//! `softswap doctor` reports features that work, features that fail, and the remedies.

use crate::common::{assert_contains_all, softswap};
use serde_json::Value;

fn diagnose(command: &mut assert_cmd::Command) -> (i32, Value) {
    let output = command.output().unwrap();
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    (output.status.code().unwrap(), serde_json::from_slice(&output.stdout).unwrap())
}

fn check<'a>(diagnosis: &'a Value, name: &str) -> &'a Value {
    let checks = diagnosis["checks"].as_array().unwrap();
    checks.iter().find(|check| check["name"] == name).unwrap_or_else(|| panic!("no check {name}"))
}

#[test]
fn exit_status_shows_fatal_checks_and_every_failed_check_has_a_remedy() {
    let (status, diagnosis) = diagnose(softswap().args(["doctor", "--json"]));
    assert_eq!(diagnosis["schema"], 1);
    let checks = diagnosis["checks"].as_array().unwrap();
    let fatal = checks.iter().any(|check| check["status"] == "fatal");
    assert_eq!(diagnosis["ok"], !fatal);
    assert_eq!(status, i32::from(fatal));
    let names = "kernel userfaultfd-user-mode userfaultfd-privileged page-protection seccomp \
                 io_uring managed-window limit-address-space limit-locked-memory encryption-key \
                 overcommit limit-mappings memory container swap-directory runtime-library";
    for name in names.split(' ') {
        check(&diagnosis, name);
    }
    for check in checks {
        let ok = check["status"] == "ok";
        assert!(!check["detail"].as_str().unwrap().is_empty(), "{check}");
        assert_eq!(check["fix"].is_null(), ok, "{check}");
        assert_eq!(check["instead"].is_null(), ok, "{check}");
    }
}

#[test]
fn doctor_detects_softswap() {
    let own = crate::common::bin_dir().join("softswap");
    let inside = || {
        let mut command = softswap();
        command.args(["run", "-q", "--reserve", "0", "--memory", "64M", "--"]).arg(&own);
        command
    };
    let (_, diagnosis) = diagnose(inside().args(["doctor", "--json"]));
    let container = check(&diagnosis, "container");
    assert_eq!(container["status"], "note", "{container}");
    assert_contains_all(&container["detail"].to_string(), &["runs under `softswap run`"]);
    let io_uring = check(&diagnosis, "io_uring");
    let fix = io_uring["fix"].as_str().unwrap_or_else(|| panic!("{io_uring}"));
    assert!(fix.contains("outside of `softswap run`"), "{io_uring}");
    let table = String::from_utf8(inside().arg("doctor").output().unwrap().stdout).unwrap();
    for line in [table.lines().next(), table.lines().next_back()] {
        assert!(line.is_some_and(|line| line.contains("run `softswap doctor` outside")), "{table}");
    }
}

#[test]
fn unusable_swap_directory_is_fatal() {
    let mut command = softswap();
    let (status, diagnosis) =
        diagnose(command.args(["doctor", "--json", "--swap", "/no/such/dir"]));
    assert_eq!(status, 1);
    assert_eq!(diagnosis["ok"], false);
    let found = check(&diagnosis, "swap-directory");
    assert_eq!(found["status"], "fatal");
    assert_contains_all(&found["detail"].to_string(), &["/no/such/dir"]);
    // The same settings apply as in `softswap run`.
    let mut command = softswap();
    let (status, diagnosis) =
        diagnose(command.env("SOFTSWAP_RESERVE", "999999G").args(["doctor", "--json"]));
    assert_eq!(status, 1);
    let found = check(&diagnosis, "swap-directory");
    assert_contains_all(&found["detail"].to_string(), &["kept in reserve", "run --reserve SIZE"]);
}

#[test]
fn unloadable_library_is_fatal() {
    let dir = tempfile::tempdir().unwrap();
    let library = dir.path().join("libsoftswap.so");
    let diagnose_with = || {
        let mut command = softswap();
        diagnose(command.env("SOFTSWAP_LIBRARY", &library).args(["doctor", "--json"]))
    };
    let (status, diagnosis) = diagnose_with();
    assert_eq!((status, &check(&diagnosis, "runtime-library")["status"]), (1, &"fatal".into()));
    std::fs::write(&library, "not a library").unwrap();
    let (status, diagnosis) = diagnose_with();
    let found = check(&diagnosis, "runtime-library");
    assert_eq!((status, &found["status"]), (1, &"fatal".into()));
    assert!(found["detail"].as_str().unwrap().contains("is not a library"), "{found}");
}

#[test]
fn address_space_limit_is_reported_with_command() {
    let mut limited = std::process::Command::new("sh");
    let exe = crate::common::bin_dir().join("softswap");
    limited.args(["-c", "ulimit -v 8000000; exec \"$0\" doctor --json"]).arg(exe);
    let (_, diagnosis) = diagnose(&mut assert_cmd::Command::from_std(limited));
    assert_eq!(check(&diagnosis, "limit-address-space")["status"], "missing");
    let window = check(&diagnosis, "managed-window");
    assert_eq!(window["status"], "missing");
    assert_eq!(window["fix"], "ulimit -v unlimited");
    assert!(window["detail"].as_str().unwrap().contains("4.0 GiB"), "{window}");
}

#[test]
fn table_without_terminal_has_no_colour() {
    let output = softswap().arg("doctor").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!text.contains('\x1b'), "{text}");
    assert!(text.contains("`softswap run` will"), "{text}");
    for line in text.lines().take_while(|line| !line.is_empty()) {
        let first = line.split_whitespace().next().unwrap();
        assert!(["ok", "note", "missing", "fatal", "instead:", "fix:"].contains(&first), "{line}");
    }
}
