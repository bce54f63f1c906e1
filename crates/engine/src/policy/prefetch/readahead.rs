//! Readahead: neighbours of a faulting page, and windows of streams that are read before they are
//! touched.
//!
//! Reading several pages costs little more than reading one. Their number follows from the resident
//! pages before the faulting one, so a stream's window doubles with each read, up to
//! [`MAX_NEIGHBOURS`]. The larger the share of resident pages, the longer the run before the page
//! must be, because short runs occur by chance.
//!
//! Longer streams are followed. Each fault leaves markers on the pages that a stream would touch
//! next. Two faults on markers in a row make a stream; larger strides are detected from recent
//! touches ([`Strides`]). The next window of a stream is read in the background. The page that the
//! stream reaches first, its marker, stays absent, so its touch faults and starts the next window,
//! twice as long. Until then its content is cached
//! ([`ReadAheadPages`](crate::store::read_ahead_pages)). A marker that is not reached within a
//! number of faults counts as lost. Linux's readahead has the same marker.

use crate::base::page::{Claim, PageNo, PageTable, SlotCopy};
use crate::policy::mechanism::{Mechanism, Without};
use crate::policy::prefetch::strides::Strides;
use crate::policy::prefetch::window::{
    DOWN, FIRST_WINDOW, REQUEST_PAGES, ReadRequest, ReadaheadWindow, Stride, UP,
};
use crossbeam_queue::ArrayQueue;
use softswap_sys::futex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Pages that a fault reads together, including its own.
pub(crate) const MAX_NEIGHBOURS: usize = 32;
/// Pages of a background window: two requests, four with the next window.
const MAX_WINDOW: usize = 2 * REQUEST_PAGES;
/// Divisor: a window covers at most 1/32 of the budget.
const BUDGET_SHARE: usize = 32;
/// Divisor: the next windows of all streams together cover at most 1/16 of the budget.
const ALL_SHARE: usize = 16;
/// Number of consecutive faults that make a stream.
const STREAM_FAULTS: usize = 3;
/// A marker's index is a hash of its page number.
const MARKERS: usize = 256;
/// Age at which a marker expires, in faults.
const LIFE_FAULTS: u64 = 1024;
/// Divisor: queued requests cover at most 1/8 of the budget.
const QUEUE_SHARE: usize = 8;
const MAX_REQUESTS: usize = 64;

/// Number of windows remembered as in progress: two for each of many streams.
const IN_FLIGHT: usize = 32;
/// Number of faults after which a requested window no longer counts as being read.
const ARRIVAL_FAULTS: u64 = LIFE_FAULTS / 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Touch {
    Isolated,
    /// A touch in a window that is being read, not the start of a stream.
    Early,
    /// A touch of a marker: the following pages are being read.
    Marker(ReadaheadWindow),
}

impl Touch {
    pub fn is_requested(self) -> bool {
        matches!(self, Touch::Marker(window) if window.is_requested())
    }
}

/// Limits of a stream. It skips resident pages, because the touch of a marker must fault.
pub struct Ahead<F> {
    pub end: PageNo,
    pub is_there: F,
}

impl<F: Fn(PageNo) -> bool> Ahead<F> {
    /// Moves the window to its first absent page; `None` if the next pages are all resident.
    fn first_missing(&self, window: ReadaheadWindow) -> Option<ReadaheadWindow> {
        let steps = (0..REQUEST_PAGES as u64).map_while(|step| window.page_after(step));
        let mut pages = steps.take_while(|page| *page < self.end);
        pages
            .find(|page| !(self.is_there)(*page))
            .map(|marker| ReadaheadWindow { marker, ..window })
    }
}

#[derive(Debug)]
pub struct Readahead {
    without: Without,
    markers: [AtomicU64; MARKERS],
    queue: ArrayQueue<u64>,
    /// Counted for the age of markers.
    faults: AtomicU64,
    /// True while threads serve the requests.
    is_served: AtomicBool,
    wakeups: AtomicU32,
    asleep: AtomicU32,
    /// Maximum pages of all streams' next windows together.
    all: AtomicUsize,
    max_requests: AtomicUsize,
    max_window: AtomicUsize,
    strides: Strides,
    /// A ring of the most recent windows.
    in_flight: [AtomicU64; IN_FLIGHT],
    request_count: AtomicUsize,
}

