//! Which pages come next: neighbours of a page that is brought in, and windows
//! further on that are brought in before they are touched.
//!
//! Several pages are read at once for little more than the price of one, wherever
//! in the swap area they lie. How far to look is told by what lies behind: a
//! stream leaves resident pages behind it, so its window doubles with each
//! read, up to [`MAX_NEIGHBOURS`]; a random touch reads its page alone. The more
//! of all pages are resident, the more of them must lie behind it in a row: some
//! always do by chance.
//!
//! A stream that goes on is followed. Each fault leaves a marker on the pages
//! that would be touched next if it were part of one; two faults on markers in a
//! row make a stream. One whose pages lie further apart is told by its last touches
//! ([`Strides`]), and by a fault on the marker that these lead to. Its next window is
//! asked for in the background, by requests
//! that are read side by side. The page that the stream reaches first is the
//! window's marker: it stays out, so that touching it is a fault and tells that
//! the window has been reached, and the next one, twice as long, can be asked for.
//! Pages that are there already are passed over: on them no marker would tell.
//! What is read of it is cached meanwhile ([`ReadAheadPages`](crate::store::read_ahead_pages)). A marker that is not
//! reached while so many other faults happen costs what was brought in for
//! nothing, once: touched later, by chance, it is a page like any other. Where that
//! happens much, windows get shorter ([`Accuracy`]). (The
//! marker is that of Linux's readahead, there a flag of a cached page.)

use crate::base::page::{Claim, PageNo, PageTable, SlotCopy};
use crate::policy::mechanism::{Mechanism, Without};
use crate::policy::prefetch::accuracy::Accuracy;
use crate::policy::prefetch::strides::Strides;
use crate::policy::prefetch::window::{
    DOWN, FIRST_WINDOW, REQUEST_PAGES, ReadRequest, Stride, UP, Window,
};
use crossbeam_queue::ArrayQueue;
use softswap_sys::futex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Most pages that a fault reads at once, the touched one included.
pub(crate) const MAX_NEIGHBOURS: usize = 32;
/// Most pages of a window that is brought in in the background: two requests, so that
/// with the window that follows four are under way.
const MAX_WINDOW: usize = 2 * REQUEST_PAGES;
/// Of a budget of so many pages, a window takes one.
const BUDGET_SHARE: usize = 32;
/// And the next windows of all streams: as much of each is there before.
const ALL_SHARE: usize = 16;
/// So many faults in a row make a stream.
const STREAM_FAULTS: usize = 3;
/// What is met by chance less than once in so many times tells something.
const SELDOM: usize = 16;
/// From this on, what a window brings in can be relied on to be touched.
const RELIABLE_PAGES: usize = 8;
/// Markers at the same time, at most: each has its place by its page's number.
const MARKERS: usize = 256;
/// Pages that are there already, at most, which a stream is expected to pass over.
const PASSED_OVER: u64 = REQUEST_PAGES as u64;
/// A marker is old after so many faults.
const LIFE_FAULTS: u64 = 1024;
/// Of a budget of so many pages, what is asked for and not yet begun takes one.
const QUEUE_SHARE: usize = 8;
/// Most requests asked for and not yet begun.
const MAX_REQUESTS: usize = 64;

/// Windows that are remembered as under way: two of each of many streams.
const UNDER_WAY: usize = 32;
/// After so many faults all of a window is there, or will not come.
const ARRIVAL_FAULTS: u64 = LIFE_FAULTS / 4;

/// How a touched page lies in a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Touch {
    /// In none that is followed.
    Alone,
    /// In a window that is under way: its touch is early, and the beginning of nothing.
    Early,
    /// It was a marker: what follows it is being brought in.
    Marker(Window),
}

impl Touch {
    /// Whether the page was the marker of a window that was asked for.
    #[must_use]
    pub fn is_asked_for(self) -> bool {
        matches!(self, Touch::Marker(window) if window.is_asked_for())
    }
}

/// Where a stream may go: what is there already it passes over, and nobody is told.
/// So a marker is always on a page whose touch is a fault.
pub struct Ahead<F> {
    /// The first page that there is not.
    pub end: PageNo,
    /// Whether a page is in memory.
    pub is_there: F,
}

impl<F: Fn(PageNo) -> bool> Ahead<F> {
    /// The window, begun at its first page that is missing. `None` where there is
    /// none before the end, or none near.
    fn first_missing(&self, window: Window) -> Option<Window> {
        let steps = (0..PASSED_OVER).map_while(|step| window.onward(step));
        let mut pages = steps.take_while(|page| *page < self.end);
        pages.find(|page| !(self.is_there)(*page)).map(|marker| Window { marker, ..window })
    }
}

/// Pages of a window, at most, in a budget of so many.
fn longest_window(budget_pages: usize) -> usize {
    (budget_pages / BUDGET_SHARE).clamp(FIRST_WINDOW, MAX_WINDOW)
}

