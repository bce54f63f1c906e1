//! Compressed slots: several compressed pages in one page of the swap area, in the pool's format.
//! This saves writes and slots.
//!
//! ```text
//!  byte 0-1          number of parts, little-endian
//!  byte 2-           the parts' bytes, one after the other
//!  ...
//!  last two bytes    the first part: length (12 bits), tag (4 bits above)
//!  before them       the second part, and so on
//! ```
//!
//! The page is sealed like any other. The parser nevertheless checks all bounds.

const PAGE_BYTES: usize = 4096;
const COUNT_BYTES: usize = 2;
const ENTRY_BYTES: usize = 2;
const LENGTH_BITS: u32 = 12;
const LENGTH_MASK: u16 = (1 << LENGTH_BITS) - 1;

pub const MAX_PARTS: usize = 15;
/// Maximum size of a part: the whole page minus its table.
pub(crate) const MAX_PART_BYTES: usize = PAGE_BYTES - COUNT_BYTES - ENTRY_BYTES;

const _: () = assert!(MAX_PART_BYTES <= LENGTH_MASK as usize);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the slot has no part {part}")]
pub struct NoPart {
    pub(crate) part: usize,
}

/// Fill level of a slot to which parts are added.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SlotPacker {
    count: usize,
    content_bytes: usize,
}

impl SlotPacker {
    pub const FULL: SlotPacker = SlotPacker { count: MAX_PARTS, content_bytes: 0 };

    pub fn fits(&self, part_bytes: usize) -> bool {
        let to = COUNT_BYTES + self.content_bytes + part_bytes;
        let table = ENTRY_BYTES * (self.count + 1);
        to + table <= PAGE_BYTES && self.count < MAX_PARTS
    }

    /// Appends a part to `page`, which must hold the earlier parts, and returns its number. If the
    /// part does not fit, returns `None` and changes nothing.
    pub fn add(&mut self, page: &mut [u8; PAGE_BYTES], tag: u8, bytes: &[u8]) -> Option<u8> {
        if bytes.is_empty() || !self.fits(bytes.len()) {
            return None;
        }
        debug_assert!(tag < 16);
        let from = COUNT_BYTES + self.content_bytes;
        let entry = PAGE_BYTES - ENTRY_BYTES * (self.count + 1);
        page[from..from + bytes.len()].copy_from_slice(bytes);
        let word = u16::from(tag) << LENGTH_BITS | bytes.len() as u16;
        page[entry..entry + ENTRY_BYTES].copy_from_slice(&word.to_le_bytes());
        let part = self.count as u8;
        self.count += 1;
        self.content_bytes += bytes.len();
        page[..COUNT_BYTES].copy_from_slice(&(self.count as u16).to_le_bytes());
        Some(part)
    }
}

/// Returns the tag and the bytes of one part of a page.
pub fn part(page: &[u8], part: u8) -> Result<(u8, &[u8]), NoPart> {
    let index = usize::from(part);
    page.first_chunk().and_then(|page| find(page, index)).ok_or(NoPart { part: index })
}

fn find(page: &[u8; PAGE_BYTES], index: usize) -> Option<(u8, &[u8])> {
    let count = usize::from(u16::from_le_bytes(*page.first_chunk()?));
    if index >= count || count > MAX_PARTS {
        return None;
    }
    let entry = |index: usize| {
        let at = PAGE_BYTES - ENTRY_BYTES * (index + 1);
        u16::from_le_bytes([page[at], page[at + 1]])
    };
    let from: usize = (0..index).map(|before| usize::from(entry(before) & LENGTH_MASK)).sum();
    let from = COUNT_BYTES + from;
    let word = entry(index);
    let to = from + usize::from(word & LENGTH_MASK);
    let table = PAGE_BYTES - ENTRY_BYTES * count;
    (from < to && to <= table).then(|| ((word >> LENGTH_BITS) as u8, &page[from..to]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn two_halves_share_a_slot_and_longest_part_fills_one() {
        const HALF: usize = MAX_PART_BYTES / 2 - ENTRY_BYTES / 2;
        let mut page = [0xEE; PAGE_BYTES];
        let mut compressor = SlotPacker::default();
        assert_eq!(compressor.add(&mut page, 1, &[1; HALF]), Some(0));
        assert_eq!(compressor.add(&mut page, 2, &[2; HALF]), Some(1));
        assert_eq!(compressor.add(&mut page, 3, &[3; 1]), None);
        assert_eq!(part(&page, 0), Ok((1, &[1; HALF][..])));
        assert_eq!(part(&page, 1), Ok((2, &[2; HALF][..])));
        assert_eq!(part(&page, 2), Err(NoPart { part: 2 }));
        let mut compressor = SlotPacker::default();
        assert_eq!(compressor.add(&mut page, 4, &[4; MAX_PART_BYTES + 1]), None);
        assert_eq!(compressor.add(&mut page, 4, &[4; MAX_PART_BYTES]), Some(0));
        assert_eq!(compressor.add(&mut page, 5, &[5; 1]), None);
        assert_eq!(part(&page, 0), Ok((4, &[4; MAX_PART_BYTES][..])));
    }

    #[test]
    fn zero_page_has_no_parts() {
        assert!((0..=255).all(|number| part(&[0; PAGE_BYTES], number).is_err()));
    }

    proptest! {
        #[test]
        fn added_parts_are_found(
            parts in prop::collection::vec((0..16u8, prop::collection::vec(any::<u8>(), 0..900)), 0..40),
        ) {
            let mut page = [0x5A; PAGE_BYTES];
            let mut compressor = SlotPacker::default();
            let mut added = Vec::new();
            for (tag, bytes) in &parts {
                let before = compressor;
                match compressor.add(&mut page, *tag, bytes) {
                    Some(number) => {
                        prop_assert_eq!(usize::from(number), added.len());
                        added.push((*tag, bytes));
                    }
                    None => prop_assert_eq!(compressor, before),
                }
                for (number, (tag, bytes)) in (0..).zip(&added) {
                    prop_assert_eq!(part(&page, number), Ok((*tag, &bytes[..])));
                }
            }
            prop_assert!(part(&page, added.len() as u8).is_err());
            prop_assert!(added.len() <= MAX_PARTS);
        }
    }
}
