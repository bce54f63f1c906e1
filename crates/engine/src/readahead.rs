//! Which pages come next: neighbours of a page that is brought in, and windows
//! further on that are brought in before they are touched.
//!
//! Pages leave in address order, so neighbours in memory are mostly neighbours
//! in the swap area too, and one larger read brings them all for little more
//! than the price of one. How far to look is told by what lies behind: a
//! stream leaves resident pages behind it, so its window doubles with each
//! read, up to [`MAX_NEIGHBOURS`]; a random touch reads its page alone.
//!
//! A stream that goes on is followed: its next window is asked for in the
//! background, all but the page that the stream reaches first. That page is the
//! marker: touching it is a fault like any other, and tells that the window has
//! been reached, so that the next one, twice as long, can be asked for. A
//! marker that is never touched costs what was brought in for nothing, once:
//! the stream is forgotten with it. (The marker is that of Linux's readahead,
//! there a flag of a cached page.)

use crate::page::{Claim, PageNo, PageTable, Place};
use softswap_sys::futex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Most pages that a fault reads at once, the touched one included.
pub const MAX_NEIGHBOURS: usize = 32;
/// Most pages that are read at once: a bounce buffer's worth, 256 KiB.
pub const MAX_PAGES: usize = 64;
/// Most pages of a window that is brought in in the background.
const MAX_WINDOW: usize = 128;
/// Of a budget of so many pages, a window takes one.
const BUDGET_SHARE: usize = 128;
/// So many resident pages behind a touched one make a stream.
const STREAM_PAGES: usize = 4;
/// From this on, what a window brings in can be relied on to be touched.
const RELIABLE_PAGES: usize = 8;
/// A stream's first window in the background.
const FIRST_WINDOW: usize = 8;
/// Streams that are followed at the same time, at most: each has its place by
/// its marker's number.
const MARKERS: usize = 64;
/// Windows asked for and not yet begun.
const QUEUE: usize = 16;

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
    /// How many pages, the marker included.
    pub pages: usize,
    /// Which way the stream goes.
    pub direction: Direction,
}

impl Window {
    /// The window after this one, twice as long up to `most`. `None` at the end
    /// of `pages`.
    fn next(self, most: usize, pages: PageNo) -> Option<Window> {
        let marker = self.onward(self.pages as u64)?;
        let longer = (2 * self.pages).min(most).max(1);
        (marker < pages).then_some(Window { marker, pages: longer, ..self })
    }

    /// The page so many steps on from the marker.
    #[must_use]
    pub fn onward(self, steps: u64) -> Option<PageNo> {
        match self.direction {
            Direction::Up => self.marker.checked_add(steps),
            Direction::Down => self.marker.checked_sub(steps),
        }
    }

    fn to_bits(self) -> u64 {
        let down = u64::from(self.direction == Direction::Down);
        self.marker << 16 | (self.pages as u64) << 2 | down << 1 | 1
    }

    fn from_bits(bits: u64) -> Option<Window> {
        let direction = if bits & 2 == 0 { Direction::Up } else { Direction::Down };
        let pages = (bits >> 2) as usize & 0x3fff;
        (bits & 1 == 1).then_some(Window { marker: bits >> 16, pages, direction })
    }
}

/// How a touched page lies in a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Touch {
    /// In none that is followed.
    Alone,
    /// It was a marker: what follows it is being brought in.
    Marker(Window),
}

/// The streams that are followed, and what is asked for on their behalf.
#[derive(Debug)]
pub struct Streams {
    markers: [AtomicU64; MARKERS],
    queue: [AtomicU64; QUEUE],
    /// Whether somebody brings in what is asked for.
    is_served: AtomicBool,
    /// Bumped to wake whoever does.
    kick: AtomicU32,
    is_asleep: AtomicBool,
    most: usize,
}

impl Streams {
    /// For a budget of so many pages.
    #[must_use]
    pub fn new(budget_pages: usize) -> Streams {
        Streams {
            markers: [const { AtomicU64::new(0) }; MARKERS],
            queue: [const { AtomicU64::new(0) }; QUEUE],
            is_served: AtomicBool::new(false),
            kick: AtomicU32::new(0),
            is_asleep: AtomicBool::new(false),
            most: (budget_pages / BUDGET_SHARE).clamp(FIRST_WINDOW, MAX_WINDOW),
        }
    }

    /// Says whether somebody brings in what is asked for: only then is it.
    pub fn serve(&self, on: bool) {
        self.is_served.store(on, Ordering::Relaxed);
    }

    /// Whether the touched page is a marker; it is none from then on.
    pub fn reach(&self, page: PageNo) -> Touch {
        let place = &self.markers[place_of(page)];
        let bits = place.load(Ordering::Relaxed);
        match Window::from_bits(bits) {
            Some(window)
                if window.marker == page
                    && place
                        .compare_exchange(bits, 0, Ordering::Relaxed, Ordering::Relaxed)
                        .is_ok() =>
            {
                Touch::Marker(window)
            }
            _ => Touch::Alone,
        }
    }

