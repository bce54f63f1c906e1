//! Admission to the pool: pages of streams are refused where the disk is cheaper.
//!
//! What a page's copy in the pool spares is the wait for the disk. A stream does not
//! wait: its pages are read ahead, many at once. For it the pool is one way and the disk
//! another, and what counts is what either takes. Through the pool each page is packed and
//! unpacked. Where all that the stream goes over does not fit in the pool, it is written
//! back besides, to make room for the next ones, and read: then even a slower
//! disk is the cheaper way. So each chunk remembers how its pages come back: in a stream
//! or waited for, and whether the pool could hold them until then. Those of streams go to
//! the disk at once where that takes less, and leave the pool to the others.
//!
//! What either takes is measured: a page of a stream to be read and of a batch to be
//! written, and a page to be packed. What leaves unchanged, and is in the pool still,
//! stays there at no cost, and is nobody's question.

use crate::base::average::follow;
use crate::base::likelihood::{self, CERTAIN};
use crate::base::page::PageNo;
use crate::memory::address_space::CHUNK_PAGES;
use softswap_sys::memory::reserve_u32;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

/// From this on, a chunk's pages come back in streams.
const LIKELY: u32 = CERTAIN * 3 / 4;
/// One in so many of these is offered to the pool all the same, to see how it packs.
const PROBE_EVERY: u32 = 64;
/// After pages found no place on the disk, so many are offered to the pool again.
const REFUSED_PAGES: u32 = 4096;
/// What the pool takes for a page, in fifths of packing it: where it holds the page, for
/// that and for unpacking; else it is stored, passed on with others and read, too.
const HELD_FIFTHS: u64 = 8;
const PASSED_ON_FIFTHS: u64 = 20;
/// What a page takes of the pool beyond its bytes, and some room to spare, so that it is
/// not offered to the pool today and passed on tomorrow: so many in so many.
const POOL_ROOM: (u64, u64) = (4, 3);
/// What one measurement moves an average by: one in so many.
const TIMES_OF: u64 = 128;
/// And what it counts for at most: a thread that lost its processor says nothing.
const MOST_TIMES: u64 = 3;
/// What is short counts at once, and what is longer by one in so many of the difference:
/// threads wait for a processor, too, before they see that the disk is done.
const RISES_BY: u64 = 32;
/// A page's bytes in the pool are taken for, until some were packed.
const PACKED_BYTES: u64 = 2048;

/// Which pages pass, and what either way takes.
#[derive(Debug)]
pub struct Admission {
    /// Per chunk: how likely its pages come back in streams, and how likely they are more
    /// than the pool can hold.
    chunks: &'static [AtomicU32],
    /// So many are yet to be offered to the pool.
    refused: AtomicU32,
    /// Whether any page has passed since the disk last took nothing.
    has_passed: AtomicBool,
    /// Threads that read for streams.
    readers: AtomicU64,
    /// For a page, in ns: reading, while others read too, and writing, at their best of
    /// late; packing one that packs, on average. 0: not known.
    read_ns: AtomicU64,
    write_ns: AtomicU64,
    pack_ns: AtomicU64,
    /// What pages took that turned out not to pack, since the last one that did.
    in_vain_ns: AtomicU64,
    /// What a page takes in the pool, nothing where it does not pack; times 16.
    packed_bytes: AtomicU64,
}

/// A thread that reads for a stream; until it is dropped or [`Reading::took`].
#[derive(Debug)]
pub struct Reading<'p> {
    admission: &'p Admission,
    among: u64,
}

impl Admission {
    /// For a window of so many pages.
    ///
    /// # Errors
    /// When there is no address space for the table.
    pub(crate) fn new(pages: usize) -> io::Result<Admission> {
        Ok(Admission {
            chunks: reserve_u32(2 * (pages / CHUNK_PAGES as usize + 1))?,
            refused: AtomicU32::new(0),
            has_passed: AtomicBool::new(false),
            readers: AtomicU64::new(0),
            read_ns: AtomicU64::new(0),
            write_ns: AtomicU64::new(0),
            pack_ns: AtomicU64::new(0),
            in_vain_ns: AtomicU64::new(0),
            packed_bytes: AtomicU64::new(PACKED_BYTES * 16),
        })
    }

    fn chunk(&self, page: PageNo) -> (&AtomicU32, &AtomicU32) {
        let at = 2 * (page / CHUNK_PAGES) as usize;
        (&self.chunks[at], &self.chunks[at + 1])
    }

    /// A page was waited for.
    pub(crate) fn waited_for(&self, page: PageNo) {
        likelihood::note(self.chunk(page).0, false);
    }

