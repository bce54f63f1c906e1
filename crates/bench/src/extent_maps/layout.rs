//! Extents to look up in: made by a rule, or those of a file.

use crate::measure::noise::{below, noise, shuffled};
use crate::rivals::Extent;
use softswap_sys::PAGE_SIZE;
use softswap_sys::fiemap::FileExtent;

const PAGE_BYTES: u64 = PAGE_SIZE as u64;

/// Extents in ascending order and without gaps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) extents: Vec<Extent>,
    pub(crate) pages: u64,
}

/// How long the extents of an area are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lengths {
    /// All alike.
    Equal,
    /// Every magnitude from a page on equally often.
    Skewed,
    /// One or two pages each in one half of the extents, which are the start
    /// of the area, and all the rest of it in the other half.
    Bimodal,
}

impl Lengths {
    pub(crate) const ALL: [Lengths; 3] = [Lengths::Equal, Lengths::Skewed, Lengths::Bimodal];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Lengths::Equal => "equal",
            Lengths::Skewed => "skewed",
            Lengths::Bimodal => "bimodal",
        }
    }

    /// What each of `count` extents gets of the area, in parts of no unit.
    fn weight(self, index: usize, count: usize, number: u64) -> f64 {
        match self {
            Lengths::Equal => 1.0,
            Lengths::Skewed => 2_f64.powf(below(number, 1800) as f64 / 100.0),
            Lengths::Bimodal if index < count / 2 => 0.0,
            Lengths::Bimodal => 1.0,
        }
    }
}

impl Layout {
    /// `count` extents of `pages` pages in all. On the device they follow each
    /// other in an order without pattern, so that none continues another.
    pub(crate) fn made(count: usize, pages: u64, lengths: Lengths) -> Layout {
        let weights: Vec<f64> = (0..count)
            .zip(noise(7))
            .map(|(index, number)| lengths.weight(index, count, number))
            .collect();
        let all: f64 = weights.iter().sum();
        // Everybody gets a page or two first, the weights share out the rest.
        let least = |index: usize| match lengths {
            Lengths::Bimodal => 1 + index as u64 % 2,
            _ => 1,
        };
        let rest = pages.saturating_sub((0..count).map(least).sum()) as f64;
        let mut so_far = 0.0;
        let mut shared_out = 0;
        let sizes: Vec<u64> = weights
            .iter()
            .enumerate()
            .map(|(index, weight)| {
                so_far += weight;
                let until = (rest * (so_far / all)).round() as u64;
                let share = until - shared_out;
                shared_out = until;
                least(index) + share
            })
            .collect();
        let mut blocks = vec![0; count];
        let mut next_block = 0;
        for index in shuffled(count, 11) {
            blocks[index] = next_block;
            next_block += sizes[index] + 1;
        }
        Layout::of(sizes.into_iter().zip(blocks))
    }

    /// The whole pages of a file, as an area takes them: holes are left out,
    /// and so are extents that hold no whole page.
    pub(crate) fn of_file(extents: &[FileExtent]) -> Layout {
        Layout::of(extents.iter().filter_map(|extent| {
            let first = extent.logical.next_multiple_of(PAGE_BYTES);
            let end = extent.end() / PAGE_BYTES * PAGE_BYTES;
            let physical = extent.physical + (first - extent.logical);
            (first < end).then(|| ((end - first) / PAGE_BYTES, physical / PAGE_BYTES))
        }))
    }

    /// Extents of these lengths at these blocks, in pages. One that continues
    /// the one before it becomes part of it.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_layouts_have_the_extents_and_pages_asked_for() {
        for lengths in Lengths::ALL {
            for count in [1, 2, 7, 2000] {
                let layout = Layout::made(count, 1_000_000, lengths);
                assert_eq!((layout.extents.len(), layout.pages), (count, 1_000_000), "{lengths:?}");
                assert!(layout.extents.iter().all(|extent| extent.nr_pages > 0));
                let ends = layout.extents.iter().map(|extent| extent.start_page + extent.nr_pages);
                let starts = layout.extents.iter().skip(1).map(|extent| extent.start_page);
                assert!(starts.zip(ends).all(|(start, end)| start == end));
            }
        }
    }

    #[test]
    fn lengths_are_what_they_are_called() {
        let longest_and_median = |lengths| {
            let layout = Layout::made(2000, 10_000_000, lengths);
            let mut sizes: Vec<_> = layout.extents.iter().map(|extent| extent.nr_pages).collect();
            sizes.sort_unstable();
            (sizes[1999], sizes[1000], sizes[500])
        };
        assert_eq!(longest_and_median(Lengths::Equal), (5000, 5000, 5000));
        let (longest, median, _) = longest_and_median(Lengths::Skewed);
        assert!(longest > 100 * median, "{longest}, {median}");
        let (longest, _, quarter) = longest_and_median(Lengths::Bimodal);
        assert!(longest > 9_000 && quarter <= 2, "{longest}, {quarter}");
    }
}
