//! What a stream is about to touch: windows, and the pieces they are read in.
//!
//! Both fit into one word, so that they can be handed on without a lock.

use crate::page::PageNo;

/// A stream's first window in the background.
pub const FIRST_WINDOW: usize = 8;
/// Most pages of a piece: what is read at once, a bounce buffer's worth (256 KiB).
/// Half of that costs the processors more for each page, and gains nothing.
pub const PIECE_PAGES: usize = crate::bounce::MAX_PAGES;
const BORN_BITS: u32 = 14;

/// Which way a stream goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Towards higher addresses.
    Up,
    /// Towards lower ones.
    Down,
}

/// Pages that a stream is about to touch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// The marker: the page that the stream reaches first.
    pub marker: PageNo,
    /// How many pages, the marker included. Below [`FIRST_WINDOW`] nothing was
    /// asked for yet, and these are the faults that led here.
    pub pages: usize,
    /// Which way the stream goes.
    pub direction: Direction,
}

impl Window {
    /// The window after this one, twice as long up to `most`. `None` where page
    /// numbers end.
    pub(crate) fn next(self, most: usize) -> Option<Window> {
        let marker = self.onward(self.pages as u64)?;
        Some(Window { marker, pages: (2 * self.pages).min(most), ..self })
    }

    /// The page so many steps on from the marker.
    pub(crate) fn onward(self, steps: u64) -> Option<PageNo> {
        match self.direction {
            Direction::Up => self.marker.checked_add(steps),
            Direction::Down => self.marker.checked_sub(steps),
        }
    }

    /// Whether it was asked for, not only expected.
    #[must_use]
    pub fn is_asked_for(self) -> bool {
        self.pages >= FIRST_WINDOW
    }

    /// What is to be read, what the stream reaches first first.
    pub(crate) fn pieces(self) -> impl Iterator<Item = Piece> {
        let steps = (0..self.pages).step_by(PIECE_PAGES);
        steps.map_while(move |step| {
            let pages = (self.pages - step).min(PIECE_PAGES);
            let near = self.onward(step as u64)?;
            Some(match self.direction {
                Direction::Up => {
                    Piece { first: near, pages, marker: Marker::at(step, Marker::First) }
                }
                Direction::Down => {
                    // Down to the first page, if it is so near.
                    let pages = pages.min(near as usize + 1);
                    let first = near + 1 - pages as u64;
                    Piece { first, pages, marker: Marker::at(step, Marker::Last) }
                }
            })
        })
    }

    pub(crate) fn to_bits(self, born: u64) -> u64 {
        let down = u64::from(self.direction == Direction::Down);
        let born = born & ((1 << BORN_BITS) - 1);
        self.marker << 24 | (self.pages as u64) << 16 | born << 2 | down << 1 | 1
    }

    pub(crate) fn from_bits(bits: u64) -> Option<Window> {
        let direction = if bits & 2 == 0 { Direction::Up } else { Direction::Down };
        let pages = (bits >> 16) as usize & 0xff;
        (bits & 1 == 1).then_some(Window { marker: bits >> 24, pages, direction })
    }

    pub(crate) fn age(bits: u64, now: u64) -> u64 {
        now.wrapping_sub(bits >> 2) & ((1 << BORN_BITS) - 1)
    }
}

/// Where the marker of a window lies in a piece of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Marker {
    Elsewhere,
    First,
    Last,
}

impl Marker {
    /// Only the piece that is reached first has it.
    fn at(step: usize, end: Marker) -> Marker {
        if step == 0 { end } else { Marker::Elsewhere }
    }
}

/// Pages of a window that are read at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// The lowest.
    pub first: PageNo,
    /// How many.
    pub pages: usize,
    marker: Marker,
}

impl Piece {
    /// The window's marker, if it is one of them.
    #[must_use]
    pub fn marker(self) -> Option<PageNo> {
        match self.marker {
            Marker::Elsewhere => None,
            Marker::First => Some(self.first),
            Marker::Last => Some(self.first + self.pages as u64 - 1),
        }
    }

    pub(crate) fn to_bits(self) -> u64 {
        self.first << 24 | (self.pages as u64) << 8 | self.marker as u64
    }

    pub(crate) fn from_bits(bits: u64) -> Piece {
        let marker = match bits & 0xff {
            0 => Marker::Elsewhere,
            1 => Marker::First,
            _ => Marker::Last,
        };
        Piece { first: bits >> 24, pages: (bits >> 8) as usize & 0xffff, marker }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pieces(marker: PageNo, pages: usize, direction: Direction) -> Vec<(PageNo, usize)> {
        let pieces = Window { marker, pages, direction }.pieces();
        pieces.map(|piece| (piece.first, piece.pages)).collect()
    }

    #[test]
    fn a_window_is_read_from_its_near_end() {
        assert_eq!(pieces(100, 128, Direction::Up), [(100, 64), (164, 64)]);
        assert_eq!(pieces(100, 8, Direction::Up), [(100, 8)]);
        assert_eq!(pieces(200, 100, Direction::Down), [(137, 64), (101, 36)]);
        assert_eq!(pieces(100, 128, Direction::Down), [(37, 64), (0, 37)], "not below page 0");
        assert_eq!(pieces(63, 128, Direction::Down), [(0, 64)]);
    }

    #[test]
    fn the_marker_is_where_the_stream_comes_from() {
        for direction in [Direction::Up, Direction::Down] {
            let window = Window { marker: 500, pages: 128, direction };
            let markers: Vec<_> = window.pieces().map(Piece::marker).collect();
            assert_eq!(markers, [Some(500), None], "{direction:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_handed_on_is_what_it_was(marker in 0..1_u64 << 40, pages in 1..256_usize, up: bool) {
            let direction = if up { Direction::Up } else { Direction::Down };
            let it = Window { marker, pages, direction };
            prop_assert_eq!(Window::from_bits(it.to_bits(marker)), Some(it));
            prop_assert_eq!(Window::age(it.to_bits(marker), marker + 700), 700);
            for piece in it.pieces() {
                prop_assert_eq!(Piece::from_bits(piece.to_bits()), piece);
            }
        }

        /// Each page once, whatever the length.
        #[test]
        fn pieces_make_up_the_window(marker in 0..1000_u64, pages in 1..256_usize, up: bool) {
            let direction = if up { Direction::Up } else { Direction::Down };
            let all = pieces(marker, pages, direction);
            let mut found: Vec<_> = all
                .iter()
                .flat_map(|(first, pages)| *first..*first + *pages as u64)
                .collect();
            found.sort_unstable();
            let it = Window { marker, pages, direction };
            let mut expected: Vec<_> = (0..pages as u64).map_while(|step| it.onward(step)).collect();
            expected.sort_unstable();
            prop_assert_eq!(found, expected);
        }
    }
}
