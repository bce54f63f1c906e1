//! Readahead: neighbours of a faulting page, and windows of streams that are read before they are
//! touched.
//!
//! Reading several pages costs little more than reading one, wherever they are in the swap area.
//! The number of pages to read follows from the resident pages before the faulting one. A stream
//! leaves resident pages behind, so its window doubles with each read, up to [`MAX_NEIGHBOURS`]. A
//! random touch reads a single page. The larger the share of resident pages, the longer the run
//! before the page must be, because short runs occur by chance.
//!
//! Longer streams are followed. Each fault leaves markers on the pages that would be touched next
//! if it belonged to a stream. Two faults on markers in a row make a stream. Streams with larger
//! strides are detected from recent touches ([`Strides`]) and a fault on the predicted marker. The
//! next window of a stream is read in the background by parallel requests. The page that the stream
//! reaches first is the window's marker: it stays absent, so its touch faults and starts the next
//! window, twice as long. Resident pages are skipped, because they cannot be markers. Until its
//! touch, the marker's content is cached ([`ReadAheadPages`](crate::store::read_ahead_pages)). A
//! marker that is not reached within a number of faults counts as lost: its pages were read for
//! nothing. Linux's readahead has the same marker, as a flag of a cached page.

use crate::base::page::{Claim, PageNo, PageTable, SlotCopy};
use crate::policy::mechanism::{Mechanism, Without};
use crate::policy::prefetch::strides::Strides;
use crate::policy::prefetch::window::{
    DOWN, FIRST_WINDOW, REQUEST_PAGES, ReadRequest, ReadaheadWindow, Stride, UP,
};
use crossbeam_queue::ArrayQueue;
use softswap_sys::futex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Maximum number of pages that a fault reads together, including its own.
pub(crate) const MAX_NEIGHBOURS: usize = 32;
/// Maximum pages of a background window: two requests, so that four are in progress together with
/// the next window.
const MAX_WINDOW: usize = 2 * REQUEST_PAGES;
/// Divisor: a window covers at most 1/32 of the budget.
const BUDGET_SHARE: usize = 32;
/// Divisor: the next windows of all streams together cover at most 1/16 of the budget.
const ALL_SHARE: usize = 16;
/// Number of consecutive faults that make a stream.
const STREAM_FAULTS: usize = 3;
/// Number of markers. A marker's index is a hash of its page number.
const MARKERS: usize = 256;
/// Age at which a marker expires, in faults.
const LIFE_FAULTS: u64 = 1024;
/// Divisor: queued requests cover at most 1/8 of the budget.
const QUEUE_SHARE: usize = 8;
/// Maximum number of queued requests.
const MAX_REQUESTS: usize = 64;

/// Number of windows remembered as in progress: two for each of many streams.
const IN_FLIGHT: usize = 32;
/// Number of faults after which a requested window no longer counts as being read.
const ARRIVAL_FAULTS: u64 = LIFE_FAULTS / 4;

/// Relation of a touched page to streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Touch {
    /// Not part of a followed stream.
    Isolated,
    /// In a window that is being read: an early touch, not the start of a stream.
    Early,
    /// Was a marker: the following pages are being read.
    Marker(ReadaheadWindow),
}

impl Touch {
    pub fn is_requested(self) -> bool {
        matches!(self, Touch::Marker(window) if window.is_requested())
    }
}

/// Limits of a stream. A stream skips resident pages, because a marker must be on a page whose
/// touch faults.
pub struct Ahead<F> {
    /// Exclusive end of the page numbers.
    pub end: PageNo,
    /// Returns true if a page is in memory.
    pub is_there: F,
}

impl<F: Fn(PageNo) -> bool> Ahead<F> {
    /// Returns the window from its first absent page. Returns `None` if all of the next pages are
    /// resident or beyond the end.
    fn first_missing(&self, window: ReadaheadWindow) -> Option<ReadaheadWindow> {
        let steps = (0..REQUEST_PAGES as u64).map_while(|step| window.page_after(step));
        let mut pages = steps.take_while(|page| *page < self.end);
        pages
            .find(|page| !(self.is_there)(*page))
            .map(|marker| ReadaheadWindow { marker, ..window })
    }
}

/// Followed streams and their requests.
#[derive(Debug)]
pub struct Readahead {
    without: Without,
    markers: [AtomicU64; MARKERS],
    /// Requests not yet started, in order.
    queue: ArrayQueue<u64>,
    /// Number of faults, for the age of markers.
    faults: AtomicU64,
    /// True while threads serve the requests.
    is_served: AtomicBool,
    /// Incremented to wake these threads.
    wakeups: AtomicU32,
    /// Number of sleeping threads.
    asleep: AtomicU32,
    /// Maximum pages of the next windows of all streams together.
    all: AtomicUsize,
    max_requests: AtomicUsize,
    /// Maximum pages of a window.
    max_window: AtomicUsize,
    strides: Strides,
    /// The most recent requested windows; a ring.
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

