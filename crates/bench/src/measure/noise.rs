//! Numbers without pattern, the same for the same seed: content that cannot be
//! compressed, and orders that nothing can foresee.

use softswap_sys::PAGE_SIZE;

/// Numbers without pattern (xorshift64*).
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

/// The numbers below `count` in an order without pattern (Fisher and Yates).
pub(crate) fn shuffled(count: usize, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    for (last, number) in (1..count).rev().zip(noise(seed + 1)) {
        order.swap(last, number as usize % (last + 1));
    }
    order
}

/// A number below `count` made of one without pattern; unlike the remainder it
/// takes from the upper bits, which are the better ones.
pub(crate) fn below(number: u64, count: u64) -> u64 {
    ((u128::from(number) * u128::from(count)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use softswap_engine::codec::{self, Packer, Scratch};

    #[test]
    fn every_page_comes_once_and_not_in_sequence() {
        let order = shuffled(1000, 0);
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert!(sorted.iter().enumerate().all(|(at, page)| at == *page));
        let steps = order.windows(2).filter(|pair| pair[0] + 1 == pair[1]).count();
        assert!(steps < 20, "{steps} pages follow their neighbour");
    }

    #[test]
    fn noise_cannot_be_compressed() {
        let mut page = [0; PAGE_SIZE];
        fill_with_noise(&mut page, 3);
        let mut room = vec![0; codec::MAX_PACKED_BYTES];
        let mut scratch = Scratch::new(Default::default()).unwrap();
        for packer in [Packer::Lz4, Packer::Zstd { level: 1 }] {
            assert_eq!(codec::compress(packer, &page, &mut room, &mut scratch), None);
        }
    }

    #[test]
    fn numbers_below_a_bound_reach_all_of_it() {
        let mut met = [0; 10];
        noise(5).take(10_000).for_each(|number| met[below(number, 10) as usize] += 1);
        assert!(met.iter().all(|count| (800..1200).contains(count)), "{met:?}");
    }
}