/// The streams that are followed, and what is asked for on their behalf.
#[derive(Debug)]
pub struct Readahead {
    without: Without,
    markers: [AtomicU64; MARKERS],
    /// Requests made for and not yet begun, in turn.
    queue: ArrayQueue<u64>,
    /// Faults so far, for the age of markers.
    faults: AtomicU64,
    /// Whether somebody brings in what is asked for.
    is_served: AtomicBool,
    /// Bumped to wake those who do.
    kick: AtomicU32,
    /// How many of them sleep.
    asleep: AtomicU32,
    /// Pages of all streams' next windows together, at most.
    all: AtomicUsize,
    /// Requests made for and not yet begun, at most.
    most_requests: AtomicUsize,
    /// What became of windows so far: they are as long as that allows.
    accuracy: Accuracy,
    /// The last touches that belonged to no stream.
    strides: Strides,
    /// The windows asked for last, in turn.
    under_way: [AtomicU64; UNDER_WAY],
    asked: AtomicUsize,
}

impl Readahead {
    /// For a budget of so many pages.
    #[must_use]
    pub(crate) fn new(budget_pages: usize, without: Without) -> Readahead {
        let readahead = Readahead {
            without,
            markers: [const { AtomicU64::new(0) }; MARKERS],
            queue: ArrayQueue::new(MAX_REQUESTS),
            faults: AtomicU64::new(0),
            is_served: AtomicBool::new(false),
            kick: AtomicU32::new(0),
            asleep: AtomicU32::new(0),
            all: AtomicUsize::new(0),
            most_requests: AtomicUsize::new(1),
            accuracy: Accuracy::new(FIRST_WINDOW, longest_window(budget_pages)),
            strides: Strides::new(),
            under_way: [const { AtomicU64::new(0) }; UNDER_WAY],
            asked: AtomicUsize::new(0),
        };
        readahead.resize(budget_pages);
        readahead
    }

    /// The budget has so many pages from now on.
    pub(crate) fn resize(&self, budget_pages: usize) {
        let requests = (budget_pages / QUEUE_SHARE / REQUEST_PAGES).clamp(1, MAX_REQUESTS);
        self.most_requests.store(requests, Ordering::Relaxed);
        self.all.store(budget_pages / ALL_SHARE, Ordering::Relaxed);
        self.accuracy.resize(longest_window(budget_pages));
    }

    /// Says whether somebody brings in what is asked for: only then is it.
    pub fn serve(&self, on: bool) {
        let is_on = on && !self.without.has(Mechanism::Readahead);
        self.is_served.store(is_on, Ordering::Relaxed);
    }

