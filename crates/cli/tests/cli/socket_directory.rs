//! Directory of the control sockets: its selection, and behavior without one.

use crate::common::assert_contains_all;
use crate::support::control_client::{eventually, query, refused, wait_for};
use crate::support::processes::children;
use crate::support::{Running, Swapped, finish};
use softswap_sys::control_socket::DIR_VARIABLE;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

#[test]
fn program_runs_without_socket_directory() {
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("file");
    std::fs::write(&file, "").unwrap();
    let long = scratch.path().join("x".repeat(150));
    let cases = [
        (file.as_path(), "is not a directory"),
        (Path::new("/no/such/place"), "cannot be used: No such file"),
        (Path::new("relative"), "is not an absolute path"),
        (&long, "is too long a path"),
    ];
    for (dir, why) in cases {
        // A sleeping process never has a socket.
        let swapped = Swapped::within("32M").option("--awake");
        let mut command = swapped.command("/bin/sh", &["-c", "echo ready; sleep 1000"]);
        let running = Running::start(command.env(DIR_VARIABLE, dir));
        eventually("the program", || running.stdout_so_far().starts_with(b"ready"));
        let shown = dir.display().to_string();
        for child in children(running.id()) {
            let parts = ["no control socket", &shown, why, DIR_VARIABLE];
            refused(&["stat", &child.to_string()], 1, &parts);
        }
        let part = "is `softswap run`, and its program has no control socket";
        refused(&["stat", &running.id().to_string()], 1, &[part]);
        drop(running);

        let run = |swapped: &Swapped| {
            let mut command = swapped.command("/bin/sh", &["-c", "exit 5"]);
            finish(command.env(DIR_VARIABLE, dir))
        };
        let ended = run(&swapped);
        assert_eq!(ended.status.code(), Some(5));
        assert_contains_all(&ended.stderr, &["note: SOFTSWAP_RUNTIME_DIR", why]);
        let ended = run(&swapped.option("--quiet"));
        assert_eq!((ended.status.code(), ended.stderr.as_str()), (Some(5), ""));
    }
}

#[test]
fn session_directory_is_used_if_available() {
    let session = tempfile::tempdir().unwrap();
    let swapped = Swapped::within("32M");
    let mut command = swapped.command("/bin/sh", &["-c", "echo ready; exec sleep 1000"]);
    command.env_remove(DIR_VARIABLE).env("XDG_RUNTIME_DIR", session.path());
    command.env("SOFTSWAP_AWAKE", "1");
    let running = Running::start(&mut command);
    let dir = session.path().join("softswap");
    wait_for("a socket", || std::fs::read_dir(&dir).ok()?.next()?.ok());
    assert_eq!(std::fs::symlink_metadata(&dir).unwrap().mode() & 0o777, 0o700);
    let pid = running.id().to_string();
    eventually("an answer", || query(&["stat", &pid]).status.success());
}