impl Readahead {
    pub(crate) fn new(budget_pages: usize, without: Without) -> Readahead {
        let readahead = Readahead {
            without,
            markers: [const { AtomicU64::new(0) }; MARKERS],
            queue: ArrayQueue::new(MAX_REQUESTS),
            faults: AtomicU64::new(0),
            is_served: AtomicBool::new(false),
            wakeups: AtomicU32::new(0),
            asleep: AtomicU32::new(0),
            all: AtomicUsize::new(0),
            max_requests: AtomicUsize::new(1),
            max_window: AtomicUsize::new(FIRST_WINDOW),
            strides: Strides::new(),
            in_flight: [const { AtomicU64::new(0) }; IN_FLIGHT],
            request_count: AtomicUsize::new(0),
        };
        readahead.resize(budget_pages);
        readahead
    }

    pub(crate) fn resize(&self, budget_pages: usize) {
        let requests = (budget_pages / QUEUE_SHARE / REQUEST_PAGES).clamp(1, MAX_REQUESTS);
        self.max_requests.store(requests, Ordering::Relaxed);
        self.all.store(budget_pages / ALL_SHARE, Ordering::Relaxed);
        let max_window = (budget_pages / BUDGET_SHARE).clamp(FIRST_WINDOW, MAX_WINDOW);
        self.max_window.store(max_window, Ordering::Relaxed);
    }

    pub fn serve(&self, on: bool) {
        let is_on = on && !self.without.has(Mechanism::Readahead);
        self.is_served.store(is_on, Ordering::Relaxed);
    }

    /// Returns the relation of a touched page to streams. Removes its marker.
    pub fn reach(&self, page: PageNo) -> Touch {
        if !self.is_served.load(Ordering::Relaxed) {
            return Touch::Isolated;
        }
        let now = self.faults.fetch_add(1, Ordering::Relaxed);
        let marker = &self.markers[index_of(page)];
        let bits = marker.load(Ordering::Relaxed);
        let window = ReadaheadWindow::from_bits(bits).filter(|window| window.marker == page);
        let was_removed =
            |_: &_| marker.compare_exchange(bits, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        let Some(window) = window.filter(was_removed) else { return self.unmarked(page, now) };
        // Reached late: the window was useful, but the touch may be a coincidence.
        let is_young = ReadaheadWindow::age(bits, now) < LIFE_FAULTS;
        if is_young { Touch::Marker(window) } else { Touch::Isolated }
    }

    fn unmarked(&self, page: PageNo, now: u64) -> Touch {
        let is_under_way = |recorded: &AtomicU64| {
            let bits = recorded.load(Ordering::Relaxed);
            ReadaheadWindow::age(bits, now) < ARRIVAL_FAULTS
                && ReadaheadWindow::from_bits(bits).is_some_and(|window| window.has(page))
        };
        if self.in_flight.iter().any(is_under_way) { Touch::Early } else { Touch::Isolated }
    }

    /// Returns the number of pages from `page` on, up to `most`, before the next marker, which must
    /// not be read because it would not fault.
    pub fn up_to_marker(&self, page: PageNo, most: usize) -> usize {
        (1..most).find(|ahead| self.is_marker(page + *ahead as u64)).unwrap_or(most)
    }

    pub(crate) fn is_marker(&self, page: PageNo) -> bool {
        if !self.is_served.load(Ordering::Relaxed) {
            return false;
        }
        let now = self.faults.load(Ordering::Relaxed);
        let bits = self.markers[index_of(page)].load(Ordering::Relaxed);
        let is_young = ReadaheadWindow::age(bits, now) < LIFE_FAULTS;
        ReadaheadWindow::from_bits(bits)
            .is_some_and(|window| window.marker == page && window.is_requested() && is_young)
    }

    /// Requests the window after the one that its stream has reached. Returns the number of lost
    /// windows of other streams; `None` if the touch did not reach the marker of a requested
    /// window.
    pub fn next_window(&self, touch: Touch, ahead: &Ahead<impl Fn(PageNo) -> bool>) -> Option<u64> {
        let Touch::Marker(window) = touch else { return None };
        if !window.is_requested() {
            return None;
        }
        let (other_streams, lost) = self.other_streams();
        // Concurrent streams would otherwise evict each other's pages.
        let all = self.all.load(Ordering::Relaxed);
        let max_window = self.max_window.load(Ordering::Relaxed);
        let longest = (all / (other_streams + 1)).clamp(FIRST_WINDOW, max_window);
        let next = window.next(longest).and_then(|next| ahead.first_missing(next));
        Some(lost + next.map_or(0, |next| u64::from(self.request(next))))
    }

    /// Counts followed streams, and lost windows, which are removed.
    fn other_streams(&self) -> (usize, u64) {
        let now = self.faults.load(Ordering::Relaxed);
        let (mut followed, mut lost) = (0, 0);
        for marker in &self.markers {
            let bits = marker.load(Ordering::Relaxed);
            if !ReadaheadWindow::from_bits(bits).is_some_and(|window| window.is_requested()) {
                continue;
            }
            if ReadaheadWindow::age(bits, now) < LIFE_FAULTS {
                followed += 1;
            } else if marker.compare_exchange(bits, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            {
                lost += 1;
            }
        }
        (followed, lost)
    }

    /// Marks the pages that would be touched next, or requests them if the stream is known. Returns
    /// the number of windows that other streams lose.
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
            _ if touch.is_requested() => 0,
            Touch::Marker(ReadaheadWindow { pages, stride, .. }) => {
                self.lead_on(page, stride, pages + 1, ahead)
            }
            Touch::Isolated => {
                // Equally spaced recent touches are nearly always a stream.
                let strided = match self.without.has(Mechanism::Strides) {
                    true => None,
                    false => self.strides.note(page),
                };
                let lost = strided.map_or(0, |it| self.lead_on(page, it, STREAM_FAULTS - 1, ahead));
                lost + self.lead_on(page, UP, 1, ahead) + self.lead_on(page, DOWN, 1, ahead)
            }
        }
    }

