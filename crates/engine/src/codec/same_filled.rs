//! The same-filled check. A page of equal words is stored as that word in its entry if the word can
//! be encoded in 58 bits.
//!
//! Comparing the first and last word rejects nearly all other pages before a sequential read.

use softswap_sys::simd::Width;

const PAGE_BYTES: usize = 4096;
const WORD_BYTES: usize = 8;

pub(crate) const CODE_BITS: u32 = 58;
const PAYLOAD_BITS: u32 = CODE_BITS - 2;
const PAYLOAD_MASK: u64 = (1 << PAYLOAD_BITS) - 1;

/// Kinds of words that can be encoded, in the code's two top bits.
const SIGN_EXTENDED: u64 = 0;
const HIGH_BITS: u64 = 1;
const REPEATED: u64 = 2;

pub fn same_filled_word(page: &[u8; PAGE_BYTES]) -> Option<u64> {
    same_filled_by(Width::widest(), page)
}

fn same_filled_by(width: Width, page: &[u8; PAGE_BYTES]) -> Option<u64> {
    let (words, _) = page.as_chunks::<WORD_BYTES>();
    let word = u64::from_ne_bytes(words[0]);
    if u64::from_ne_bytes(words[words.len() - 1]) != word {
        return None;
    }
    width.repeats(page, word).then_some(word)
}

/// Wider stores would save 20 ns of the microseconds that installing the page takes.
pub fn fill(page: &mut [u8; PAGE_BYTES], word: u64) {
    let (words, _) = page.as_chunks_mut::<WORD_BYTES>();
    words.fill(word.to_ne_bytes());
}

/// Encodes `word` in [`CODE_BITS`] bits if it is of a common kind: a small signed number, an
/// address, a number with a zero low byte (doubles such as 1.0), or a 32-bit value repeated.
pub fn encode(word: u64) -> Option<u64> {
    let unused_bits = u64::BITS - PAYLOAD_BITS;
    let (kind, payload) = if ((word << unused_bits) as i64 >> unused_bits) as u64 == word {
        (SIGN_EXTENDED, word & PAYLOAD_MASK)
    } else if word.trailing_zeros() >= unused_bits {
        (HIGH_BITS, word >> unused_bits)
    } else if word >> 32 == word & u64::from(u32::MAX) {
        (REPEATED, word >> 32)
    } else {
        return None;
    };
    Some(kind << PAYLOAD_BITS | payload)
}

pub(crate) fn decode(code: u64) -> u64 {
    let unused_bits = u64::BITS - PAYLOAD_BITS;
    let payload = code & PAYLOAD_MASK;
    match code >> PAYLOAD_BITS {
        SIGN_EXTENDED => ((payload << unused_bits) as i64 >> unused_bits) as u64,
        HIGH_BITS => payload << unused_bits,
        kind => {
            debug_assert_eq!(kind, REPEATED, "{code:#x} was never encoded");
            payload << 32 | payload
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn same_filled_plainly(page: &[u8; PAGE_BYTES]) -> Option<u64> {
        let words: Vec<u64> =
            page.chunks(8).map(|bytes| u64::from_ne_bytes(bytes.try_into().unwrap())).collect();
        words.iter().all(|&word| word == words[0]).then_some(words[0])
    }

    #[test]
    fn fresh_page_is_zero_filled() {
        assert_eq!(same_filled_word(&[0; PAGE_BYTES]), Some(0));
    }

    #[test]
    fn any_differing_byte_is_detected() {
        for at in 0..PAGE_BYTES {
            let mut page = [0x5A; PAGE_BYTES];
            page[at] ^= 1;
            for width in Width::all() {
                assert_eq!(same_filled_by(width, &page), None, "{width:?}, byte {at}");
            }
        }
    }

    #[test]
    fn common_fill_words_have_codes() {
        let words = [
            0,
            1,
            u64::MAX,
            -4096i64 as u64,
            0x7fff_ffff_f000,
            1.0f64.to_bits(),
            (-2.5f64).to_bits(),
            0xDEAD_BEEF_DEAD_BEEF,
            0x0101_0101_0101_0101,
            u64::from(1.0f32.to_bits()) << 32 | u64::from(1.0f32.to_bits()),
        ];
        for word in words {
            let code = encode(word).unwrap_or_else(|| panic!("{word:#x} has no code"));
            assert!(code < 1 << CODE_BITS);
            assert_eq!(decode(code), word);
        }
    }

    #[test]
    fn uncodable_word_has_no_code() {
        assert_eq!(encode(0x0123_4567_89AB_CDEF), None);
        assert_eq!(encode(0.1f64.to_bits()), None);
    }

    /// Words of every kind that can be encoded, and words just outside each range.
    fn any_word() -> impl Strategy<Value = u64> {
        prop_oneof![
            any::<u64>(),
            any::<i64>().prop_map(|word| (word >> 8) as u64),
            any::<i64>().prop_map(|word| (word >> 7) as u64),
            any::<u64>().prop_map(|word| word << 8),
            any::<u64>().prop_map(|word| word << 7),
            any::<u32>().prop_map(|half| u64::from(half) << 32 | u64::from(half)),
        ]
    }

    proptest! {
        #[test]
        fn result_equals_scalar_loop(
            word in any_word(),
            flips in prop::collection::vec((0..PAGE_BYTES, any::<u8>()), 0..3),
        ) {
            let mut page = [0; PAGE_BYTES];
            fill(&mut page, word);
            for (at, mask) in flips {
                page[at] ^= mask;
            }
            for width in Width::all() {
                prop_assert_eq!(same_filled_by(width, &page), same_filled_plainly(&page));
            }
        }

        #[test]
        fn filled_pages_are_same_filled(word in any::<u64>()) {
            let mut page = [0x77; PAGE_BYTES];
            fill(&mut page, word);
            prop_assert_eq!(same_filled_word(&page), Some(word));
        }

        #[test]
        fn code_round_trips(word in any_word()) {
            if let Some(code) = encode(word) {
                prop_assert!(code < 1 << CODE_BITS);
                prop_assert_eq!(decode(code), word);
            } else {
                prop_assert!((word as i64) >= 1 << 55 || (word as i64) < -(1 << 55));
                prop_assert!(word & 0xFF != 0 && word >> 32 != word & 0xFFFF_FFFF);
            }
        }
    }
}
