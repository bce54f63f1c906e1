//! Device for areas in the memory of other machines: whole pages, through the [`request_queue`] to
//! `softswap-remote`.
//!
//! Each page is stored under a generation that rises with each write. The device records the last
//! generation, so a lost or late write is detected.
//!
//! [`request_queue`]: softswap_shared::request_queue

use super::poll::Polling;
use super::{Device, DeviceProperties, IoError, IoErrorKind, Lane, Operation, Piece};
use softswap_shared::request_queue::{
    Failure, MAX_AREA_PAGES, MAX_PAGES, NoArea, Operation as Request, Page, RemoteArea,
    RequestQueue, open_inherited,
};
use softswap_sys::file::errno;
use softswap_sys::memory::reserve_u32;
use softswap_sys::process_identity::{self, ProcessIdentity};
use softswap_sys::{PAGE_SIZE, exemption, raw};
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

const PAGE_BYTES: u64 = PAGE_SIZE as u64;
/// Flag of the generation of a mirrored page that may be missing.
const MISSING: u32 = 1 << 31;
/// Maximum number of stored messages of either kind. A program stops at the first lost page.
const MAX_TEXTS: usize = 16;
type Texts = [OnceLock<&'static str>; MAX_TEXTS];

/// A device that stores pages in an area of a request queue.
///
/// ```
/// use softswap_shared::request_queue::{RequestQueue, SHAPE};
/// use softswap_engine::store::io::{Device, RemoteDevice};
/// use std::os::fd::AsRawFd;
/// let (fd, words) = softswap_sys::shared::create(SHAPE.words()).unwrap();
/// let queue = RequestQueue::create(words, SHAPE, 1024, 1_000_000);
/// let device = RemoteDevice::open(queue, fd.as_raw_fd()).unwrap();
/// assert_eq!(device.free_bytes(), Ok(1024 * 4096));
/// ```
#[derive(Debug)]
pub struct RemoteDevice {
    area: RemoteArea,
    /// Generation of the last write of each page; 0 if it was never written.
    generations: &'static [AtomicU32],
    /// The first pages of the area.
    claimed: AtomicU64,
    texts: Texts,
    texts_of_lost: Texts,
}

/// Returns the sender of requests. Without a known PID namespace it never counts as dead.
fn me() -> ProcessIdentity {
    let unknown = ProcessIdentity { pid: raw::current_process(), start: 0, namespace: 0 };
    ProcessIdentity::known().unwrap_or(unknown)
}

/// Caches the identity for [`me`], unless the program's own filter may forbid opening files.
fn find_identity() {
    if !exemption::is_in_force() {
        let _ = ProcessIdentity::current();
    }
}

impl RemoteDevice {
    /// Takes an area of the queue behind `fd`. Fails if none is free, or no address space is left.
    pub fn open(queue: RequestQueue, fd: i32) -> Result<RemoteDevice, NoArea> {
        let area = RemoteArea::take(queue, fd)?;
        let max_pages = queue.limit_pages().min(MAX_AREA_PAGES);
        let generations = reserve_u32(max_pages as usize)?;
        find_identity();
        let (claimed, texts, texts_of_lost) = Default::default();
        Ok(RemoteDevice { area, generations, claimed, texts, texts_of_lost })
    }

    pub fn inherited(fd: i32) -> Result<RemoteDevice, NoArea> {
        RemoteDevice::open(open_inherited(fd)?, fd)
    }

    fn queue(&self) -> &RequestQueue {
        self.area.queue()
    }

    fn release_from(&self, offset: u64, discard: impl FnOnce(Range<u64>)) {
        let (first, claimed) = (offset.div_ceil(PAGE_BYTES), self.claimed.load(Acquire));
        if first < claimed {
            discard(first..claimed);
            self.claimed.store(first, Release);
            self.area.release(claimed - first);
        }
    }

    fn check(&self, operation: Operation, offset: u64, bytes: usize) -> Result<(), IoError> {
        let end = offset.checked_add(bytes as u64);
        let is_within = end.is_some_and(|end| end / PAGE_BYTES <= self.claimed.load(Acquire));
        let is_whole = offset.is_multiple_of(PAGE_BYTES) && bytes.is_multiple_of(PAGE_SIZE);
        match is_within && is_whole {
            true => Ok(()),
            false => Err(failed(operation, offset, bytes, IoErrorKind::Stopped)),
        }
    }

    fn transfer<'b>(
        &self,
        operation: Request,
        pages: &[Page],
        content: &[&[u8]],
        buffers: impl Iterator<Item = &'b mut [u8]>,
    ) -> Result<(), IoErrorKind> {
        let (me, area) = (me(), self.area.number());
        let request = self.queue().begin(me, operation, area, pages, content);
        request
            .and_then(|request| self.queue().finish(request, buffers))
            .map_err(|failure| self.kind_of(failure))
    }

    fn kind_of(&self, failure: Failure) -> IoErrorKind {
        match failure {
            Failure::Full(text) => IoErrorKind::NoSpace(permanent_text(&self.texts, text)),
            Failure::Timeout => IoErrorKind::Message(
                "softswap-remote did not answer in time: it exited and cannot be restarted, or \
                 it reaches no server; run `softswap remote check URL`",
            ),
            Failure::Lost(text) => IoErrorKind::Message(permanent_text(&self.texts_of_lost, text)),
            Failure::Failed(text) => IoErrorKind::Message(permanent_text(&self.texts, text)),
            Failure::Unsound => {
                IoErrorKind::Message("the request queue to softswap-remote was overwritten")
            }
        }
    }

    fn next_generation(&self, page: u64) -> Option<u64> {
        let word = &self.generations[page as usize];
        let next = (word.load(Acquire) & !MISSING) + 1;
        if next == MISSING {
            return None;
        }
        // Also if the write fails, because the previous content may be overwritten.
        word.store(next, Release);
        Some(u64::from(next))
    }

    /// Passes pages to `hand_over` in batches of one request, each with its next generation.
    fn each_batch<'p>(
        &self,
        pieces: &'p [Piece<&'p [u8]>],
        mut hand_over: impl FnMut(&[Page], &[&'p [u8]]) -> Result<(), IoErrorKind>,
    ) -> Result<(), IoError> {
        let mut parts = pieces.iter().flat_map(|piece| {
            let first = piece.offset / PAGE_BYTES;
            (first..).zip(piece.buf.chunks_exact(PAGE_SIZE))
        });
        loop {
            let mut pages = [Page::default(); MAX_PAGES];
            let mut content: [&[u8]; MAX_PAGES] = [&[]; MAX_PAGES];
            let mut count = 0;
            for (number, bytes) in parts.by_ref().take(MAX_PAGES) {
                let exhausted =
                    IoErrorKind::Message("a page was written more often than its counter allows");
                let generation = self.next_generation(number);
                let generation = generation.ok_or_else(|| {
                    failed(Operation::Write, number * PAGE_BYTES, PAGE_SIZE, exhausted)
                })?;
                pages[count] = Page { number, generation };
                content[count] = bytes;
                count += 1;
            }
            if count == 0 {
                return Ok(());
            }
            hand_over(&pages[..count], &content[..count])
                .map_err(|kind| failed_pages(Operation::Write, &pages[..count], kind))?;
        }
    }
}

