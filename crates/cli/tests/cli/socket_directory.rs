//! Directory of the control sockets: its selection and content, and behavior without one.

use crate::common::assert_contains_all;
use crate::support::control_client::{WAIT_TIMEOUT, eventually, query, refused, wait_for};
use crate::support::processes::{children, kill};
use crate::support::{Running, Swapped, compiled, finish};
use softswap_sys::control_socket::DIR_VARIABLE;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

fn mode(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap().mode() & 0o777
}

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
    assert_eq!(mode(&dir), 0o700);
    let pid = running.id().to_string();
    eventually("an answer", || query(&["stat", &pid]).status.success());
}

#[test]
fn sockets_are_private_and_removed_at_exit() {
    let sockets = tempfile::tempdir().unwrap();
    let dir = sockets.path().join("new");
    let swapped = Swapped::within("32M");
    let program = compiled("hog");
    let mut command = swapped.command(&program, &["--mib", "64", "--seconds", "0"]);
    let running = Running::start(command.env(DIR_VARIABLE, &dir));
    let of_run = dir.join(format!("{}.sock", running.id()));
    let path = wait_for("a socket", || {
        let paths = std::fs::read_dir(&dir).ok()?.flatten().map(|entry| entry.path());
        paths.into_iter().find(|path| *path != of_run)
    });
    let pid = path.file_stem().unwrap().to_str().unwrap().to_string();
    eventually("an answer", || query(&["stat", &pid]).status.success());
    assert_eq!((mode(&dir), mode(&path)), (0o700, 0o600));
    kill(pid.parse().unwrap());
    running.finish(WAIT_TIMEOUT);
    assert!(!path.exists() && !of_run.exists());
    refused(&["stat", &pid], 1, &["no such process"]);

    for text in ["exit 3", "sh -c 'exit 3'", "exec python3 -c 'raise SystemExit(3)'"] {
        let mut command = swapped.command("/bin/sh", &["-c", text]);
        let ended = Running::start(command.env(DIR_VARIABLE, &dir)).finish(WAIT_TIMEOUT);
        assert_eq!(ended.status.code(), Some(3), "{}", ended.stderr);
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0, "{text}");
    }
}
