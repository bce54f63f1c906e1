//! Windows of streams, and the requests that read them. Both fit in one word, so they need no lock.

use crate::base::page::PageNo;
use std::iter::StepBy;
use std::ops::Range;

pub(crate) const FIRST_WINDOW: usize = 8;
/// One bounce buffer (256 KiB). Half of that costs more CPU time per page and gains nothing.
pub(crate) const REQUEST_PAGES: usize = crate::store::bounce::MAX_PAGES;

/// Distance between consecutive pages; negative for descending addresses, never zero.
pub(crate) type Stride = i64;
pub(crate) const UP: Stride = 1;
pub(crate) const DOWN: Stride = -1;
/// 8 MiB.
pub(crate) const MAX_STRIDE: u64 = (1 << (STRIDE_BITS - 1)) - 1;

// Fields of a word. The largest address window (12 TiB) and a stride beyond it have < 2^32 pages.
const PAGE_BITS: u32 = 32;
const LENGTH_BITS: u32 = 8;
const STRIDE_BITS: u32 = 12;
const CREATED_BITS: u32 = 11;
/// Base-2 logarithm of the age resolution, in faults.
const CREATED_SHIFT: u32 = 3;
const _: () = assert!(1 + CREATED_BITS + STRIDE_BITS + LENGTH_BITS + PAGE_BITS <= 64);

struct Fields(u64);

impl Fields {
    fn take(&mut self, bits: u32) -> u64 {
        let field = self.0 & ((1 << bits) - 1);
        self.0 >>= bits;
        field
    }

    fn take_stride(&mut self) -> Stride {
        let unused = Stride::BITS - STRIDE_BITS;
        ((self.take(STRIDE_BITS) << unused) as Stride) >> unused
    }

