//! Waits for other threads and processes.

use std::time::{Duration, Instant};

/// Time-out of every wait: a guard against hangs, not an expectation of speed.
pub const HANG_TIMEOUT: Duration = Duration::from_secs(120);

const INTERVAL: Duration = Duration::from_millis(5);

/// Waits until `look` succeeds and returns its result. Its error describes the current state.
///
/// # Panics
/// After [`HANG_TIMEOUT`].
#[track_caller]
pub fn wait_until<T>(what: &str, mut look: impl FnMut() -> Result<T, String>) -> T {
    let end = Instant::now() + HANG_TIMEOUT;
    loop {
        match look() {
            Ok(found) => return found,
            Err(instead) => {
                assert!(Instant::now() < end, "{what}: not within {HANG_TIMEOUT:?}: {instead}");
            }
        }
        std::thread::sleep(INTERVAL);
    }
}

/// Waits until `holds` returns true.
///
/// # Panics
/// After [`HANG_TIMEOUT`].
#[track_caller]
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    wait_until(what, || if holds() { Ok(()) } else { Err(String::new()) });
}