    /// A page came back in a stream, and the pool held it until then, or did not.
    pub(crate) fn streamed(&self, page: PageNo, was_held: bool) {
        let (streamed, outgrown) = self.chunk(page);
        likelihood::note(streamed, true);
        likelihood::note(outgrown, !was_held);
    }

    /// Whether a pool of at most `pool_bytes` would have held a page that was not offered
    /// to it, and after which so many others have left.
    pub(crate) fn would_hold(&self, left_since: u64, pool_bytes: usize) -> bool {
        let packed_bytes = self.packed_bytes.load(Relaxed) / 16;
        let needed =
            (left_since.saturating_mul(packed_bytes) / POOL_ROOM.1).saturating_mul(POOL_ROOM.0);
        needed <= pool_bytes as u64
    }

    /// Whether a page mostly comes back in a stream.
    pub(crate) fn comes_in_streams(&self, page: PageNo) -> bool {
        likelihood::likelihood(self.chunk(page).0) >= LIKELY
    }

    /// Whether a page is refused by the pool when it leaves.
    pub(crate) fn passes(&self, page: PageNo) -> bool {
        let (_, outgrown) = self.chunk(page);
        self.comes_in_streams(page)
            && self.may_pass()
            && self.pays(likelihood::likelihood(outgrown) >= CERTAIN / 2)
    }

    /// Whether pages may pass: the disk has taken those that did.
    pub(crate) fn may_pass(&self) -> bool {
        self.refused.load(Relaxed) == 0
    }

    /// What packing a page that packs takes, with those before it that did not; 0: not known.
    pub(crate) fn pack_ns(&self) -> u64 {
        self.pack_ns.load(Relaxed)
    }

    /// Whether one that passes is to be offered to the pool all the same.
    pub fn is_due(&self, page: PageNo) -> bool {
        likelihood::is_probe(self.chunk(page).0, PROBE_EVERY)
    }

    fn pays(&self, is_outgrown: bool) -> bool {
        let of = [&self.read_ns, &self.write_ns, &self.pack_ns];
        let [read_ns, write_ns, pack_ns] = of.map(|ns| ns.load(Relaxed));
        let fifths = if is_outgrown { PASSED_ON_FIFTHS } else { HELD_FIFTHS };
        read_ns > 0 && write_ns > 0 && read_ns + write_ns <= pack_ns * fifths / 5
    }

    /// The disk takes nothing now. Whether pages have passed until now: they may find a
    /// place in the pool.
    pub(crate) fn refuse(&self) -> bool {
        self.refused.swap(REFUSED_PAGES, Relaxed) == 0 && self.has_passed.swap(false, Relaxed)
    }

    /// A page has passed.
    pub(crate) fn note_passed(&self) {
        if !self.has_passed.load(Relaxed) {
            self.has_passed.store(true, Relaxed);
        }
    }

    /// A page was offered to the pool.
    fn note_offered(&self) {
        if self.refused.load(Relaxed) > 0 {
            let less = |left: u32| left.checked_sub(1);
            let _ = self.refused.fetch_update(Relaxed, Relaxed, less);
        }
    }

    /// The calling thread begins to read pages of a stream.
    pub fn read(&self) -> Reading<'_> {
        Reading { admission: self, among: self.readers.fetch_add(1, Relaxed) + 1 }
    }

    /// So many pages were written at once.
    pub fn wrote(&self, pages: usize, ns: u64) {
        best(&self.write_ns, pages, ns);
    }

    /// A page was packed, to so many bytes if it packs. What does not must go to the disk
    /// in any case: to find that out is a part of what the others take.
    pub fn packed(&self, bytes: Option<usize>, ns: u64) {
        self.note_offered();
        follow(&self.packed_bytes, bytes.unwrap_or(0) as u64 * 16, TIMES_OF);
        if bytes.is_none() {
            self.in_vain_ns.fetch_add(ns, Relaxed);
            return;
        }
        let in_vain_ns = match self.in_vain_ns.load(Relaxed) {
            0 => 0,
            _ => self.in_vain_ns.swap(0, Relaxed),
        };
        match self.pack_ns.load(Relaxed) {
            0 => self.pack_ns.store(ns.max(1), Relaxed),
            before => {
                follow(&self.pack_ns, (ns + in_vain_ns).min(MOST_TIMES * before), TIMES_OF);
            }
        }
    }
}

/// Moves the best of late by what each of so many pages took. None say nothing.
fn best(best: &AtomicU64, pages: usize, ns: u64) {
    let Some(ns) = ns.checked_div(pages as u64) else { return };
    let before = best.load(Relaxed);
    let next = match ns.checked_sub(before) {
        Some(more) if before > 0 => before + more.min(before).div_ceil(RISES_BY),
        _ => ns.max(1),
    };
    best.store(next, Relaxed);
}

