//! Admission to the pool: pages of streams bypass it if the disk is cheaper.
//!
//! A copy in the pool saves the wait for the disk. Pages of a stream are read ahead in batches,
//! without a wait, so only the total cost counts. If the pool cannot hold the whole stream, each
//! page is compressed, written back and read, so even a slower disk is cheaper. Each chunk records
//! how its pages refault: in a stream or with a wait, and if the pool could hold them until then.
//!
//! The costs of reading, writing and compressing a page are measured. Admission does not apply to
//! clean pages with a copy in the pool.

use crate::base::average::follow;
use crate::base::likelihood::{self, CERTAIN};
use crate::base::page::PageNo;
use crate::memory::address_space::CHUNK_PAGES;
use softswap_sys::memory::reserve_u32;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

/// One in this many pages that would bypass the pool is offered, to measure compression.
const PROBE_EVERY: u32 = 64;
/// Number of pages offered to the pool again after the disk refused pages.
const REFUSED_PAGES: u32 = 4096;
/// Pool space relative to the compressed size: overhead, and a margin against early write-back.
const POOL_SPACE: (u64, u64) = (4, 3);
/// Divisor: a measurement moves an average by 1/128 of the difference.
const TIMES_OF: u64 = 128;
/// Cap of a measurement, as a multiple of the average. A preempted thread measures too much.
const MAX_TIMES: u64 = 3;

#[derive(Debug, Default)]
pub struct Admission {
    /// Per chunk: likelihood that its pages refault in streams, and that the pool cannot hold them.
    chunks: &'static [AtomicU32],
    /// Number of pages still to be offered.
    refused: AtomicU32,
    has_bypassed: AtomicBool,
    readers: AtomicU64,
    /// Recent minimum for one page of a stream, 0 if unknown. Concurrent readers share the time.
    read_ns: AtomicU64,
    /// Recent minimum for one page, 0 if unknown.
    write_ns: AtomicU64,
    /// Average for a compressible page, 0 if unknown.
    compress_ns: AtomicU64,
    /// Time spent on incompressible pages since the last compressible one.
    wasted_ns: AtomicU64,
    /// Average compressed size of a page, 0 for incompressible ones, times 16.
    compressed_bytes: AtomicU64,
}

/// A stream read in progress, until it is dropped or [`Reading::took`] is called.
#[derive(Debug)]
pub struct Reading<'p> {
    admission: &'p Admission,
    /// Number of concurrent readers when the read began, including this one.
    among: u64,
}

impl Admission {
    pub(crate) fn new(pages: usize) -> io::Result<Admission> {
        Ok(Admission {
            chunks: reserve_u32(2 * (pages / CHUNK_PAGES as usize + 1))?,
            // Assumed compressed size of a page before the first measurement: 2,048 bytes.
            compressed_bytes: AtomicU64::new(2048 * 16),
            ..Admission::default()
        })
    }

    fn chunk(&self, page: PageNo) -> (&AtomicU32, &AtomicU32) {
        let at = 2 * (page / CHUNK_PAGES) as usize;
        (&self.chunks[at], &self.chunks[at + 1])
    }

    pub(crate) fn waited_for(&self, page: PageNo) {
        likelihood::note(self.chunk(page).0, false);
    }

    pub(crate) fn streamed(&self, page: PageNo, was_held: bool) {
        let (streamed, outgrown) = self.chunk(page);
        likelihood::note(streamed, true);
        likelihood::note(outgrown, !was_held);
    }

    /// Returns true if the pool would probably have held a page for `left_since` more evictions.
    pub(crate) fn would_hold(&self, left_since: u64, pool_bytes: usize) -> bool {
        let compressed_bytes = self.compressed_bytes.load(Relaxed) / 16;
        let needed = (left_since.saturating_mul(compressed_bytes) / POOL_SPACE.1)
            .saturating_mul(POOL_SPACE.0);
        needed <= pool_bytes as u64
    }

    pub(crate) fn refaults_in_streams(&self, page: PageNo) -> bool {
        // From this likelihood on, a chunk's pages count as pages of streams.
        likelihood::likelihood(self.chunk(page).0) >= CERTAIN * 3 / 4
    }

    pub(crate) fn passes(&self, page: PageNo) -> bool {
        let (_, outgrown) = self.chunk(page);
        self.refaults_in_streams(page)
            && self.may_pass()
            && self.pays(likelihood::likelihood(outgrown) >= CERTAIN / 2)
    }

    pub(crate) fn may_pass(&self) -> bool {
        self.refused.load(Relaxed) == 0
    }

    /// Returns the average for a page, including failed attempts before it; 0 if unknown.
    pub(crate) fn compress_ns(&self) -> u64 {
        self.compress_ns.load(Relaxed)
    }

    /// Returns true if a page that would bypass the pool should be offered to it anyway.
    pub fn is_due(&self, page: PageNo) -> bool {
        likelihood::is_probe(self.chunk(page).0, PROBE_EVERY)
    }

    fn pays(&self, is_outgrown: bool) -> bool {
        let of = [&self.read_ns, &self.write_ns, &self.compress_ns];
        let [read_ns, write_ns, compress_ns] = of.map(|ns| ns.load(Relaxed));
        // Cost of the pool in fifths of the compression time: compression and decompression; if the
        // pool writes the page back, also the write and a read.
        let fifths = if is_outgrown { 20 } else { 8 };
        read_ns > 0 && write_ns > 0 && read_ns + write_ns <= compress_ns * fifths / 5
    }

    /// Offers the next [`REFUSED_PAGES`] pages to the pool. Returns true if pages had bypassed it,
    /// so that reclaim should retry.
    pub(crate) fn refuse(&self) -> bool {
        self.refused.swap(REFUSED_PAGES, Relaxed) == 0 && self.has_bypassed.swap(false, Relaxed)
    }