/// Returns a permanent copy, because errors contain plain values; a general text after too many.
fn permanent_text(texts: &Texts, text: Box<str>) -> &'static str {
    for stored in texts {
        match stored.get() {
            Some(stored) if **stored == *text => return stored,
            Some(_) => {}
            None => {
                let text: &'static str = Box::leak(text);
                // If another thread was first, this copy is not found again.
                let _ = stored.set(text);
                return text;
            }
        }
    }
    "the cluster failed again, and softswap retries later: see the messages before this one"
}

fn ends_of(offset: u64, bytes: u64) -> Option<[Page; 2]> {
    let first = offset.div_ceil(PAGE_BYTES);
    let last = ((offset + bytes) / PAGE_BYTES).checked_sub(1).filter(|last| *last >= first)?;
    Some([first, last].map(|number| Page { number, generation: 0 }))
}

fn failed(operation: Operation, offset: u64, bytes: usize, kind: IoErrorKind) -> IoError {
    IoError { kind, operation, offset, length: bytes as u64, transferred: 0 }
}

fn failed_pages(operation: Operation, pages: &[Page], kind: IoErrorKind) -> IoError {
    let first = pages.first().map_or(0, |page| page.number);
    failed(operation, first * PAGE_BYTES, pages.len() * PAGE_SIZE, kind)
}