    /// Asks for what follows a touched page that has come in with `arrived` pages
    /// (itself included), where it goes on as a stream. Returns whether another
    /// stream's marker had to go, untouched.
    pub fn follow(
        &self,
        pages: &PageTable<'_>,
        page: PageNo,
        end: PageNo,
        touch: Touch,
        arrived: usize,
    ) -> bool {
        if !self.is_served.load(Ordering::Relaxed) {
            return false;
        }
        let next = match touch {
            Touch::Marker(window) => window.next(self.most, end),
            Touch::Alone => beginning(pages, page, end, arrived),
        };
        next.is_some_and(|window| self.ask(window))
    }

    fn ask(&self, window: Window) -> bool {
        let bits = window.to_bits();
        let free = |place: &AtomicU64| {
            place.compare_exchange(0, bits, Ordering::Release, Ordering::Relaxed).is_ok()
        };
        // As much is under way as can be? Then the stream goes on by itself.
        if !self.queue.iter().any(free) {
            return false;
        }
        let displaced = self.markers[place_of(window.marker)].swap(bits, Ordering::Relaxed);
        self.kick.fetch_add(1, Ordering::AcqRel);
        if self.is_asleep.swap(false, Ordering::AcqRel) {
            futex::wake_all(&self.kick);
        }
        displaced != 0
    }

    /// What changes when something is asked for.
    #[must_use]
    pub fn kick(&self) -> u32 {
        self.kick.load(Ordering::Acquire)
    }

    /// A window that was asked for, if there is one.
    #[must_use]
    pub fn take(&self) -> Option<Window> {
        let mut asked = self.queue.iter().map(|place| place.swap(0, Ordering::Acquire));
        Window::from_bits(asked.find(|bits| *bits != 0)?)
    }

    /// Sleeps until something is asked for after `seen`, or for so long.
    pub fn sleep(&self, seen: u32, ns: u64) {
        self.is_asleep.store(true, Ordering::Release);
        if self.kick() == seen {
            futex::wait(&self.kick, seen, Some(ns));
        }
        self.is_asleep.store(false, Ordering::Relaxed);
    }
}

fn place_of(page: PageNo) -> usize {
    // Streams often start at multiples of large powers of two.
    (page ^ page >> 6 ^ page >> 12 ^ page >> 18) as usize % MARKERS
}

/// The first window to bring in in the background, where a touched page goes on
/// from resident ones behind it.
fn beginning(pages: &PageTable<'_>, page: PageNo, end: PageNo, arrived: usize) -> Option<Window> {
    let is_resident = |page: PageNo| page < end && pages.load(page).is_resident();
    let (below, above) = (page.wrapping_sub(1), page + arrived as u64);
    let direction = match (is_resident(below), is_resident(above)) {
        (true, false) => Direction::Up,
        (false, true) => Direction::Down,
        _ => return None,
    };
    let pages_behind = match direction {
        Direction::Up => run(STREAM_PAGES, |step| is_resident(page.wrapping_sub(step + 1))),
        Direction::Down => run(STREAM_PAGES, |step| is_resident(above + step)),
    };
    let marker = if direction == Direction::Up { above } else { below };
    (pages_behind == STREAM_PAGES && marker < end).then_some(Window {
        marker,
        pages: FIRST_WINDOW,
        direction,
    })
}

fn run(most: usize, holds: impl Fn(u64) -> bool) -> usize {
    (0..most as u64).take_while(|step| holds(*step)).count()
}

/// Whether touches go on so long that those to come can be relied on.
#[must_use]
pub fn is_stream(window: usize) -> bool {
    window >= RELIABLE_PAGES
}

/// How many pages to read at once when `page` is touched.
#[must_use]
pub fn neighbours(pages: &PageTable<'_>, page: PageNo) -> usize {
    let behind = (1..MAX_NEIGHBOURS as u64)
        .take_while(|back| page >= *back && pages.load(page - back).is_resident())
        .count();
    behind + 1
}

