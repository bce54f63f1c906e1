//! softswap warns while a program mostly waits for pages, unless `--quiet` is given.

use crate::support::control_client::wait_until;
use crate::support::{LIMIT, Running, Swapped, compiled, wait_for_rounds};

const NOTE: &str = "the program waited for pages";

#[test]
fn thrashing_is_reported_unless_quiet() {
    let sockets = tempfile::tempdir().expect("a temporary directory");
    // A working set that fits causes no warning. The program that thrashes starts last.
    let swapped = [
        (Swapped::within("16M").option("--quiet"), "128"),
        (Swapped::within("16M"), "4"),
        (Swapped::within("16M"), "128"),
    ];
    let mut running = swapped.each_ref().map(|(swapped, mib)| {
        let mut command = swapped.command(compiled("hog"), &["--mib", mib, "--seconds", "0"]);
        Running::start(command.env("SOFTSWAP_RUNTIME_DIR", sockets.path()))
    });
    running.iter_mut().for_each(|running| drop(running.wait_for_line("ready")));
    wait_until("a note", || match running[2].stderr_so_far() {
        stderr if stderr.contains(NOTE) => Ok(()),
        stderr => Err(stderr),
    });
    running.iter().for_each(|running| wait_for_rounds(running.id(), 2));
    std::fs::write(sockets.path().join("done"), "").expect("a file");
    let notes = running.map(|running| {
        let ended = running.finish(LIMIT);
        ended.expect_success("hog");
        ended.stderr.matches(NOTE).count()
    });
    assert_eq!(notes, [0, 0, 1]);
}
