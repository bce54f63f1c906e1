//! Helpers of the tests that run in their own processes.

use softswap::{Builder, Pool, Region};
use std::process::Command;

pub(crate) const PAGE: usize = 4096;

pub(crate) fn builder(memory: &str) -> Builder {
    let directory = std::env::temp_dir();
    Pool::builder().memory(memory).unwrap().swap(directory.to_str().unwrap()).unwrap()
}

/// Interrupts this process each 500 us by SIGALRM, until the result is dropped.
pub(crate) struct Timer;

impl Timer {
    pub(crate) fn start(on_timer: extern "C" fn(i32)) -> Timer {
        // SAFETY: zero is valid for the other fields, and the callers' handlers are safe to run at
        // any time.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_timer as *const () as usize;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(libc::SIGALRM, &raw const action, std::ptr::null_mut());
        }
        Timer::set(500);
        Timer
    }

    fn set(every_us: i64) {
        let every = libc::timeval { tv_sec: 0, tv_usec: every_us };
        let timer = libc::itimerval { it_interval: every, it_value: every };
        // SAFETY: the call reads the timer.
        unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut()) };
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        Timer::set(0);
    }
}

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

/// Continues a test in a process of its own, which runs only this test.
macro_rules! alone {
    ($test:literal) => {
        if !crate::common::runs_in_child($test) {
            return;
        }
    };
}
pub(crate) use alone;

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
