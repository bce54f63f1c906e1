//! The bits of one cluster: a set bit for each used slot, and a search for free runs.

use softswap_sys::PAGE_SIZE;
use std::ops::Range;

/// Slots in a cluster: 2 MiB of pages, and one cache line of bits. In loom models one word, because
/// loom explores every order of reads.
pub const CLUSTER_SLOTS: usize = if cfg!(feature = "loom") { 64 } else { 512 };

/// Maximum number of areas: a page entry has no bits for more.
pub const MAX_AREAS: usize = softswap_shared::cluster_table::MOST_AREAS;

pub(crate) const PAGE_BYTES: u64 = PAGE_SIZE as u64;
pub(crate) const CLUSTER_BYTES: u64 = CLUSTER_SLOTS as u64 * PAGE_BYTES;

pub(crate) const WORDS: usize = CLUSTER_SLOTS / 64;

pub(crate) type Bits = [u64; WORDS];

/// Returns the first run of `want` free slots or, if there is none, the longest one.
pub(crate) fn find_run(used: &Bits, want: usize) -> Option<Range<usize>> {
    let mut best = 0..0;
    let mut at = 0;
    while let Some(start) = next(used, at, false) {
        let end = next(used, start, true).unwrap_or(CLUSTER_SLOTS);
        if end - start >= want {
            return Some(start..start + want);
        }
        if end - start > best.len() {
            best = start..end;
        }
        at = end;
    }
    (!best.is_empty()).then_some(best)
}

fn next(used: &Bits, from: usize, in_use: bool) -> Option<usize> {
    let flip = if in_use { 0 } else { u64::MAX };
    let mut keep = u64::MAX << (from % 64);
    for (word, bits) in used.iter().enumerate().skip(from / 64) {
        let found = (bits ^ flip) & keep;
        if found != 0 {
            return Some(word * 64 + found.trailing_zeros() as usize);
        }
        keep = u64::MAX;
    }
    None
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bits_of(used: &[bool]) -> Bits {
        let mut bits = [0; WORDS];
        for (slot, _) in used.iter().enumerate().filter(|(_, used)| **used) {
            bits[slot / 64] |= 1 << (slot % 64);
        }
        bits
    }

    #[test]
    fn empty_cluster_is_one_run() {
        assert_eq!(find_run(&[0; WORDS], CLUSTER_SLOTS), Some(0..CLUSTER_SLOTS));
        assert_eq!(find_run(&[0; WORDS], 1), Some(0..1));
        assert_eq!(find_run(&[u64::MAX; WORDS], 1), None);
    }

    proptest! {
        #[test]
        fn first_fitting_or_longest_run_is_found(
            // Runs of one value, so that words are crossed and filled.
            pieces in prop::collection::vec((any::<bool>(), 1..150_usize), 1..40),
            want in 1..=CLUSTER_SLOTS,
        ) {
            let mut used: Vec<bool> =
                pieces.iter().flat_map(|&(used, length)| vec![used; length]).collect();
            used.resize(CLUSTER_SLOTS, false);
            let run_at = |start: usize| used[start..].iter().take_while(|used| !**used).count();
            let longest = (0..CLUSTER_SLOTS).map(run_at).max().unwrap();
            let expected = (longest > 0).then(|| {
                let length = longest.min(want);
                let start = (0..CLUSTER_SLOTS).find(|&start| run_at(start) >= length).unwrap();
                start..start + length
            });
            prop_assert_eq!(find_run(&bits_of(&used), want), expected);
        }
    }
}