    /// Whether the touched page is a marker; it is none from then on.
    pub fn reach(&self, page: PageNo) -> Touch {
        if !self.is_served.load(Ordering::Relaxed) {
            return Touch::Alone;
        }
        let now = self.faults.fetch_add(1, Ordering::Relaxed);
        let place = &self.markers[place_of(page)];
        let bits = place.load(Ordering::Relaxed);
        let window = Window::from_bits(bits).filter(|window| window.marker == page);
        let is_it =
            |_: &_| place.compare_exchange(bits, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        let Some(window) = window.filter(is_it) else { return self.unmarked(page, now) };
        // Reached late, it was not read for nothing, but perhaps by chance.
        let is_young = Window::age(bits, now) < LIFE_FAULTS;
        if is_young { Touch::Marker(window) } else { Touch::Alone }
    }

    /// How a page lies that is no marker.
    fn unmarked(&self, page: PageNo, now: u64) -> Touch {
        let is_under_way = |place: &AtomicU64| {
            let bits = place.load(Ordering::Relaxed);
            Window::age(bits, now) < ARRIVAL_FAULTS
                && Window::from_bits(bits).is_some_and(|window| window.has(page))
        };
        if self.under_way.iter().any(is_under_way) { Touch::Early } else { Touch::Alone }
    }

    /// How many of the pages from `page` on, up to `most`, come before a marker
    /// that is yet to be reached: brought in with others, it would never be.
    #[must_use]
    pub fn up_to_marker(&self, page: PageNo, most: usize) -> usize {
        (1..most).find(|ahead| self.is_marker(page + *ahead as u64)).unwrap_or(most)
    }

    /// Whether a page is a marker that is yet to be reached.
    #[must_use]
    pub(crate) fn is_marker(&self, page: PageNo) -> bool {
        if !self.is_served.load(Ordering::Relaxed) {
            return false;
        }
        let now = self.faults.load(Ordering::Relaxed);
        let bits = self.markers[place_of(page)].load(Ordering::Relaxed);
        let is_young = Window::age(bits, now) < LIFE_FAULTS;
        Window::from_bits(bits)
            .is_some_and(|window| window.marker == page && window.is_asked_for() && is_young)
    }

    /// Asks for what comes after a window that its stream has reached, before
    /// anything else is done for the touched page. Returns how many windows of other
    /// streams are known to be lost now; `None` when the touched page
    /// belongs to no window that was asked for. `ahead` tells what may be asked for.
    pub fn go_on(&self, touch: Touch, ahead: &Ahead<impl Fn(PageNo) -> bool>) -> Option<u64> {
        let Touch::Marker(window) = touch else { return None };
        if !window.is_asked_for() {
            return None;
        }
        self.accuracy.reached(window.pages);
        let (others, lost) = self.others();
        // Many streams side by side share what may be there ahead of touches, or they
        // push each other's pages out.
        let all = self.all.load(Ordering::Relaxed);
        let longest = (all / (others + 1)).clamp(FIRST_WINDOW, self.longest());
        let next = window.next(longest).and_then(|next| ahead.first_missing(next));
        Some(lost + next.map_or(0, |next| u64::from(self.ask(next))))
    }

    fn longest(&self) -> usize {
        if self.without.has(Mechanism::Accuracy) {
            self.accuracy.most()
        } else {
            self.accuracy.longest()
        }
    }

    /// How many streams are followed, and how many windows have not been reached in
    /// time: they are forgotten.
    fn others(&self) -> (usize, u64) {
        let now = self.faults.load(Ordering::Relaxed);
        let (mut followed, mut lost) = (0, 0);
        for place in &self.markers {
            let bits = place.load(Ordering::Relaxed);
            let Some(window) = Window::from_bits(bits).filter(|it| it.is_asked_for()) else {
                continue;
            };
            if Window::age(bits, now) < LIFE_FAULTS {
                followed += 1;
            } else if place.compare_exchange(bits, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            {
                self.accuracy.lost(window.pages);
                lost += 1;
            }
        }
        (followed, lost)
    }

    /// Marks what would be touched next after `page` that has come in, if it is a
    /// stream's; where it is known to be one, asks for it. Returns how many windows
    /// of other streams are lost for it.
    pub fn expect(
        &self,
        page: PageNo,
        touch: Touch,
        ahead: &Ahead<impl Fn(PageNo) -> bool>,
    ) -> u64 {
        if !self.is_served.load(Ordering::Relaxed) {
            return 0;
        }
        match touch {
            Touch::Early => 0,
            _ if touch.is_asked_for() => 0,
            Touch::Marker(Window { pages, stride, .. }) => {
                self.lead_on(page, stride, pages + 1, ahead)
            }
            Touch::Alone => {
                // Its touches so far make it as good as known.
                let strided = match self.without.has(Mechanism::Strides) {
                    true => None,
                    false => self.strides.note(page),
                };
                let lost = strided.map_or(0, |it| self.lead_on(page, it, STREAM_FAULTS - 1, ahead));
                lost + self.lead_on(page, UP, 1, ahead) + self.lead_on(page, DOWN, 1, ahead)
            }
        }
    }

    /// As [`Readahead::expect`], of a page of which it is known that those after it are next: its
    /// first touch makes a stream.
    pub(crate) fn follow(
        &self,
        page: PageNo,
        touch: Touch,
        ahead: &Ahead<impl Fn(PageNo) -> bool>,
    ) -> u64 {
        match touch {
            Touch::Alone if self.is_served.load(Ordering::Relaxed) => {
                self.lead_on(page, UP, STREAM_FAULTS, ahead)
            }
            _ => self.expect(page, touch, ahead),
        }
    }

    /// Marks the page that comes next after so many faults of what may be a stream, or
    /// asks for a window where they are enough. As [`Readahead::expect`].
    fn lead_on(
        &self,
        page: PageNo,
        stride: Stride,
        faults: usize,
        ahead: &Ahead<impl Fn(PageNo) -> bool>,
    ) -> u64 {
        let pages = if faults < STREAM_FAULTS { faults } else { FIRST_WINDOW };
        let Some(marker) = page.checked_add_signed(stride) else { return 0 };
        let Some(window) = ahead.first_missing(Window { marker, pages, stride }) else { return 0 };
        u64::from(if window.is_asked_for() { self.ask(window) } else { self.mark(window) })
    }

    /// Asks for a window. Whether another one is lost for it.
    fn ask(&self, window: Window) -> bool {
        let requests = window.requests().map(ReadRequest::to_bits);
        let has_room = || self.queue.len() < self.most_requests.load(Ordering::Relaxed);
        let asked =
            requests.take_while(|request| has_room() && self.queue.push(*request).is_ok()).count();
        // As much is under way as can be? Then the stream goes on by itself.
        if asked == 0 {
            return false;
        }
        // What there was no room for will not come.
        let pages = window.pages.min(asked * REQUEST_PAGES);
        let displaced = self.mark(window);
        let under_way = Window { pages, ..window };
        let now = self.faults.load(Ordering::Relaxed);
        let place = self.asked.fetch_add(1, Ordering::Relaxed) % UNDER_WAY;
        self.under_way[place].store(under_way.to_bits(now), Ordering::Relaxed);
        // In this order: who is about to sleep counts itself and then looks.
        self.kick.fetch_add(1, Ordering::SeqCst);
        let asleep = self.asleep.load(Ordering::SeqCst);
        if asleep > 0 {
            futex::wake(&self.kick, asleep.min(asked as u32));
        }
        displaced
    }

    /// Sets a window's marker. Whether one of another window that was asked for
    /// had to go: for one that was not, only when it is old.
    fn mark(&self, window: Window) -> bool {
        let now = self.faults.load(Ordering::Relaxed);
        let place = &self.markers[place_of(window.marker)];
        let bits = place.load(Ordering::Relaxed);
        let before = Window::from_bits(bits).filter(|before| before.is_asked_for());
        let is_young = Window::age(bits, now) < LIFE_FAULTS;
        if before.is_some() && is_young && !window.is_asked_for() {
            return false;
        }
        place.store(window.to_bits(now), Ordering::Relaxed);
        // Asked for anew it is the same window.
        if let Some(before) = before.filter(|before| before.marker != window.marker) {
            self.accuracy.lost(before.pages);
        }
        before.is_some()
    }

    /// What changes when something is asked for.
    #[must_use]
    pub(crate) fn kick(&self) -> u32 {
        self.kick.load(Ordering::SeqCst)
    }

    /// The request that was asked for first, if there is one.
    #[must_use]
    pub fn take(&self) -> Option<ReadRequest> {
        self.queue.pop().map(ReadRequest::from_bits)
    }

    /// Wakes all that sleep, though nothing is asked for.
    pub(crate) fn wake(&self) {
        self.kick.fetch_add(1, Ordering::SeqCst);
        futex::wake_all(&self.kick);
    }

    /// Whether all that has been asked for is done, by `threads` of them: each decrements
    /// before it takes, so what is taken is seen here before the queue is seen empty.
    pub(crate) fn is_idle(&self, threads: usize) -> bool {
        self.queue.is_empty() && self.asleep.load(Ordering::SeqCst) as usize == threads
    }

    /// Sleeps until something is asked for after `seen`, or for so long.
    pub(crate) fn sleep(&self, seen: u32, ns: u64) {
        self.asleep.fetch_add(1, Ordering::SeqCst);
        futex::wait(&self.kick, seen, Some(ns));
        self.asleep.fetch_sub(1, Ordering::Relaxed);
    }
}

fn place_of(page: PageNo) -> usize {
    // Streams often start at multiples of large powers of two.
    (page ^ page >> 6 ^ page >> 12 ^ page >> 18) as usize % MARKERS
}

/// Whether touches go on so long that those to come can be relied on.
#[must_use]
pub fn is_stream(window: usize) -> bool {
    window >= RELIABLE_PAGES
}

/// How many pages to read at once when `page` is touched, where so many of all pages
/// are resident as `resident_of_all` says: as many as lie behind it side by side, where that is no
/// chance, or as many as one looks at.
#[must_use]
pub fn neighbours(
    pages: &PageTable<'_>,
    page: PageNo,
    resident_of_all: impl FnOnce() -> (usize, usize),
) -> usize {
    let behind = (1..MAX_NEIGHBOURS as u64)
        .take_while(|back| page >= *back && pages.load(page - back).is_resident())
        .count();
    let tells = match behind {
        0 => false,
        _ if behind == MAX_NEIGHBOURS - 1 => true,
        _ => {
            let (resident, all) = resident_of_all();
            !is_chance(behind, resident, all)
        }
    };
    if tells { behind + 1 } else { 1 }
}

/// Whether so many resident pages in a row are found often wherever one looks.
fn is_chance(run: usize, resident: usize, all: usize) -> bool {
    const ONE: usize = 1 << 16;
    let share = (resident.saturating_mul(ONE) / all.max(1)).min(ONE);
    let chance = (0..run).fold(ONE, |chance, _| chance * share / ONE);
    chance * SELDOM > ONE
}

/// Claims a page that is in the swap area and that nobody has. Never waits: who
/// brings others in has work to do.
#[must_use]
pub fn claim_stored<'t>(pages: &PageTable<'t>, page: PageNo) -> Option<(SlotCopy, Claim<'t>)> {
    let seen = pages.load(page);
    let stored = seen.place().in_slot()?;
    pages.try_claim(page, seen).map(|claim| (stored, claim))
}

#[cfg(all(test, not(feature = "loom")))]
#[path = "readahead_tests.rs"]
mod tests;
