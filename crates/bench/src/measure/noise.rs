//! Pseudo-random numbers, reproducible from a seed.

use softswap_sys::PAGE_SIZE;

/// Returns pseudo-random numbers (xorshift64*).
pub(crate) fn noise(seed: u64) -> impl Iterator<Item = u64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    std::iter::repeat_with(move || {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    })
}

pub(crate) fn fill_with_noise(page: &mut [u8; PAGE_SIZE], seed: u64) {
    let (words, _) = page.as_chunks_mut::<8>();
    for (word, number) in words.iter_mut().zip(noise(seed)) {
        *word = number.to_ne_bytes();
    }
}

/// Shuffles `0..count` (Fisher and Yates).
pub(crate) fn shuffled(count: usize, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    for (last, number) in (1..count).rev().zip(noise(seed + 1)) {
        order.swap(last, number as usize % (last + 1));
    }
    order
}

/// Scales to a number below `count` by the upper bits, which are better than the remainder's.
pub(crate) fn below(number: u64, count: u64) -> u64 {
    ((u128::from(number) * u128::from(count)) >> 64) as u64
}