    /// As [`Readahead::expect`], but a single touch makes a stream.
    pub(crate) fn follow(
        &self,
        page: PageNo,
        touch: Touch,
        ahead: &Ahead<impl Fn(PageNo) -> bool>,
    ) -> u64 {
        match touch {
            Touch::Isolated if self.is_served.load(Ordering::Relaxed) => {
                self.lead_on(page, UP, STREAM_FAULTS, ahead)
            }
            _ => self.expect(page, touch, ahead),
        }
    }

    /// Marks the page expected after `faults` faults, or requests a window if there were enough.
    fn lead_on(
        &self,
        page: PageNo,
        stride: Stride,
        faults: usize,
        ahead: &Ahead<impl Fn(PageNo) -> bool>,
    ) -> u64 {
        let pages = if faults < STREAM_FAULTS { faults } else { FIRST_WINDOW };
        let Some(marker) = page.checked_add_signed(stride) else { return 0 };
        let Some(window) = ahead.first_missing(ReadaheadWindow { marker, pages, stride }) else {
            return 0;
        };
        u64::from(if window.is_requested() { self.request(window) } else { self.mark(window) })
    }

    fn request(&self, window: ReadaheadWindow) -> bool {
        let requests = window.requests().map(ReadRequest::to_bits);
        let has_space = || self.queue.len() < self.max_requests.load(Ordering::Relaxed);
        let request_count =
            requests.take_while(|request| has_space() && self.queue.push(*request).is_ok()).count();
        // The queue is full. The stream continues with faults.
        if request_count == 0 {
            return false;
        }
        let pages = window.pages.min(request_count * REQUEST_PAGES);
        let displaced = self.mark(window);
        let in_flight = ReadaheadWindow { pages, ..window };
        let now = self.faults.load(Ordering::Relaxed);
        let index = self.request_count.fetch_add(1, Ordering::Relaxed) % IN_FLIGHT;
        self.in_flight[index].store(in_flight.to_bits(now), Ordering::Relaxed);
        // A thread about to sleep increments `asleep` and then checks `wakeups`.
        self.wakeups.fetch_add(1, Ordering::SeqCst);
        let asleep = self.asleep.load(Ordering::SeqCst);
        if asleep > 0 {
            futex::wake(&self.wakeups, asleep.min(request_count as u32));
        }
        displaced
    }

