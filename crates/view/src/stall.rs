//! Share of a program's time in which it waits for pages.

use std::time::Duration;

/// Returns the share of the busy threads' time, 0 to 1. Busy threads are estimated from running and
/// waiting time. `cpu` is of all threads, without waits for reads.
#[must_use]
pub fn share(waited: Duration, cpu: Duration, wall: Duration, threads: u32) -> f64 {
    let (waited, wall) = (waited.as_secs_f64(), wall.as_secs_f64());
    if wall == 0.0 {
        return 0.0;
    }
    let busy_threads = (waited + cpu.as_secs_f64()) / wall;
    let threads = busy_threads.clamp(1.0, f64::from(threads.max(1)));
    (waited / (wall * threads)).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::share;
    use std::time::Duration;

    #[test]
    fn stall_share_is_of_running_or_waiting_threads() {
        let seconds = Duration::from_secs_f64;
        let percent = |waited, cpu, threads| {
            (share(seconds(waited), seconds(cpu), seconds(10.0), threads) * 100.0).round()
        };
        assert_eq!(percent(9.0, 1.0, 1), 90.0);
        // Polling for pages is not work of the program.
        assert_eq!(percent(9.0, 9.5, 1), 90.0);
        // Each of four threads waits a fifth of its time.
        assert!(percent(8.0, 20.0, 4) < 35.0);
        // One thread waits; the others are idle.
        assert!(percent(9.5, 0.5, 64) > 90.0);
        assert_eq!(percent(40.0, 1.0, 4), 100.0);
        assert_eq!(share(seconds(1.0), seconds(1.0), Duration::ZERO, 1), 0.0);
    }
}