/// For a [`MirrorDevice`](super::MirrorDevice): pages are sent without waiting, and may be missing.
impl RemoteDevice {
    pub(super) fn may_have(&self, offset: u64, bytes: usize) -> bool {
        let (first, count) = (offset / PAGE_BYTES, bytes / PAGE_SIZE);
        let is_there = |word: &AtomicU32| !matches!(word.load(Acquire), 0 | MISSING..);
        let words = usize::try_from(first).ok().and_then(|at| self.generations.get(at..at + count));
        first + count as u64 <= self.claimed.load(Acquire)
            && words.is_some_and(|words| words.iter().all(is_there))
    }

    pub(super) fn send(&self, pieces: &[Piece<&[u8]>]) {
        let (me, area) = (me(), self.area.number());
        for piece in pieces {
            let end = piece.offset.saturating_add(piece.buf.len() as u64);
            if end / PAGE_BYTES > self.claimed.load(Acquire) {
                // If the area grows again, the cluster may return an older content of these pages.
                self.note_all_missing(piece.offset / PAGE_BYTES..end / PAGE_BYTES);
                continue;
            }
            let _ = self.each_batch(std::slice::from_ref(piece), |pages, content| {
                if self.queue().post(me, Request::Write, area, pages, content).is_err() {
                    pages.iter().for_each(|page| self.note_missing(page.number));
                }
                Ok(())
            });
        }
    }

    pub(super) fn send_discard(&self, offset: u64, bytes: u64) {
        if let Some(ends) = ends_of(offset, bytes) {
            let (me, area) = (me(), self.area.number());
            let _ = self.queue().post(me, Request::Discard, area, &ends, &[]);
        }
    }

    pub(super) fn send_truncate(&self, offset: u64) {
        self.release_from(offset, |pages| {
            self.send_discard(pages.start * PAGE_BYTES, (pages.end - pages.start) * PAGE_BYTES);
            self.note_all_missing(pages);
        });
    }

    /// Reads with a timeout. On failure returns false, and the content of `buf` is undefined.
    pub(super) fn read_within(&self, offset: u64, buf: &mut [u8], timeout_ns: u64) -> bool {
        let (me, area) = (me(), self.area.number());
        let mut numbers = offset / PAGE_BYTES..;
        for buf in buf.chunks_mut(MAX_PAGES * PAGE_SIZE) {
            let mut pages = [Page::default(); MAX_PAGES];
            let count = buf.len() / PAGE_SIZE;
            for (page, number) in pages[..count].iter_mut().zip(&mut numbers) {
                let generation = self.generations[number as usize].load(Acquire) & !MISSING;
                *page = Page { number, generation: u64::from(generation) };
            }
            let wanted = &pages[..count];
            let request = self.queue().begin_within(me, Request::Read, area, wanted, timeout_ns);
            let buffers = buf.chunks_exact_mut(PAGE_SIZE);
            match request.and_then(|request| self.queue().finish(request, buffers)) {
                Ok(()) => {}
                Err(Failure::Lost(_)) => {
                    pages[..count].iter().for_each(|page| self.note_missing(page.number));
                    return false;
                }
                Err(_) => return false,
            }
        }
        true
    }

    fn note_all_missing(&self, pages: Range<u64>) {
        let within = pages.start..pages.end.min(self.generations.len() as u64);
        // Skip pages never written, whose part of the table takes no DRAM.
        let is_known = |page: &u64| self.generations[*page as usize].load(Acquire) != 0;
        within.filter(is_known).for_each(|page| self.note_missing(page));
    }

    /// Marks a page as missing until it is written again.
    fn note_missing(&self, page: u64) {
        self.generations[page as usize].fetch_or(MISSING, Release);
    }
}

