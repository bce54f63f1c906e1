//! Directory of the control sockets: its selection, and behavior without one.

use crate::support::control_client::{WAIT_TIMEOUT, query, refused, wait_for};
use crate::support::{Running, Swapped};
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
        wait_for("the program", || running.stdout_so_far().starts_with(b"ready").then_some(()));
        let children = format!("/proc/{0}/task/{0}/children", running.id());
        let child = std::fs::read_to_string(children).unwrap_or_default();
        if !child.is_empty() {
            let shown = dir.display().to_string();
            refused(&["stat", child.trim()], 1, &["no control socket", &shown, why, DIR_VARIABLE]);
        }
        refused(
            &["stat", &running.id().to_string()],
            1,
            &["is `softswap run`, and its program has no control socket"],
        );
        drop(running);

        let mut command = swapped.command("/bin/sh", &["-c", "exit 5"]);
        let ended = Running::start(command.env(DIR_VARIABLE, dir)).finish(WAIT_TIMEOUT);
        assert_eq!(ended.status.code(), Some(5));
        assert!(ended.stderr.contains("note: SOFTSWAP_RUNTIME_DIR"), "{}", ended.stderr);
        assert!(ended.stderr.contains(why), "{}", ended.stderr);
        let swapped = swapped.option("--quiet");
        let mut command = swapped.command("/bin/sh", &["-c", "exit 5"]);
        let ended = Running::start(command.env(DIR_VARIABLE, dir)).finish(WAIT_TIMEOUT);
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
    wait_for("an answer", || {
        query(&["stat", &running.id().to_string()]).status.success().then_some(())
    });
}