/// Claims up to `claims.len()` pages after `page` that lie in the slots after
/// `slot`. Returns how many.
pub fn claim_following<'t>(
    pages: &PageTable<'t>,
    page: PageNo,
    slot: u64,
    last: PageNo,
    claims: &mut [Option<Claim<'t>>],
) -> usize {
    for (index, claim) in claims.iter_mut().enumerate() {
        let ahead = index as u64 + 1;
        if page + ahead > last {
            return index;
        }
        let seen = pages.load(page + ahead);
        if seen.place() != (Place::Slot { slot: slot + ahead }) {
            return index;
        }
        // Never waits: the toucher of this page has work to do.
        *claim = pages.try_claim(page + ahead, seen);
        if claim.is_none() {
            return index;
        }
    }
    claims.len()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use softswap_sys::memory::reserve_u64;

    fn table(places: &[Place]) -> PageTable<'static> {
        let pages = PageTable::new(reserve_u64(places.len() + 64).unwrap());
        for (page, place) in (0..).zip(places) {
            pages.claim(page).publish(*place);
        }
        pages
    }

    const RESIDENT: Place = Place::resident(1);
    const END: PageNo = 1000;

    fn served() -> Streams {
        let streams = Streams::new(1 << 20);
        streams.serve(true);
        streams
    }

    fn window(marker: PageNo, pages: usize, direction: Direction) -> Window {
        Window { marker, pages, direction }
    }

    #[test]
    fn the_window_grows_with_the_stream_and_is_one_for_a_random_touch() {
        let pages = table(&[RESIDENT, Place::Vacant, RESIDENT, RESIDENT, RESIDENT]);
        assert_eq!(neighbours(&pages, 0), 1);
        assert_eq!(neighbours(&pages, 2), 1);
        assert_eq!(neighbours(&pages, 5), 4);
        let pages = table(&[RESIDENT; 100]);
        assert_eq!(neighbours(&pages, 100), MAX_NEIGHBOURS);
    }

    #[test]
    fn only_pages_whose_slots_follow_are_claimed() {
        let pages = table(&[
            Place::Slot { slot: 10 },
            Place::Slot { slot: 11 },
            Place::Slot { slot: 12 },
            Place::Slot { slot: 40 },
        ]);
        let mut claims = [const { None }; 8];
        assert_eq!(claim_following(&pages, 0, 10, 100, &mut claims), 2);
        assert!(pages.load(1).is_busy() && pages.load(2).is_busy() && !pages.load(3).is_busy());
        claims.fill_with(|| None);
        assert!(!pages.load(1).is_busy(), "a dropped claim leaves the page where it was");
        let held = pages.claim(1);
        assert_eq!(claim_following(&pages, 0, 10, 100, &mut claims), 0);
        drop(held);
        assert_eq!(claim_following(&pages, 0, 10, 1, &mut claims), 1);
    }

    #[test]
    fn a_stream_is_followed_up_and_down_and_each_marker_doubles_the_window() {
        for (touched, step) in [(10, 1_i64), (20, -1)] {
            let mut places = vec![Place::Vacant; 100];
            let behind = if step > 0 { 6..11 } else { 20..25 };
            places[behind].fill(RESIDENT);
            let (pages, streams) = (table(&places), served());
            assert!(!streams.follow(&pages, touched, END, Touch::Alone, 1));
            let direction = if step > 0 { Direction::Up } else { Direction::Down };
            let mut expected = window(touched.wrapping_add_signed(step), FIRST_WINDOW, direction);
            for round in 0..2 {
                assert_eq!(streams.take(), Some(expected), "round {round}");
                let reached = streams.reach(expected.marker);
                assert_eq!(reached, Touch::Marker(expected));
                assert_eq!(streams.reach(expected.marker), Touch::Alone, "reached once");
                streams.follow(&pages, expected.marker, END, reached, 1);
                let Some(marker) = expected.onward(expected.pages as u64) else {
                    assert_eq!(streams.take(), None, "the stream has come to the first page");
                    break;
                };
                expected = window(marker, 2 * expected.pages, direction);
            }
        }
    }

    #[test]
    fn a_window_is_never_longer_than_the_budget_allows() {
        let (pages, streams) = (table(&[RESIDENT]), Streams::new(20 * BUDGET_SHARE));
        streams.serve(true);
        let mut next = window(50, 8, Direction::Up);
        let mut lengths = Vec::new();
        for _ in 0..4 {
            streams.follow(&pages, next.marker, END, Touch::Marker(next), 1);
            next = streams.take().unwrap();
            lengths.push(next.pages);
        }
        assert_eq!(lengths, [16, 20, 20, 20]);
    }

    #[test]
    fn what_is_no_stream_is_not_followed_nor_is_any_when_nobody_serves() {
        let mut places = vec![Place::Vacant; 100];
        places[7..10].fill(RESIDENT);
        places[20..50].fill(RESIDENT);
        let (pages, streams) = (table(&places), served());
        // Too little behind; nothing; in the middle of resident pages.
        for touched in [10, 60, 30] {
            streams.follow(&pages, touched, END, Touch::Alone, 1);
            assert_eq!(streams.take(), None, "{touched}");
        }
        streams.follow(&pages, 50, 51, Touch::Alone, 1);
        assert_eq!(streams.take(), None, "nothing lies beyond the end");
        streams.serve(false);
        streams.follow(&pages, 50, END, Touch::Alone, 1);
        assert_eq!(streams.take(), None);
    }

    #[test]
    fn a_full_queue_asks_for_no_more() {
        let (pages, streams) = (table(&[RESIDENT]), served());
        for at in 0..QUEUE as u64 + 5 {
            let reached = window(at * 8, 4, Direction::Up);
            streams.follow(&pages, reached.marker, END, Touch::Marker(reached), 1);
        }
        assert_eq!(std::iter::from_fn(|| streams.take()).count(), QUEUE);
    }

    proptest! {
        #[test]
        fn a_window_is_what_it_was(marker in 0..1_u64 << 40, pages in 1..=MAX_WINDOW, up: bool) {
            let direction = if up { Direction::Up } else { Direction::Down };
            let it = window(marker, pages, direction);
            prop_assert_eq!(Window::from_bits(it.to_bits()), Some(it));
        }
    }
}