impl Device for RemoteDevice {
    fn open_lane(&self) -> Lane {
        Lane::Plain
    }

    fn read_pieces(
        &self,
        _: &mut Lane,
        pieces: &mut [Piece<&mut [u8]>],
        _: Option<&Polling>,
    ) -> Result<(), IoError> {
        for piece in pieces.iter() {
            self.check(Operation::Read, piece.offset, piece.buf.len())?;
        }
        let mut parts = pieces.iter_mut().flat_map(|piece| {
            let first = piece.offset / PAGE_BYTES;
            (first..).zip(piece.buf.chunks_exact_mut(PAGE_SIZE))
        });
        loop {
            let mut pages = [Page::default(); MAX_PAGES];
            let mut buffers: [&mut [u8]; MAX_PAGES] = std::array::from_fn(|_| Default::default());
            let mut count = 0;
            for (number, bytes) in parts.by_ref().take(MAX_PAGES) {
                let generation = u64::from(self.generations[number as usize].load(Acquire));
                if generation == 0 {
                    let never = IoErrorKind::Stopped;
                    return Err(failed(Operation::Read, number * PAGE_BYTES, PAGE_SIZE, never));
                }
                pages[count] = Page { number, generation };
                buffers[count] = bytes;
                count += 1;
            }
            if count == 0 {
                return Ok(());
            }
            let read = self.transfer(Request::Read, &pages[..count], &[], buffers.into_iter());
            read.map_err(|kind| failed_pages(Operation::Read, &pages[..count], kind))?;
        }
    }

    fn write_pieces(&self, _: &mut Lane, pieces: &[Piece<&[u8]>]) -> Result<(), IoError> {
        for piece in pieces {
            self.check(Operation::Write, piece.offset, piece.buf.len())?;
        }
        self.each_batch(pieces, |pages, content| {
            self.transfer(Request::Write, pages, content, [].into_iter())
        })
    }

    /// Claims pages of the limit of all processes. Discarded pages stay claimed.
    fn grow(&self, from: u64, bytes: u64) -> Result<(), IoError> {
        let no_space = || {
            let kind = IoErrorKind::Errno(errno::ENOSPC);
            failed(Operation::Grow, from, bytes as usize, kind)
        };
        let end = from.checked_add(bytes).ok_or_else(no_space)?.div_ceil(PAGE_BYTES);
        let claimed = self.claimed.load(Acquire);
        if end <= claimed {
            return Ok(());
        }
        if end > self.generations.len() as u64 || !self.area.claim(end - claimed) {
            return Err(no_space());
        }
        // The later of two threads releases its claim and retries.
        if self.claimed.compare_exchange(claimed, end, AcqRel, Acquire).is_err() {
            self.area.release(end - claimed);
            return self.grow(from, bytes);
        }
        Ok(())
    }

    fn truncate(&self, offset: u64) -> Result<(), IoError> {
        self.release_from(offset, |pages| {
            // Never fails.
            let _ = self.discard(pages.start * PAGE_BYTES, (pages.end - pages.start) * PAGE_BYTES);
        });
        Ok(())
    }

    /// After a failure the pages stay stored until they are written again or the area is dead.
    fn discard(&self, offset: u64, bytes: u64) -> Result<(), IoError> {
        if let Some(ends) = ends_of(offset, bytes) {
            let (queue, me, area) = (self.queue(), me(), self.area.number());
            // A short timeout, because a fork may wait for the thread that discards.
            let request = queue.begin_within(me, Request::Discard, area, &ends, 1_000_000_000);
            let _ = request.and_then(|request| queue.finish(request, [].into_iter()));
        }
        Ok(())
    }

    fn free_bytes(&self) -> Result<u64, IoError> {
        Ok(self.queue().free_pages().saturating_mul(PAGE_BYTES))
    }

    fn inherit(&self) -> bool {
        // If the child is in a new PID namespace, it may have its parent's PID.
        if !exemption::is_in_force() {
            process_identity::forget();
        }
        find_identity();
        true
    }

    fn describe(&self) -> DeviceProperties {
        DeviceProperties { remote: true, ..DeviceProperties::default() }
    }
}
