//! Parsers of data in swap areas: headers, existing content, and extents.

use crate::numbers;
use softswap_engine::store::swap::contents::recognise;
use softswap_engine::store::swap::header::{HEADER_OFFSET, Header, label_field};
use softswap_sys::fiemap::{self, FileExtent};
use softswap_sys::{PAGE_SIZE, block_map, file_layout};

pub(crate) fn header(input: &[u8]) {
    let Some((size, head)) = input.split_first_chunk::<2>() else { return };
    let storage_pages = 1_u64 << (size[0] % 40) | u64::from(size[1]);
    if let Ok(text) = std::str::from_utf8(head)
        && let Some(field) = label_field(text)
    {
        assert!(field.starts_with(text.as_bytes()));
    }
    let Ok(found) = Header::parse(head, storage_pages) else { return };
    assert!(found.pages() <= storage_pages && found.usable_pages() > 0);
    assert!(found.bad_pages.is_sorted_by(|a, b| a < b));
    assert!(found.bad_pages.iter().all(|bad| (1..=found.last_page).contains(bad)));
    assert!(found.label_text().is_none_or(|label| !label.is_empty()));
    let mut page = [0xA5; PAGE_SIZE];
    found.write_to(&mut page);
    assert!(page[..HEADER_OFFSET].iter().all(|byte| *byte == 0xA5));
    assert_eq!(Header::parse(&page, storage_pages), Ok(found));
}

pub(crate) fn contents(input: &[u8]) {
    let Some((at, bytes)) = input.split_first_chunk::<2>() else { return };
    let mut head = vec![0; usize::from(u16::from_le_bytes(*at))];
    head.extend_from_slice(bytes);
    for magic in recognise(&head) {
        assert_eq!(head[magic.offset..][..magic.bytes.len()], *magic.bytes);
    }
}

pub(crate) fn extents(input: &[u8]) {
    let mut numbers = numbers(input);
    let Some(file_bytes) = numbers.next() else { return };
    let mut found = Vec::new();
    let mut refused = 0;
    while let (Some(gap), Some(physical), Some(length), Some(flags)) =
        (numbers.next(), numbers.next(), numbers.next(), numbers.next())
    {
        // Most extents follow the previous one. Some have an arbitrary position.
        let end = found.last().map_or(0, FileExtent::end);
        let logical = if flags & 0x4000_0000 == 0 { end.wrapping_add(gap) } else { gap };
        let next = FileExtent::new(logical, physical, length, flags as u32);
        match fiemap::following(end, next) {
            Ok(next) => found.push(next),
            Err(_) => refused += 1,
        }
    }
    assert!(found.is_sorted_by(|a, b| a.end() <= b.logical), "{refused} were refused");
    let bytes: u64 = found.iter().map(|extent| extent.length).sum();
    let (mapped_bytes, hole_bytes) = softswap_bench::parsers::extents(file_bytes, &found);
    assert_eq!(mapped_bytes, bytes);
    assert!(hole_bytes <= file_bytes.max(found.last().map_or(0, FileExtent::end)));
    if let Ok(map) = block_map::check_layout(&found, file_bytes / PAGE_SIZE as u64) {
        let pages: u64 = map.iter().map(|extent| extent.pages).sum();
        assert_eq!(pages, file_bytes / PAGE_SIZE as u64);
        assert!(map.len() <= found.len());
    }
    if let Ok(pieces) = file_layout::check_layout(&found, file_bytes) {
        assert!(pieces <= found.len() as u64 && file_bytes <= bytes);
    }
}