    /// Returns true if the marker replaced that of a requested window. Only a requested window
    /// replaces a young one.
    fn mark(&self, window: ReadaheadWindow) -> bool {
        let now = self.faults.load(Ordering::Relaxed);
        let marker = &self.markers[index_of(window.marker)];
        let bits = marker.load(Ordering::Relaxed);
        let before = ReadaheadWindow::from_bits(bits).filter(|before| before.is_requested());
        let is_young = ReadaheadWindow::age(bits, now) < LIFE_FAULTS;
        if before.is_some() && is_young && !window.is_requested() {
            return false;
        }
        marker.store(window.to_bits(now), Ordering::Relaxed);
        before.is_some()
    }

    /// Returns a value that changes with each request.
    pub(crate) fn wakeups(&self) -> u32 {
        self.wakeups.load(Ordering::SeqCst)
    }

    #[must_use]
    pub fn take(&self) -> Option<ReadRequest> {
        self.queue.pop().map(ReadRequest::from_bits)
    }

    pub(crate) fn wake(&self) {
        self.wakeups.fetch_add(1, Ordering::SeqCst);
        futex::wake_all(&self.wakeups);
    }

    /// A thread decrements `asleep` before it takes a request. So a reader that sees the queue
    /// empty sees the decrement, too.
    pub(crate) fn is_idle(&self, threads: usize) -> bool {
        self.queue.is_empty() && self.asleep.load(Ordering::SeqCst) as usize == threads
    }

    /// Sleeps until a request is made after `seen`, or until `ns` have passed.
    pub(crate) fn sleep(&self, seen: u32, ns: u64) {
        self.asleep.fetch_add(1, Ordering::SeqCst);
        futex::wait(&self.wakeups, seen, Some(ns));
        self.asleep.fetch_sub(1, Ordering::Relaxed);
    }
}

fn index_of(page: PageNo) -> usize {
    // Streams often start at multiples of large powers of two.
    (page ^ page >> 6 ^ page >> 12 ^ page >> 18) as usize % MARKERS
}

pub fn is_stream(window: usize) -> bool {
    window >= 8
}

/// Returns one more than the number of resident pages directly before `page`, or 1 if such a run
/// may be a coincidence. `resident_of_all` returns the resident pages and all pages.
pub fn neighbours(
    pages: &PageTable<'_>,
    page: PageNo,
    resident_of_all: impl FnOnce() -> (usize, usize),
) -> usize {
    let behind = (1..MAX_NEIGHBOURS as u64)
        .take_while(|back| page >= *back && pages.load(page - back).is_resident())
        .count();
    let is_run = match behind {
        0 => false,
        _ if behind == MAX_NEIGHBOURS - 1 => true,
        _ => {
            let (resident, all) = resident_of_all();
            !is_chance(behind, resident, all)
        }
    };
    if is_run { behind + 1 } else { 1 }
}

/// Returns true if a run of resident pages occurs by chance with a probability above 1/16.
fn is_chance(run: usize, resident: usize, all: usize) -> bool {
    const ONE: usize = 1 << 16;
    let share = (resident.saturating_mul(ONE) / all.max(1)).min(ONE);
    let chance = (0..run).fold(ONE, |chance, _| chance * share / ONE);
    chance * 16 > ONE
}

/// Never waits: the page is optional, and the caller may hold other claims.
#[must_use]
pub fn claim_stored<'t>(pages: &PageTable<'t>, page: PageNo) -> Option<(SlotCopy, Claim<'t>)> {
    let seen = pages.load(page);
    let stored = seen.place().in_slot()?;
    pages.try_claim(page, seen).map(|claim| (stored, claim))
}

#[cfg(all(test, not(feature = "loom")))]
#[path = "readahead_tests.rs"]
mod tests;
