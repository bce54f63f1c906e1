//! Ranges of bits in bitmaps of 64-bit words.

use std::ops::Range;

const BITS: usize = u64::BITS as usize;

/// Iterates over the words that contain bits of a range: index and the range's bits.
#[inline]
pub fn words_of(range: Range<usize>) -> impl Iterator<Item = (usize, u64)> {
    let (mut at, end) = (range.start, range.end);
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let stop = end.min((at / BITS + 1) * BITS);
        let bits = u64::MAX >> (BITS - (stop - at)) << (at % BITS);
        let word = at / BITS;
        at = stop;
        Some((word, bits))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_cover_exactly_the_range() {
        for range in (0..200).flat_map(|start| (start..=256).map(move |end| start..end)) {
            let mut bits = [0_u64; 256 / BITS];
            for (word, mask) in words_of(range.clone()) {
                assert!(mask != 0 && bits[word] == 0);
                bits[word] = mask;
            }
            let is_set = |bit: usize| bits[bit / BITS] >> (bit % BITS) & 1 == 1;
            assert!((0..256).all(|bit| is_set(bit) == range.contains(&bit)), "{range:?}");
        }
    }
}
