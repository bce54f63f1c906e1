//! Short sleeps, as exact as the kernel's timers allow.

use crate::raw;

pub(super) fn sleep(ns: u64) {
    let time = libc::timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as i64,
    };
    // A signal may end the sleep early: callers poll again afterwards.
    // SAFETY: the kernel reads `time`, and writes nothing: the other address is null.
    unsafe { raw::syscall(libc::SYS_nanosleep, [&raw const time as usize, 0, 0, 0, 0, 0]) };
}

/// Runs `body` with the thread's timer slack at its minimum, 1 ns.
pub(super) fn with_exact_timers<R>(body: impl FnOnce() -> R) -> R {
    let before = rustix::thread::current_timer_slack();
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZero::new(1));
    let result = body();
    if let Ok(before) = before {
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZero::new(before));
    }
    result
}

pub fn timer_overshoot_ns() -> u64 {
    const REQUESTED_NS: u64 = 20_000;
    let mut over = [0; 5];
    with_exact_timers(|| {
        for over in &mut over {
            let start = raw::now_ns();
            sleep(REQUESTED_NS);
            *over = (raw::now_ns() - start).saturating_sub(REQUESTED_NS);
        }
    });
    over.sort_unstable();
    over[2]
}
