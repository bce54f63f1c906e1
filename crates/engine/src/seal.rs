//! The seal on what leaves DRAM: page-out computes it over a page as it enters
//! the bounce buffer, page-in checks it before the page is installed.
//!
//! Slot and generation go in beside the content, because a device can return
//! intact bytes that are nevertheless wrong: those of another slot (a
//! misdirected write), or of the slot's previous tenant (a lost write).

use crc32fast::Hasher;

/// The seal of `page` in `slot` at `generation`.
///
/// CRC-32 tells apart any two inputs that differ within 32 consecutive bits
/// only: so always another slot of the same 16 TiB, always another generation,
/// always a flipped bit; any other difference but for one in 2^32.
#[must_use]
pub fn checksum(slot: u64, generation: u32, page: &[u8]) -> u32 {
    let mut place = [0; 12];
    place[..8].copy_from_slice(&slot.to_le_bytes());
    place[8..].copy_from_slice(&generation.to_le_bytes());
    let mut hasher = Hasher::new();
    hasher.update(&place);
    hasher.update(page);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn page() -> Vec<u8> {
        (0..4096u32).map(|i| ((i * i) >> 5) as u8).collect()
    }

    #[test]
    fn any_flipped_bit_breaks_the_seal() {
        let mut page = page();
        let sealed = checksum(7, 1, &page);
        for bit in 0..page.len() * 8 {
            page[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(checksum(7, 1, &page), sealed, "bit {bit}");
            page[bit / 8] ^= 1 << (bit % 8);
        }
        assert_eq!(checksum(7, 1, &page), sealed);
    }

    #[test]
    fn a_shorter_page_breaks_the_seal() {
        assert_ne!(checksum(0, 0, &[0; 4096]), checksum(0, 0, &[0; 4095]));
    }

    proptest! {
        #[test]
        fn another_slot_breaks_the_seal(slot: u32, other: u32, generation: u32) {
            prop_assume!(slot != other);
            let page = page();
            prop_assert_ne!(
                checksum(slot.into(), generation, &page),
                checksum(other.into(), generation, &page)
            );
        }

        #[test]
        fn another_generation_breaks_the_seal(slot: u64, generation: u32, other: u32) {
            prop_assume!(generation != other);
            let page = page();
            prop_assert_ne!(checksum(slot, generation, &page), checksum(slot, other, &page));
        }
    }
}
