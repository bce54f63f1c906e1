//! Extents made by a rule, or those of a file.

use crate::measure::noise::shuffled;
use softswap_sys::PAGE_SIZE;
use softswap_sys::fiemap::FileExtent;

const PAGE_BYTES: u64 = PAGE_SIZE as u64;

/// Pages that are contiguous on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    /// The first page in the area.
    pub(crate) start_page: u64,
    pub(crate) nr_pages: u64,
    /// The first page on the device.
    pub(crate) start_block: u64,
}

/// Extents in ascending order and without gaps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) extents: Vec<Extent>,
    pub(crate) pages: u64,
}

impl Layout {
    /// Returns `count` extents of `pages` pages in all, of equal lengths. Their order on the device
    /// has no pattern, so that none continues another.
    pub(crate) fn made(count: usize, pages: u64) -> Layout {
        let end = |index: usize| pages * index as u64 / count as u64;
        let sizes: Vec<u64> = (0..count).map(|index| end(index + 1) - end(index)).collect();
        let mut blocks = vec![0; count];
        let mut next_block = 0;
        for index in shuffled(count, 11) {
            blocks[index] = next_block;
            next_block += sizes[index] + 1;
        }
        Layout::of(sizes.into_iter().zip(blocks))
    }

    /// Returns the whole pages of a file, as an area uses them, without holes.
    pub(crate) fn of_file(extents: &[FileExtent]) -> Layout {
        Layout::of(extents.iter().filter_map(|extent| {
            let first = extent.logical.next_multiple_of(PAGE_BYTES);
            let end = extent.end() / PAGE_BYTES * PAGE_BYTES;
            let physical = extent.physical + (first - extent.logical);
            (first < end).then(|| ((end - first) / PAGE_BYTES, physical / PAGE_BYTES))
        }))
    }

    /// Returns extents of these lengths at these blocks, in pages. An extent that continues the one
    /// before it is merged into it.
    fn of(pieces: impl Iterator<Item = (u64, u64)>) -> Layout {
        let mut layout = Layout { extents: Vec::new(), pages: 0 };
        for (nr_pages, start_block) in pieces {
            match layout.extents.last_mut() {
                Some(last) if last.start_block + last.nr_pages == start_block => {
                    last.nr_pages += nr_pages;
                }
                _ => {
                    let start_page = layout.pages;
                    layout.extents.push(Extent { start_page, nr_pages, start_block });
                }
            }
            layout.pages += nr_pages;
        }
        layout
    }
}
