//! Detection of strided access: a column of a matrix, one field of large records.
//!
//! With an unknown stride the next page cannot be marked, so recent touches that belong to no
//! stream are recorded, from all threads. Four equally spaced touches make a stream. Sixteen
//! entries suffice for five interleaved streams. By chance, four of sixteen random touches in a
//! thousand pages are equally spaced once in a few hundred touches; then the predicted page must be
//! touched next, too.

use crate::base::page::PageNo;
use crate::policy::prefetch::window::{MAX_STRIDE, Stride};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

const TOUCHES: usize = 16;
const BEFORE: u64 = 3;

#[derive(Debug)]
pub(crate) struct Strides {
    touched: [AtomicU64; TOUCHES],
    next: AtomicUsize,
}

impl Strides {
    pub(crate) fn new() -> Strides {
        Strides {
            // An empty entry is u64::MAX.
            touched: [const { AtomicU64::new(u64::MAX) }; TOUCHES],
            next: AtomicUsize::new(0),
        }
    }

    /// Returns the smallest stride other than 1 at which this touch follows equally spaced ones.
    pub(crate) fn note(&self, page: PageNo) -> Option<Stride> {
        // Read once, because other threads add touches concurrently.
        let touched = self.touched.each_ref().map(|place| place.load(Relaxed));
        let place = self.next.fetch_add(1, Relaxed) % TOUCHES;
        self.touched[place].store(page, Relaxed);
        let strides = touched.iter().filter_map(|before| stride(*before, page));
        let leads_here = |stride: &Stride| {
            let earlier = (2..=BEFORE).map(|steps| back(page, *stride, steps));
            earlier.into_iter().all(|page| page.is_some_and(|page| touched.contains(&page)))
        };
        strides.filter(leads_here).min_by_key(|stride| stride.unsigned_abs())
    }
}

fn stride(from: PageNo, to: PageNo) -> Option<Stride> {
    let apart = from.abs_diff(to);
    let stride = (2..=MAX_STRIDE).contains(&apart).then_some(apart as Stride)?;
    Some(if from < to { stride } else { -stride })
}

fn back(page: PageNo, stride: Stride, steps: u64) -> Option<PageNo> {
    page.checked_add_signed(-stride * steps as Stride)
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn found(touches: impl IntoIterator<Item = PageNo>) -> Vec<Option<Stride>> {
        let strides = Strides::new();
        touches.into_iter().map(|page| strides.note(page)).collect()
    }

    fn along(first: PageNo, stride: Stride) -> impl Iterator<Item = PageNo> {
        (0..).map(move |step| first.checked_add_signed(stride * step).unwrap())
    }

    #[test]
    fn fourth_equal_stride_is_detected() {
        for stride in [2, -2, 20, -20, MAX_STRIDE as Stride, -(MAX_STRIDE as Stride)] {
            let expected = [None, None, None, Some(stride), Some(stride)];
            assert_eq!(found(along(100_000, stride).take(5)), expected);
        }
    }

    #[test]
    fn adjacent_and_distant_pages_are_no_stride() {
        for stride in [0, 1, -1, MAX_STRIDE as Stride + 1] {
            assert_eq!(found(along(100_000, stride).take(6)), [None; 6], "{stride}");
        }
    }

    #[test]
    fn interleaved_streams_are_distinguished() {
        let mut walks = [(0, 7), (500_000, -30), (1_000_000, 400), (2_000_000, 2)]
            .map(|(first, stride)| (stride, along(first + 100_000, stride)));
        let strides = Strides::new();
        for round in 0..8 {
            for (stride, walk) in &mut walks {
                let expected = (round >= 3).then_some(*stride);
                assert_eq!(strides.note(walk.next().unwrap()), expected, "round {round}");
            }
        }
    }

    #[test]
    fn stride_stops_at_page_zero() {
        assert_eq!(found([1, 3, 5, 7]), [None, None, None, Some(2)]);
        assert_eq!(found([3, 1, 5, 0]), [None; 4]);
    }

    proptest! {
        #[test]
        fn detected_strides_are_correct(touches in prop::collection::vec(0..60_u64, 1..60)) {
            let strides = Strides::new();
            for (index, page) in touches.iter().enumerate() {
                let last = &touches[index.saturating_sub(TOUCHES)..index];
                let leads_here = |stride: Stride| (1..=BEFORE).all(|steps| {
                    back(*page, stride, steps).is_some_and(|page| last.contains(&page))
                });
                let all = (2..60).flat_map(|apart| [apart, -apart]).filter(|s| leads_here(*s));
                let found = strides.note(*page);
                let expected = all.map(Stride::unsigned_abs).min();
                prop_assert_eq!(found.map(Stride::unsigned_abs), expected);
                prop_assert!(found.is_none_or(leads_here));
            }
        }
    }
}
