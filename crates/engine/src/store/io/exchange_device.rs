//! The device of areas that are memory of other machines: whole pages, to and from the helper
//! that speaks to them, by way of the [`exchange`](crate::exchange).
//!
//! Each page is stored under a generation that rises with each write. What was written last is
//! noted here, so that neither a write that was lost on the way nor a late one is taken for it.

use super::{Device, Facts, IoError, IoErrorKind, Lane, Operation, Piece};
use crate::exchange::{
    AreaSeat, Exchange, Failure, MOST_AREA_PAGES, MOST_PAGES, NoArea, Operation as Ask, Page,
    open_inherited,
};
use crate::ledger::Identity;
use softswap_sys::file::errno;
use softswap_sys::memory::reserve_u32;
use softswap_sys::{PAGE_SIZE, exemption, raw};
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

const PAGE_BYTES: u64 = PAGE_SIZE as u64;
/// Beside the generation of a page that may be missing: what the cluster mirrors may be.
const GONE: u32 = 1 << 31;
/// So many different messages of either kind are kept for ever; a program stops by the first
/// page that is lost.
const MOST_TEXTS: usize = 16;
type Texts = [OnceLock<&'static str>; MOST_TEXTS];
/// A discard is waited for no longer: a fork may wait for who discards.
const DISCARD_PATIENCE_NS: u64 = 1_000_000_000;

/// An area of an exchange as a device.
///
/// ```
/// use softswap_engine::exchange::{Exchange, SHAPE};
/// use softswap_engine::store::io::{Device, ExchangeDevice};
/// use std::os::fd::AsRawFd;
/// let (fd, words) = softswap_sys::shared::create(SHAPE.words()).unwrap();
/// let exchange = Exchange::create(words, SHAPE, 1024, 1_000_000);
/// let device = ExchangeDevice::open(exchange, fd.as_raw_fd()).unwrap();
/// assert_eq!(device.free_bytes(), Ok(1024 * 4096));
/// ```
#[derive(Debug)]
pub struct ExchangeDevice {
    seat: AreaSeat,
    /// Under which each page was last written; 0: it never was.
    generations: &'static [AtomicU32],
    /// Pages from 0 on that are claimed.
    claimed: AtomicU64,
    owner: Owner,
    texts: Texts,
    texts_of_lost: Texts,
}

/// Who asks, as far as is known: found out again in a forked child.
#[derive(Debug, Default)]
struct Owner {
    pid: AtomicU32,
    start: AtomicU64,
    namespace: AtomicU32,
}

impl Owner {
    /// Opens files, so not in a fault.
    fn find_out(&self) {
        // Nothing is opened where the program's own filter may forbid it.
        if exemption::is_in_force() {
            return;
        }
        let Some(me) = Identity::own() else { return };
        self.start.store(me.start, Relaxed);
        self.namespace.store(me.namespace, Relaxed);
        self.pid.store(me.pid, Release);
    }

    fn get(&self) -> Identity {
        let pid = raw::current_process();
        match self.pid.load(Acquire) == pid {
            true => {
                let (start, namespace) = (self.start.load(Relaxed), self.namespace.load(Relaxed));
                Identity { pid, start, namespace }
            }
            // By no name space is anybody taken for dead.
            false => Identity { pid, start: 0, namespace: 0 },
        }
    }
}

impl ExchangeDevice {
    /// An area of its own at an exchange; `fd`: the number of a descriptor of its words.
    ///
    /// # Errors
    /// When there is none, or no address space for the table of generations.
    pub fn open(exchange: Exchange, fd: i32) -> Result<ExchangeDevice, NoArea> {
        let seat = AreaSeat::take(exchange, fd)?;
        let most_pages = exchange.limit_pages().min(MOST_AREA_PAGES);
        let generations = reserve_u32(most_pages as usize)?;
        let owner = Owner::default();
        owner.find_out();
        let (claimed, texts, texts_of_lost) = Default::default();
        Ok(ExchangeDevice { seat, generations, claimed, owner, texts, texts_of_lost })
    }

    /// As [`ExchangeDevice::open`], at the exchange behind a descriptor that was inherited.
    ///
    /// # Errors
    /// As there, and where there is no exchange.
    pub fn inherited(fd: i32) -> Result<ExchangeDevice, NoArea> {
        ExchangeDevice::open(open_inherited(fd)?, fd)
    }

    fn exchange(&self) -> &Exchange {
        self.seat.exchange()
    }

    /// Gives the claimed pages from `offset` on back, once `leave` has left what they hold.
    fn give_up_from(&self, offset: u64, leave: impl FnOnce(Range<u64>)) {
        let (first, claimed) = (offset.div_ceil(PAGE_BYTES), self.claimed.load(Acquire));
        if first < claimed {
            leave(first..claimed);
            self.claimed.store(first, Release);
            self.seat.give_back(claimed - first);
        }
    }

    /// Refuses what is not whole pages within the area.
    fn check(&self, operation: Operation, offset: u64, bytes: usize) -> Result<(), IoError> {
        let end = offset.checked_add(bytes as u64);
        let is_within = end.is_some_and(|end| end / PAGE_BYTES <= self.claimed.load(Acquire));
        let is_whole = offset.is_multiple_of(PAGE_BYTES) && bytes.is_multiple_of(PAGE_SIZE);
        match is_within && is_whole {
            true => Ok(()),
            false => Err(failed(operation, offset, bytes, IoErrorKind::Stopped)),
        }
    }

    /// Has something done with up to so many pages.
    fn carry<'b>(
        &self,
        operation: Ask,
        pages: &[Page],
        content: &[&[u8]],
        buffers: impl Iterator<Item = &'b mut [u8]>,
    ) -> Result<(), IoErrorKind> {
        let (me, area) = (self.owner.get(), self.seat.number());
        let asked = self.exchange().begin(me, operation, area, pages, content);
        asked
            .and_then(|asked| self.exchange().finish(asked, buffers))
            .map_err(|failure| self.kind_of(failure))
    }

    fn kind_of(&self, failure: Failure) -> IoErrorKind {
        match failure {
            Failure::Full(text) => IoErrorKind::NoSpace(told(&self.texts, text)),
            Failure::Deadline => IoErrorKind::Told(
                "the helper that speaks to the cluster has not answered in time: it has ended and \
                 cannot be started again, or reaches no server",
            ),
            Failure::Lost(text) => IoErrorKind::Told(told(&self.texts_of_lost, text)),
            Failure::Failed(text) => IoErrorKind::Told(told(&self.texts, text)),
            Failure::Unsound => IoErrorKind::Told(
                "the page by which processes speak to the cluster's helper was overwritten",
            ),
        }
    }

    /// The generation under which a page is written next.
    fn next_generation(&self, page: u64) -> Option<u64> {
        let word = &self.generations[page as usize];
        let next = (word.load(Acquire) & !GONE) + 1;
        if next == GONE {
            return None;
        }
        // Whatever becomes of the write: what was there before is not what is there then.
        word.store(next, Release);
        Some(u64::from(next))
    }

    /// Hands over pages that are to be written, as many at a time as a request has, each under its
    /// next generation.
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
            let mut pages = [Page::NONE; MOST_PAGES];
            let mut content: [&[u8]; MOST_PAGES] = [&[]; MOST_PAGES];
            let mut count = 0;
            for (number, bytes) in parts.by_ref().take(MOST_PAGES) {
                let worn = IoErrorKind::Told("a page was written too often");
                let generation = self.next_generation(number);
                let generation = generation.ok_or_else(|| {
                    failed(Operation::Write, number * PAGE_BYTES, PAGE_SIZE, worn)
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

    fn write_pieces(&self, pieces: &[Piece<&[u8]>]) -> Result<(), IoError> {
        for piece in pieces {
            self.check(Operation::Write, piece.offset, piece.buf.len())?;
        }
        self.each_batch(pieces, |pages, content| {
            self.carry(Ask::Write, pages, content, [].into_iter())
        })
    }

    fn read_pieces(&self, pieces: &mut [Piece<&mut [u8]>]) -> Result<(), IoError> {
        for piece in pieces.iter() {
            self.check(Operation::Read, piece.offset, piece.buf.len())?;
        }
        let mut parts = pieces.iter_mut().flat_map(|piece| {
            let first = piece.offset / PAGE_BYTES;
            (first..).zip(piece.buf.chunks_exact_mut(PAGE_SIZE))
        });
        loop {
            let mut pages = [Page::NONE; MOST_PAGES];
            let mut buffers: [&mut [u8]; MOST_PAGES] = std::array::from_fn(|_| Default::default());
            let mut count = 0;
            for (number, bytes) in parts.by_ref().take(MOST_PAGES) {
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
            let read = self.carry(Ask::Read, &pages[..count], &[], buffers.into_iter());
            read.map_err(|kind| failed_pages(Operation::Read, &pages[..count], kind))?;
        }
    }
}

/// A message that stays, as an error is a plain value. Not every one of many.
fn told(texts: &Texts, text: Box<str>) -> &'static str {
    for kept in texts {
        match kept.get() {
            Some(kept) if **kept == *text => return kept,
            Some(_) => {}
            None => {
                let text: &'static str = Box::leak(text);
                // Another may have been quicker: then this one is not found again.
                let _ = kept.set(text);
                return text;
            }
        }
    }
    "the cluster failed, as it did before"
}

/// The first and the last of whole pages, as a request to discard names them.
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

/// The side of a [`MirrorDevice`](super::MirrorDevice): pages are sent without waiting, and may be
/// missing.
impl ExchangeDevice {
    /// Whether all these pages were sent, and are not known to be gone.
    pub(super) fn may_have(&self, offset: u64, bytes: usize) -> bool {
        let (first, count) = (offset / PAGE_BYTES, bytes / PAGE_SIZE);
        let is_there = |word: &AtomicU32| !matches!(word.load(Acquire), 0 | GONE..);
        let words = usize::try_from(first).ok().and_then(|at| self.generations.get(at..at + count));
        first + count as u64 <= self.claimed.load(Acquire)
            && words.is_some_and(|words| words.iter().all(is_there))
    }

    /// Sends pages, as far as there is room for them.
    pub(super) fn send(&self, pieces: &[Piece<&[u8]>]) {
        let (me, area) = (self.owner.get(), self.seat.number());
        for piece in pieces {
            let end = piece.offset.saturating_add(piece.buf.len() as u64);
            if end / PAGE_BYTES > self.claimed.load(Acquire) {
                // Something older may be there, and become a part of the area again.
                self.note_all_gone(piece.offset / PAGE_BYTES..end / PAGE_BYTES);
                continue;
            }
            let _ = self.each_batch(std::slice::from_ref(piece), |pages, content| {
                if self.exchange().post(me, Ask::Write, area, pages, content).is_err() {
                    pages.iter().for_each(|page| self.note_gone(page.number));
                }
                Ok(())
            });
        }
    }

    /// As [`Device::discard`], without waiting.
    pub(super) fn send_discard(&self, offset: u64, bytes: u64) {
        if let Some(ends) = ends_of(offset, bytes) {
            let (me, area) = (self.owner.get(), self.seat.number());
            let _ = self.exchange().post(me, Ask::Discard, area, &ends, &[]);
        }
    }

    /// As [`Device::truncate`], without waiting.
    pub(super) fn send_truncate(&self, offset: u64) {
        self.give_up_from(offset, |pages| {
            self.send_discard(pages.start * PAGE_BYTES, (pages.end - pages.start) * PAGE_BYTES);
            self.note_all_gone(pages);
        });
    }

    /// Reads pages that may be there, if they come in time; false where they do not. The buffer
    /// then holds nothing of use.
    pub(super) fn read_soon(&self, offset: u64, buf: &mut [u8], patience_ns: u64) -> bool {
        let (me, area) = (self.owner.get(), self.seat.number());
        let mut numbers = offset / PAGE_BYTES..;
        for buf in buf.chunks_mut(MOST_PAGES * PAGE_SIZE) {
            let mut pages = [Page::NONE; MOST_PAGES];
            let count = buf.len() / PAGE_SIZE;
            for (page, number) in pages[..count].iter_mut().zip(&mut numbers) {
                let generation = self.generations[number as usize].load(Acquire) & !GONE;
                *page = Page { number, generation: u64::from(generation) };
            }
            let wanted = &pages[..count];
            let asked = self.exchange().begin_soon(me, Ask::Read, area, wanted, patience_ns);
            let buffers = buf.chunks_exact_mut(PAGE_SIZE);
            match asked.and_then(|asked| self.exchange().finish(asked, buffers)) {
                Ok(()) => {}
                Err(Failure::Lost(_)) => {
                    pages[..count].iter().for_each(|page| self.note_gone(page.number));
                    return false;
                }
                Err(_) => return false,
            }
        }
        true
    }

    fn note_all_gone(&self, pages: Range<u64>) {
        let within = pages.start..pages.end.min(self.generations.len() as u64);
        // Of what was never written the table stays out of DRAM.
        let is_known = |page: &u64| self.generations[*page as usize].load(Acquire) != 0;
        within.filter(is_known).for_each(|page| self.note_gone(page));
    }

    /// A page is not asked for until it is written again.
    fn note_gone(&self, page: u64) {
        self.generations[page as usize].fetch_or(GONE, Release);
    }
}

impl Device for ExchangeDevice {
    fn open_lane(&self) -> Lane {
        Lane::Plain
    }

    fn read(&self, _: &mut Lane, offset: u64, buf: &mut [u8]) -> Result<(), IoError> {
        self.read_pieces(&mut [Piece { offset, buf }])
    }

    fn read_many(&self, _: &mut Lane, pieces: &mut [Piece<&mut [u8]>]) -> Result<(), IoError> {
        self.read_pieces(pieces)
    }

    fn write_many(&self, _: &mut Lane, pieces: &[Piece<&[u8]>]) -> Result<(), IoError> {
        self.write_pieces(pieces)
    }

    fn write(&self, _: &mut Lane, offset: u64, buf: &[u8]) -> Result<(), IoError> {
        self.write_pieces(&[Piece { offset, buf }])
    }

    /// Claims pages of what all processes may have together. What was discarded is claimed yet.
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
        if end > self.generations.len() as u64 || !self.seat.claim(end - claimed) {
            return Err(no_space());
        }
        // Of two at once the one that was later gives back what it need not have.
        if self.claimed.compare_exchange(claimed, end, AcqRel, Acquire).is_err() {
            self.seat.give_back(end - claimed);
            return self.grow(from, bytes);
        }
        Ok(())
    }

    fn truncate(&self, offset: u64) -> Result<(), IoError> {
        self.give_up_from(offset, |pages| {
            // Never refused.
            let _ = self.discard(pages.start * PAGE_BYTES, (pages.end - pages.start) * PAGE_BYTES);
        });
        Ok(())
    }

    /// Where that does not arrive the pages stay until the area ends, or they are written again.
    fn discard(&self, offset: u64, bytes: u64) -> Result<(), IoError> {
        if let Some(ends) = ends_of(offset, bytes) {
            let (exchange, me, area) = (self.exchange(), self.owner.get(), self.seat.number());
            let asked = exchange.begin_soon(me, Ask::Discard, area, &ends, DISCARD_PATIENCE_NS);
            let _ = asked.and_then(|asked| exchange.finish(asked, [].into_iter()));
        }
        Ok(())
    }

    fn free_bytes(&self) -> Result<u64, IoError> {
        Ok(self.exchange().free_pages().saturating_mul(PAGE_BYTES))
    }

    fn inherit(&self) -> bool {
        self.owner.find_out();
        true
    }

    fn describe(&self) -> Facts {
        Facts { remote: true, ..Facts::default() }
    }
}