impl Reading<'_> {
    /// So many pages took so long. Of what several read at the same time each has its
    /// share of the device: of as many as there were at the beginning.
    pub fn took(self, pages: usize, ns: u64) {
        best(&self.admission.read_ns, pages, ns / self.among);
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.admission.readers.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Packing takes 5 us, to 2 KiB; a page of the disk so many us, either way.
    fn world(disk_us: u64) -> Admission {
        let admission = Admission::new(1 << 16).unwrap();
        for _ in 0..1000 {
            admission.packed(Some(2048), 5_000);
        }
        disk(&admission, disk_us);
        admission
    }

    fn disk(admission: &Admission, us: u64) {
        for _ in 0..1000 {
            admission.wrote(32, 32_000 * us);
            admission.read().took(64, 64_000 * us);
        }
    }

    fn passing_of(admission: &Admission, pages: usize) -> usize {
        (0..pages).filter(|_| admission.passes(3) && !admission.is_due(3)).count()
    }

    #[test]
    fn what_is_not_known_does_not_count_as_nothing() {
        let admission = Admission::new(1 << 16).unwrap();
        (0..100).for_each(|_| admission.streamed(3, false));
        admission.packed(Some(2048), 5_000);
        assert_eq!(passing_of(&admission, 640), 0);
        admission.read().took(64, 64_000);
        admission.read().took(0, 10);
        admission.wrote(0, 10);
        assert_eq!(passing_of(&admission, 640), 0, "nobody has written yet");
        admission.wrote(32, 32_000);
        assert!(passing_of(&admission, 640) > 0);
    }

    #[test]
    fn pages_of_streams_pass_where_the_disk_is_faster() {
        let admission = world(2);
        assert_eq!(passing_of(&admission, 640), 0, "nothing is known yet");
        (0..100).for_each(|_| admission.streamed(3, true));
        assert_eq!(passing_of(&admission, 640), 630, "one in 64 is offered to the pool");
        assert!(!admission.passes(CHUNK_PAGES), "another chunk's pages are its own");
        (0..10).for_each(|_| admission.waited_for(3));
        assert_eq!(passing_of(&admission, 640), 0, "others wait for these");
    }

    #[test]
    fn what_the_pool_cannot_hold_passes_with_a_slower_disk_too() {
        for (us, held, outgrown) in [(3, true, true), (6, false, true), (12, false, false)] {
            let admission = world(us);
            (0..100).for_each(|_| admission.streamed(3, true));
            assert_eq!(passing_of(&admission, 640) > 0, held, "{us}");
            (0..100).for_each(|_| admission.streamed(3, false));
            assert_eq!(passing_of(&admission, 640) > 0, outgrown, "{us}");
        }
    }

    #[test]
    fn several_who_read_at_the_same_time_share_the_disk() {
        let admission = world(3);
        (0..100).for_each(|_| admission.streamed(3, true));
        let readers = [admission.read(), admission.read()];
        (0..1000).for_each(|_| admission.read().took(64, 3 * 64_000 * 3));
        assert!(passing_of(&admission, 640) > 0);
        drop(readers);
        (0..1000).for_each(|_| admission.read().took(64, 3 * 64_000 * 3));
        assert_eq!(passing_of(&admission, 640), 0);
    }

    #[test]
    fn the_pool_would_have_held_what_fits_with_room_to_spare() {
        const POOL: usize = 64 << 20;
        let admission = world(2);
        assert!(admission.would_hold(23_000, POOL) && !admission.would_hold(26_000, POOL));
        (0..1000).for_each(|at| admission.packed((at % 2 == 0).then_some(2048), 5_000));
        assert!(admission.would_hold(46_000, POOL), "half of them do not pack");
        assert!(!admission.would_hold(54_000, POOL));
    }

    #[test]
    fn what_is_tried_in_vain_counts_for_those_that_pack() {
        let admission = world(7);
        (0..100).for_each(|_| admission.streamed(3, true));
        assert_eq!(passing_of(&admission, 640), 0);
        for _ in 0..1000 {
            (0..3).for_each(|_| admission.packed(None, 1_500));
            admission.packed(Some(2048), 5_000);
        }
        assert!(passing_of(&admission, 640) > 0);
    }

    #[test]
    fn where_the_disk_takes_nothing_the_pool_is_asked_again() {
        let admission = world(2);
        (0..100).for_each(|_| admission.streamed(3, false));
        admission.note_passed();
        assert!(admission.refuse(), "they may find a place there");
        assert!(!admission.refuse(), "but not again and again");
        assert_eq!(passing_of(&admission, 640), 0);
        (0..REFUSED_PAGES).for_each(|_| admission.packed(Some(2048), 5_000));
        assert!(admission.passes(3));
    }
}