    pub(crate) fn note_bypassed(&self) {
        if !self.has_bypassed.load(Relaxed) {
            self.has_bypassed.store(true, Relaxed);
        }
    }

    fn note_offered(&self) {
        if self.refused.load(Relaxed) > 0 {
            let less = |left: u32| left.checked_sub(1);
            let _ = self.refused.fetch_update(Relaxed, Relaxed, less);
        }
    }

    pub fn read(&self) -> Reading<'_> {
        Reading { admission: self, among: self.readers.fetch_add(1, Relaxed) + 1 }
    }

    pub fn wrote(&self, pages: usize, ns: u64) {
        best(&self.write_ns, pages, ns);
    }

    /// Records a compression, or a failed attempt. The time of a failed attempt is added to that of
    /// the next compressible page, because the page is written to the disk in any case.
    pub fn compressed(&self, bytes: Option<usize>, ns: u64) {
        self.note_offered();
        follow(&self.compressed_bytes, bytes.unwrap_or(0) as u64 * 16, TIMES_OF);
        if bytes.is_none() {
            self.wasted_ns.fetch_add(ns, Relaxed);
            return;
        }
        let wasted_ns = match self.wasted_ns.load(Relaxed) {
            0 => 0,
            _ => self.wasted_ns.swap(0, Relaxed),
        };
        match self.compress_ns.load(Relaxed) {
            0 => self.compress_ns.store(ns.max(1), Relaxed),
            before => {
                follow(&self.compress_ns, (ns + wasted_ns).min(MAX_TIMES * before), TIMES_OF);
            }
        }
    }
}

/// Updates a recent minimum. A longer time moves it by 1/32 of the difference, because threads also
/// wait for a CPU before they notice a completion.
fn best(best: &AtomicU64, pages: usize, ns: u64) {
    let Some(ns) = ns.checked_div(pages as u64) else { return };
    let before = best.load(Relaxed);
    let next = match ns.checked_sub(before) {
        Some(more) if before > 0 => before + more.min(before).div_ceil(32),
        _ => ns.max(1),
    };
    best.store(next, Relaxed);
}

impl Reading<'_> {
    /// Divides the time by the number of concurrent readers at the start of the read.
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

    /// Compression takes 5 us, to 2 KiB; a page of the disk takes `disk_us` in either direction.
    fn world(disk_us: u64) -> Admission {
        let admission = Admission::new(1 << 16).unwrap();
        for _ in 0..1000 {
            admission.compressed(Some(2048), 5_000);
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
    fn unknown_cost_is_not_zero() {
        let admission = Admission::new(1 << 16).unwrap();
        (0..100).for_each(|_| admission.streamed(3, false));
        admission.compressed(Some(2048), 5_000);
        assert_eq!(passing_of(&admission, 640), 0);
        admission.read().took(64, 64_000);
        admission.read().took(0, 10);
        admission.wrote(0, 10);
        assert_eq!(passing_of(&admission, 640), 0, "the cost of a write is unknown");
        admission.wrote(32, 32_000);
        assert!(passing_of(&admission, 640) > 0);
    }

    #[test]
    fn stream_pages_bypass_pool_if_disk_is_faster() {
        let admission = world(2);
        assert_eq!(passing_of(&admission, 640), 0, "no refault was recorded yet");
        (0..100).for_each(|_| admission.streamed(3, true));
        assert_eq!(passing_of(&admission, 640), 630, "one in 64 is offered to the pool");
        assert!(!admission.passes(CHUNK_PAGES), "chunks are independent");
        (0..10).for_each(|_| admission.waited_for(3));
        assert_eq!(passing_of(&admission, 640), 0, "threads wait for these pages");
    }

    #[test]
    fn pages_too_many_for_pool_bypass_it_with_slower_disk() {
        for (us, held, outgrown) in [(3, true, true), (6, false, true), (12, false, false)] {
            let admission = world(us);
            (0..100).for_each(|_| admission.streamed(3, true));
            assert_eq!(passing_of(&admission, 640) > 0, held, "{us}");
            (0..100).for_each(|_| admission.streamed(3, false));
            assert_eq!(passing_of(&admission, 640) > 0, outgrown, "{us}");
        }
    }

    #[test]
    fn concurrent_readers_share_disk_time() {
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
    fn pool_hit_prediction_has_margin() {
        const POOL: usize = 64 << 20;
        let admission = world(2);
        assert!(admission.would_hold(23_000, POOL) && !admission.would_hold(26_000, POOL));
        (0..1000).for_each(|at| admission.compressed((at % 2 == 0).then_some(2048), 5_000));
        assert!(admission.would_hold(46_000, POOL), "half of the pages are incompressible");
        assert!(!admission.would_hold(54_000, POOL));
    }

    #[test]
    fn failed_compression_is_charged_to_compressible_pages() {
        let admission = world(7);
        (0..100).for_each(|_| admission.streamed(3, true));
        assert_eq!(passing_of(&admission, 640), 0);
        for _ in 0..1000 {
            (0..3).for_each(|_| admission.compressed(None, 1_500));
            admission.compressed(Some(2048), 5_000);
        }
        assert!(passing_of(&admission, 640) > 0);
    }

    #[test]
    fn pool_is_retried_if_disk_refuses_writes() {
        let admission = world(2);
        (0..100).for_each(|_| admission.streamed(3, false));
        admission.note_bypassed();
        assert!(admission.refuse(), "the pool may accept pages that bypassed it");
        assert!(!admission.refuse(), "retried only once");
        assert_eq!(passing_of(&admission, 640), 0);
        (0..REFUSED_PAGES).for_each(|_| admission.compressed(Some(2048), 5_000));
        assert!(admission.passes(3));
    }
}