    /// Enables or disables requests. They are made only while threads serve them.
    pub fn serve(&self, on: bool) {
        let is_on = on && !self.without.has(Mechanism::Readahead);
        self.is_served.store(is_on, Ordering::Relaxed);
    }

    /// Returns the relation of a touched page to streams. If it is a marker, the marker is removed.
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

    /// Returns the number of pages, from `page` on and up to `most`, before the next valid marker.
    /// A marker must not be read with other pages, because it would not fault.
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

    /// Requests the window after one that its stream has reached, before the touched page is
    /// processed further. Returns the number of lost windows of other streams; `None` if the
    /// touched page is not the marker of a requested window.
    pub fn next_window(&self, touch: Touch, ahead: &Ahead<impl Fn(PageNo) -> bool>) -> Option<u64> {
        let Touch::Marker(window) = touch else { return None };
        if !window.is_requested() {
            return None;
        }
        let (other_streams, lost) = self.other_streams();
        // Concurrent streams share the memory for pages read ahead; otherwise they would evict each
        // other's pages.
        let all = self.all.load(Ordering::Relaxed);
        let max_window = self.max_window.load(Ordering::Relaxed);
        let longest = (all / (other_streams + 1)).clamp(FIRST_WINDOW, max_window);
        let next = window.next(longest).and_then(|next| ahead.first_missing(next));
        Some(lost + next.map_or(0, |next| u64::from(self.request(next))))
    }

    /// Returns the number of followed streams, and the number of lost windows, which are removed.
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

    /// Marks the pages that would be touched next after `page`, or requests them if the stream is
    /// known. Returns the number of windows that other streams lose to this request.
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

    /// Does what [`Readahead::expect`] does, for memory with advice for sequential access: a single
    /// touch makes a stream.
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

    /// Marks the page expected after `faults` faults of a possible stream, or requests a window if
    /// there were enough. Returns the number of lost windows.
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

    /// Requests a window. Returns true if the request replaces another window.
    fn request(&self, window: ReadaheadWindow) -> bool {
        let requests = window.requests().map(ReadRequest::to_bits);
        let has_space = || self.queue.len() < self.max_requests.load(Ordering::Relaxed);
        let request_count =
            requests.take_while(|request| has_space() && self.queue.push(*request).is_ok()).count();
        // The queue is full. The stream continues with faults.
        if request_count == 0 {
            return false;
        }
        // Requests beyond the queue's capacity are dropped.
        let pages = window.pages.min(request_count * REQUEST_PAGES);
        let displaced = self.mark(window);
        let in_flight = ReadaheadWindow { pages, ..window };
        let now = self.faults.load(Ordering::Relaxed);
        let index = self.request_count.fetch_add(1, Ordering::Relaxed) % IN_FLIGHT;
        self.in_flight[index].store(in_flight.to_bits(now), Ordering::Relaxed);
        // This order is required: a thread about to sleep increments `asleep` and then checks
        // `wakeups`.
        self.wakeups.fetch_add(1, Ordering::SeqCst);
        let asleep = self.asleep.load(Ordering::SeqCst);
        if asleep > 0 {
            futex::wake(&self.wakeups, asleep.min(request_count as u32));
        }
        displaced
    }

    /// Sets a window's marker. Returns true if it replaced that of another requested window. A
    /// window that was not requested replaces a requested one only if the requested one is old.
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

    /// Takes the oldest request, if any.
    #[must_use]
    pub fn take(&self) -> Option<ReadRequest> {
        self.queue.pop().map(ReadRequest::from_bits)
    }

    /// Wakes all sleeping threads without a request.
    pub(crate) fn wake(&self) {
        self.wakeups.fetch_add(1, Ordering::SeqCst);
        futex::wake_all(&self.wakeups);
    }

    /// Returns true if all requests are done and all `threads` are asleep. A thread decrements
    /// `asleep` before it takes a request; so if the queue is seen empty, the decrement is visible,
    /// too.
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

/// Returns true if a window is long enough to rely on the stream.
pub fn is_stream(window: usize) -> bool {
    window >= 8
}

/// Returns the number of pages to read when `page` is touched: one more than the resident pages
/// directly before it, or 1 if such a run may be a coincidence. `resident_of_all` returns the
/// number of resident pages and the total number of pages.
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

/// Claims a page in the swap area if it is not busy. Never waits: the page is optional, and the
/// caller may hold other claims.
#[must_use]
pub fn claim_stored<'t>(pages: &PageTable<'t>, page: PageNo) -> Option<(SlotCopy, Claim<'t>)> {
    let seen = pages.load(page);
    let stored = seen.place().in_slot()?;
    pages.try_claim(page, seen).map(|claim| (stored, claim))
}

#[cfg(all(test, not(feature = "loom")))]
#[path = "readahead_tests.rs"]
mod tests;
