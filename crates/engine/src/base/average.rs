//! Moving averages shared by threads.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Moves `average` by 1/`of` of the difference towards `seen`. Concurrent updates may be lost.
pub(crate) fn follow(average: &AtomicU64, seen: u64, of: u64) {
    let before = average.load(Relaxed);
    average.store(before - before / of + seen / of, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn average_converges() {
        let average = AtomicU64::new(0);
        (0..1000).for_each(|_| follow(&average, 6400, 64));
        let near = average.load(Relaxed);
        assert!((6300..=6400).contains(&near), "{near}");
        follow(&average, 0, 64);
        assert_eq!(average.load(Relaxed), near - near / 64);
    }
}
