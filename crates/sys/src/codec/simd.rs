//! Scans of whole pages with the widest vector registers of this CPU. May run in a signal handler:
//! the feature checks need no lock, allocation or thread-local variable.

use crate::PAGE_SIZE;

const WORD_BYTES: usize = 8;
/// Four cache lines: enough concurrent loads to keep memory busy, few enough to stop early.
const STEP_BYTES: usize = 256;

const _: () = assert!(PAGE_SIZE.is_multiple_of(STEP_BYTES));

/// A register width that this CPU supports: only [`Width::widest`] and [`Width::all`] create it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Width(Registers);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Registers {
    /// The compiler's code for plain words.
    Words,
    Avx2,
    Avx512,
}

impl Width {
    #[inline]
    pub fn widest() -> Width {
        if is_x86_feature_detected!("avx512f") {
            Width(Registers::Avx512)
        } else if is_x86_feature_detected!("avx2") {
            Width(Registers::Avx2)
        } else {
            Width(Registers::Words)
        }
    }

    pub fn all() -> Vec<Width> {
        let mut all = vec![Width(Registers::Words)];
        if is_x86_feature_detected!("avx2") {
            all.push(Width(Registers::Avx2));
        }
        if is_x86_feature_detected!("avx512f") {
            all.push(Width(Registers::Avx512));
        }
        all
    }

    #[inline]
    pub fn repeats(self, page: &[u8; PAGE_SIZE], word: u64) -> bool {
        match self.0 {
            Registers::Words => repeats_words(page, word),
            // SAFETY: this value exists only if the CPU has AVX2.
            Registers::Avx2 => unsafe { repeats_avx2(page, word) },
            // SAFETY: this value exists only if the CPU has AVX-512F.
            Registers::Avx512 => unsafe { repeats_avx512(page, word) },
        }
    }
}

fn repeats_words(page: &[u8; PAGE_SIZE], word: u64) -> bool {
    let (steps, _) = page.as_chunks::<STEP_BYTES>();
    steps.iter().all(|step| {
        let (words, _) = step.as_chunks::<WORD_BYTES>();
        words.iter().fold(0, |differing, bytes| differing | (u64::from_ne_bytes(*bytes) ^ word))
            == 0
    })
}

#[target_feature(enable = "avx2")]
fn repeats_avx2(page: &[u8; PAGE_SIZE], word: u64) -> bool {
    use std::arch::x86_64::{
        __m256i, _mm256_loadu_si256, _mm256_or_si256, _mm256_set1_epi64x, _mm256_setzero_si256,
        _mm256_testz_si256, _mm256_xor_si256,
    };
    let wanted = _mm256_set1_epi64x(word as i64);
    let (steps, _) = page.as_chunks::<STEP_BYTES>();
    steps.iter().all(|step| {
        let mut differing = _mm256_setzero_si256();
        let (parts, _) = step.as_chunks::<{ size_of::<__m256i>() }>();
        for part in parts {
            // SAFETY: `part` is 32 readable bytes; this load needs no alignment.
            let part = unsafe { _mm256_loadu_si256(part.as_ptr().cast()) };
            differing = _mm256_or_si256(differing, _mm256_xor_si256(part, wanted));
        }
        _mm256_testz_si256(differing, differing) == 1
    })
}

#[target_feature(enable = "avx512f")]
fn repeats_avx512(page: &[u8; PAGE_SIZE], word: u64) -> bool {
    use std::arch::x86_64::{
        __m512i, _mm512_loadu_epi64, _mm512_or_si512, _mm512_set1_epi64, _mm512_setzero_si512,
        _mm512_test_epi64_mask, _mm512_xor_si512,
    };
    let wanted = _mm512_set1_epi64(word as i64);
    let (steps, _) = page.as_chunks::<STEP_BYTES>();
    steps.iter().all(|step| {
        let mut differing = _mm512_setzero_si512();
        let (parts, _) = step.as_chunks::<{ size_of::<__m512i>() }>();
        for part in parts {
            // SAFETY: `part` is 64 readable bytes; this load needs no alignment.
            let part = unsafe { _mm512_loadu_epi64(part.as_ptr().cast()) };
            differing = _mm512_or_si512(differing, _mm512_xor_si512(part, wanted));
        }
        _mm512_test_epi64_mask(differing, differing) == 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(word: u64) -> [u8; PAGE_SIZE] {
        let mut page = [0; PAGE_SIZE];
        page.as_chunks_mut::<WORD_BYTES>().0.fill(word.to_ne_bytes());
        page
    }

    #[test]
    fn selected_width_is_available() {
        let all = Width::all();
        assert_eq!(all.last(), Some(&Width::widest()));
        assert_eq!(all[0], Width(Registers::Words));
    }

    #[test]
    fn every_width_detects_every_bit() {
        for width in Width::all() {
            for word in [0, u64::MAX, 0x0123_4567_89AB_CDEF] {
                let mut page = filled(word);
                assert!(width.repeats(&page, word), "{width:?}");
                assert!(!width.repeats(&page, word ^ 1 << 63), "{width:?}");
                for at in 0..PAGE_SIZE {
                    let bit = 1 << (at % 8);
                    page[at] ^= bit;
                    assert!(!width.repeats(&page, word), "{width:?}, byte {at}");
                    page[at] ^= bit;
                }
            }
        }
    }

    #[test]
    fn unaligned_pages_work_with_every_width() {
        let mut bytes = vec![0x5A; PAGE_SIZE + 64];
        for width in Width::all() {
            for offset in 0..64 {
                bytes.fill(0xA5);
                bytes[offset..][..PAGE_SIZE].fill(0x5A);
                let page = bytes[offset..].first_chunk().unwrap();
                assert!(width.repeats(page, 0x5A5A_5A5A_5A5A_5A5A), "{width:?}, {offset}");
            }
        }
    }
}
