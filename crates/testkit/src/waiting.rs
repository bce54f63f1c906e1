//! Waits for other threads and processes.

use std::time::{Duration, Instant};

/// Timeout of every wait. It only detects hangs, and is not an expectation of speed.
pub const HANG_TIMEOUT: Duration = Duration::from_secs(300);

const INTERVAL: Duration = Duration::from_millis(5);

/// Waits until `attempt` succeeds. `what` is the awaited condition; errors describe the state.
///
/// # Panics
/// After [`HANG_TIMEOUT`].
#[track_caller]
pub fn wait_until<T>(what: &str, mut attempt: impl FnMut() -> Result<T, String>) -> T {
    let end = Instant::now() + HANG_TIMEOUT;
    loop {
        match attempt() {
            Ok(found) => return found,
            Err(instead) => {
                assert!(Instant::now() < end, "{what}: not within {HANG_TIMEOUT:?}: {instead}");
            }
        }
        std::thread::sleep(INTERVAL);
    }
}

/// Waits until `holds` returns true. `what` is the awaited condition.
///
/// # Panics
/// After [`HANG_TIMEOUT`].
#[track_caller]
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    wait_until(what, || if holds() { Ok(()) } else { Err(String::new()) });
}