    fn of(fields: &[(u64, u32)]) -> u64 {
        let put = |word, (field, bits): &(u64, u32)| word << bits | (field & ((1 << bits) - 1));
        fields.iter().rev().fold(0, put)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadaheadWindow {
    /// The page that the stream reaches first.
    pub(crate) marker: PageNo,
    /// With the marker. Below [`FIRST_WINDOW`] it counts the faults of a possible stream.
    pub(crate) pages: usize,
    pub(crate) stride: Stride,
}

impl ReadaheadWindow {
    /// Doubles the window up to `most`. `None` if page numbers overflow.
    pub(crate) fn next(self, most: usize) -> Option<ReadaheadWindow> {
        let marker = self.page_after(self.pages as u64)?;
        Some(ReadaheadWindow { marker, pages: (2 * self.pages).min(most), ..self })
    }

    pub(crate) fn page_after(self, steps: u64) -> Option<PageNo> {
        self.marker.checked_add_signed(self.stride * steps as Stride)
    }

    pub(crate) fn has(self, page: PageNo) -> bool {
        let ahead = page as Stride - self.marker as Stride;
        let ahead = if self.stride < 0 { -ahead } else { ahead };
        let stride = self.stride.abs();
        // Check the range first, because the division is slow.
        (0..self.pages as Stride * stride).contains(&ahead) && ahead % stride == 0
    }

    pub(crate) fn is_requested(self) -> bool {
        self.pages >= FIRST_WINDOW
    }

    /// Returns the requests in the order in which the stream reaches them.
    pub(crate) fn requests(self) -> impl Iterator<Item = ReadRequest> {
        let stride = self.stride.unsigned_abs();
        let steps = (0..self.pages).step_by(REQUEST_PAGES);
        steps.map_while(move |step| {
            let pages = (self.pages - step).min(REQUEST_PAGES);
            let near = self.page_after(step as u64)?;
            Some(if self.stride > 0 {
                ReadRequest { first: near, pages, stride, marker: Marker::at(step, Marker::First) }
            } else {
                // The request may not extend below page 0.
                let pages = pages.min((near / stride) as usize + 1);
                let first = near - (pages as u64 - 1) * stride;
                ReadRequest { first, pages, stride, marker: Marker::at(step, Marker::Last) }
            })
        })
    }

    pub(crate) fn to_bits(self, created_at: u64) -> u64 {
        Fields::of(&[
            (1, 1),
            (created_at >> CREATED_SHIFT, CREATED_BITS),
            (self.stride as u64, STRIDE_BITS),
            (self.pages as u64, LENGTH_BITS),
            (self.marker, PAGE_BITS),
        ])
    }

    pub(crate) fn from_bits(bits: u64) -> Option<ReadaheadWindow> {
        let mut fields = Fields(bits);
        if fields.take(1) == 0 {
            return None;
        }
        fields.take(CREATED_BITS);
        let (stride, pages) = (fields.take_stride(), fields.take(LENGTH_BITS) as usize);
        Some(ReadaheadWindow { marker: fields.take(PAGE_BITS), pages, stride })
    }

    pub(crate) fn age(bits: u64, now: u64) -> u64 {
        ((now >> CREATED_SHIFT).wrapping_sub(bits >> 1) & ((1 << CREATED_BITS) - 1))
            << CREATED_SHIFT
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Marker {
    Elsewhere,
    First,
    Last,
}

impl Marker {
    /// Only the request that is reached first contains the marker.
    fn at(step: usize, end: Marker) -> Marker {
        if step == 0 { end } else { Marker::Elsewhere }
    }
}

/// Ascending.
pub(crate) type Pages = StepBy<Range<PageNo>>;

/// Pages of a window that are read together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadRequest {
    first: PageNo,
    pages: usize,
    stride: u64,
    marker: Marker,
}

impl ReadRequest {
    pub(crate) fn range(self) -> Range<PageNo> {
        self.first..self.first + (self.pages as u64 - 1) * self.stride + 1
    }

    pub fn pages(self, range: Range<PageNo>) -> Pages {
        let Range { start, end } = self.range();
        let skipped = range.start.saturating_sub(start).next_multiple_of(self.stride);
        (start + skipped..end.min(range.end)).step_by(self.stride as usize)
    }

    pub(crate) fn stride(self) -> u64 {
        self.stride
    }

    /// `None` if another request contains the window's marker.
    pub fn marker(self) -> Option<PageNo> {
        match self.marker {
            Marker::Elsewhere => None,
            Marker::First => Some(self.first),
            Marker::Last => Some(self.first + (self.pages as u64 - 1) * self.stride),
        }
    }

    pub(crate) fn to_bits(self) -> u64 {
        Fields::of(&[
            (self.marker as u64, 2),
            (self.stride, STRIDE_BITS),
            (self.pages as u64, LENGTH_BITS),
            (self.first, PAGE_BITS),
        ])
    }

    pub(crate) fn from_bits(bits: u64) -> ReadRequest {
        let mut fields = Fields(bits);
        let marker = match fields.take(2) {
            0 => Marker::Elsewhere,
            1 => Marker::First,
            _ => Marker::Last,
        };
        let (stride, pages) = (fields.take(STRIDE_BITS), fields.take(LENGTH_BITS) as usize);
        ReadRequest { first: fields.take(PAGE_BITS), pages, stride, marker }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn requests(marker: PageNo, pages: usize, stride: Stride) -> Vec<(PageNo, usize)> {
        let requests = ReadaheadWindow { marker, pages, stride }.requests();
        requests.map(|request| (request.first, request.pages)).collect()
    }

    #[test]
    fn window_is_read_from_near_end() {
        assert_eq!(requests(100, 128, UP), [(100, 64), (164, 64)]);
        assert_eq!(requests(100, 8, UP), [(100, 8)]);
        assert_eq!(requests(100, 128, 10), [(100, 64), (740, 64)]);
        assert_eq!(requests(200, 100, DOWN), [(137, 64), (101, 36)]);
        assert_eq!(requests(100, 128, DOWN), [(37, 64), (0, 37)], "no request begins below page 0");
        assert_eq!(requests(63, 128, DOWN), [(0, 64)]);
        assert_eq!(requests(1000, 100, -10), [(370, 64), (10, 36)]);
        assert_eq!(requests(45, 8, -10), [(5, 5)]);
    }

    #[test]
    fn marker_is_at_near_end() {
        for stride in [UP, DOWN, 30, -30] {
            let window = ReadaheadWindow { marker: 5000, pages: 128, stride };
            let markers: Vec<_> = window.requests().map(ReadRequest::marker).collect();
            assert_eq!(markers, [Some(5000), None], "{stride}");
        }
    }

    #[test]
    fn piece_iterates_pages() {
        let window = ReadaheadWindow { marker: 10, pages: 8, stride: 3 };
        let request = window.requests().next().unwrap();
        assert_eq!(request.range(), 10..32);
        let pages = |range| request.pages(range).collect::<Vec<_>>();
        assert_eq!(pages(0..20), [10, 13, 16, 19]);
        assert_eq!(pages(20..1000), [22, 25, 28, 31]);
        assert_eq!(pages(13..17), [13, 16]);
        assert_eq!(pages(0..5), [0; 0]);
        assert_eq!(pages(32..1000), [0; 0]);
    }

    fn strides() -> impl Strategy<Value = Stride> {
        let most = MAX_STRIDE as Stride;
        (-most..=most).prop_filter("strides are not zero", |stride| *stride != 0)
    }

    proptest! {
        #[test]
        fn window_encoding_round_trips(
            marker in 0..3_u64 << 30, pages in 1..256_usize, stride in strides(),
        ) {
            let it = ReadaheadWindow { marker, pages, stride };
            prop_assert_eq!(ReadaheadWindow::from_bits(it.to_bits(marker)), Some(it));
            prop_assert_eq!(ReadaheadWindow::age(it.to_bits(marker), marker + 704), 704);
            for request in it.requests() {
                prop_assert_eq!(ReadRequest::from_bits(request.to_bits()), request);
            }
        }

        #[test]
        fn pieces_cover_window(
            marker in 0..100_000_u64, pages in 1..256_usize, stride in strides(),
        ) {
            let it = ReadaheadWindow { marker, pages, stride };
            let mut found: Vec<_> = it.requests().flat_map(|request| request.pages(0..u64::MAX)).collect();
            found.sort_unstable();
            let mut expected: Vec<_> = (0..pages as u64).map_while(|step| it.page_after(step)).collect();
            prop_assert!(expected.iter().all(|page| it.has(*page)));
            let nearby = marker.saturating_sub(300)..marker + 300;
            prop_assert!(nearby.into_iter().all(|page| it.has(page) == expected.contains(&page)));
            expected.sort_unstable();
            prop_assert_eq!(found, expected);
        }
    }
}
