//! Checks that the parts of any slot content are within the page and do not overlap, and that
//! adding a part never overwrites existing ones.

use softswap_engine::codec::compressed_slot::{self, MAX_PARTS, SlotPacker};

const PAGE_BYTES: usize = 4096;

/// The format stores its tables at the start and the end of the page.
fn page_of(input: &[u8]) -> [u8; PAGE_BYTES] {
    let mut page = [0; PAGE_BYTES];
    let front = input.len().min(PAGE_BYTES) / 2;
    page[..front].copy_from_slice(&input[..front]);
    let back = &input[front..input.len().min(PAGE_BYTES)];
    page[PAGE_BYTES - back.len()..].copy_from_slice(back);
    page
}

pub(crate) fn run(input: &[u8]) {
    let page = page_of(input);
    let mut end = page.as_ptr() as usize;
    for number in 0..=u8::MAX {
        let Ok((tag, bytes)) = compressed_slot::part(&page, number) else { continue };
        assert!(usize::from(number) < MAX_PARTS && tag < 16 && !bytes.is_empty());
        assert!(bytes.as_ptr() as usize >= end, "part {number} overlaps the previous one");
        end = bytes.as_ptr_range().end as usize;
        assert!(end <= page.as_ptr_range().end as usize);
    }
    // Add the lines of the input as parts.
    let (mut page, mut packer) = ([0; PAGE_BYTES], SlotPacker::default());
    let mut added = Vec::new();
    for bytes in input.split(|byte| *byte == b'\n') {
        let tag = bytes.first().map_or(0, |byte| byte & 15);
        if let Some(number) = packer.add(&mut page, tag, bytes) {
            assert_eq!(usize::from(number), added.len());
            added.push((tag, bytes));
        }
    }
    for (number, expected) in (0..).zip(&added) {
        assert_eq!(compressed_slot::part(&page, number), Ok(*expected));
    }
}
