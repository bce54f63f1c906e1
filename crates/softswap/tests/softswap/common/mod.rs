//! Helpers of the tests that run in their own processes.

use softswap::{Pool, Region};
use std::process::Command;

pub(crate) const PAGE: usize = 4096;

/// Returns a region most of whose pages are absent.
pub(crate) fn full(pool: &Pool) -> Region {
    let mut region = pool.map(48 << 20).unwrap();
    for (number, page) in region.chunks_mut(PAGE).enumerate() {
        page.fill(number as u8);
        page[..8].copy_from_slice(&number.to_ne_bytes());
    }
    region
}

pub(crate) fn assert_full(region: &Region) {
    for (number, page) in region.chunks(PAGE).enumerate() {
        assert!(page[..8] == number.to_ne_bytes() && page[PAGE - 1] == number as u8, "{number}");
    }
}

/// Runs one test in a new process. In that process, returns true.
pub(crate) fn runs_in_child(test: &str) -> bool {
    if std::env::var_os("SOFTSWAP_ALONE").is_some() {
        return true;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env("SOFTSWAP_ALONE", "1");
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{:?}: {text}", output.status);
    false
}

/// Runs `body` in a forked child. Returns the child's wait status.
pub(crate) fn in_child(body: impl FnOnce()) -> i32 {
    // SAFETY: the child calls `body` and exits.
    match unsafe { libc::fork() } {
        0 => {
            body();
            // SAFETY: exits the child without running the parent's destructors.
            unsafe { libc::_exit(0) }
        }
        child => {
            let mut status = 0;
            // SAFETY: `status` is a local.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            status
        }
    }
}
