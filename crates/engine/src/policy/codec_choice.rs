//! What packs pages where nothing else was asked for: LZ4, or zstd, which takes longer
//! and packs them denser, while it spares more reads from the disk than it costs.
//!
//! What a denser pool is worth is seen as for the balance between the pool and
//! resident pages ([`crate::policy::partition`]). While LZ4 packs, a page found on the disk had
//! still been in the pool, were that denser, if no more were written back since than fit
//! there then. While zstd packs, a page found in the pool had been written back from one
//! that is less dense, if more left since it did than fit there. Either is counted, times what a
//! fault from the disk costs more; against it stands, for all pages packed meanwhile,
//! what zstd takes longer. How much smaller it packs them, and how much longer it
//! takes, is measured: one page in 64 is packed by both, once a packed page was found on
//! the disk, by the other one twice: what it works in is not at hand the first time.
//!
//! What speaks for a change adds up, and what speaks against it takes off again (a
//! cumulative sum, E. S. Page, 1954), until it would have paid for all that is packed in
//! the time in which a change shows. One that lost more than it gained makes the next wait
//! for twice as much.

use crate::base::average::follow;
use crate::codec::Packer;
use crate::policy::partition::{PoolView, WRITE_BACK_PERCENT};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

/// The dense one: most of what zstd gains, for little more than LZ4 takes.
pub(crate) const DENSE: Packer = Packer::Zstd { level: -1 };
/// What zstd takes, at this level, in each context that packs and unpacks with it.
const CONTEXT_BYTES: usize = 176 << 10;
/// All contexts together may take one in so many bytes of the budget for that.
const BUDGET_SHARE: usize = 8;
/// Pages packed between two looks.
const LOOK_PAGES: u64 = 512;
/// What is packed already stays as it is, so a change costs nothing by itself. But what
/// follows from it is seen only after some looks.
const LOOKS: u64 = 4;
/// One in so many is packed by both.
const PROBE_EVERY: u32 = 64;
/// How much one such page tells.
const PROBES: u64 = 16;
/// Until some were, nothing is changed.
const LEAST_PROBES: u32 = 16;
/// Unpacking takes longer by more than half of what packing does (docs/benchmarks.md,
/// *Codecs*).
const BOTH_WAYS: f64 = 1.6;
/// What the pool keeps beside a packed page, in bytes.
const HEADER_BYTES: u64 = 12;
/// Averages of sizes are kept in parts of a byte.
const PARTS: u64 = 16;
/// How often what a change costs is doubled, at most.
const MOST_DOUBT: i32 = 8;

/// Which codec packs, and what speaks for the other one.
#[derive(Debug)]
pub(crate) struct CodecChoice {
    may_be_dense: bool,
    is_dense: AtomicBool,
    /// Whether a packed page was ever found on the disk: until then nothing is gained.
    is_wanted: AtomicBool,
    /// Pages that were packed since the last look, those that went to the pool, packed
    /// anew or not, and those that left memory.
    packed: AtomicU64,
    pooled: AtomicU64,
    left: AtomicU64,
    /// Faults that were spared a read from the disk by the dense codec, or would be.
    spared: AtomicU64,
    /// Distances up to which, or from which on, they are.
    reach: AtomicU64,
    /// Objects of the pool, at most, that the fast codec has packed and the dense one is to.
    behind: AtomicU64,
    /// Whether there was no room for a page that could have been in the pool again.
    wants_room: AtomicBool,
    probe: Probe,
    gains: Mutex<Gains>,
}

/// What one page takes, packed by either; averages.
#[derive(Debug, Default)]
struct Probe {
    turn: AtomicU32,
    seen: AtomicU32,
    fast_bytes: AtomicU64,
    dense_bytes: AtomicU64,
    fast_ns: AtomicU64,
    dense_ns: AtomicU64,
}

/// What packing a page came to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    /// What it packs to.
    pub(crate) bytes: u64,
    /// How long that took.
    pub(crate) ns: u64,
}

#[derive(Debug, Default)]
struct Gains {
    for_change_ns: f64,
    doubt: i32,
    /// What the dense codec has gained since it packs.
    gained_ns: f64,
}

impl CodecChoice {
    /// For a budget of so many bytes, and so many contexts. LZ4 packs at first, and always
    /// where it is not to be `on`.
    #[must_use]
    pub(crate) fn new(budget_bytes: usize, contexts: usize, on: bool) -> CodecChoice {
        CodecChoice {
            may_be_dense: on && contexts * CONTEXT_BYTES <= budget_bytes / BUDGET_SHARE,
            is_dense: AtomicBool::new(false),
            is_wanted: AtomicBool::new(false),
            packed: AtomicU64::new(0),
            pooled: AtomicU64::new(0),
            left: AtomicU64::new(0),
            spared: AtomicU64::new(0),
            reach: AtomicU64::new(0),
            behind: AtomicU64::new(0),
            wants_room: AtomicBool::new(false),
            probe: Probe::default(),
            gains: Mutex::default(),
        }
    }

    /// What packs the next page.
    #[must_use]
    pub(crate) fn packer(&self) -> Packer {
        if self.is_dense.load(Relaxed) { DENSE } else { Packer::Lz4 }
    }

    /// The pool had no room for a page. Whether what the fast codec has packed before may
    /// make some, packed anew.
    pub(crate) fn want_room(&self) -> bool {
        let is_behind = self.behind.load(Relaxed) > 0;
        if is_behind {
            self.wants_room.store(true, Relaxed);
        }
        is_behind
    }

    /// Whether some of that is to be packed anew: once each time that room was wanted.
    #[must_use]
    pub(crate) fn take_wish(&self) -> bool {
        self.wants_room.load(Relaxed)
            && self.wants_room.swap(false, Relaxed)
            && self.behind.load(Relaxed) > 0
    }

    /// So many of the pool's objects, the oldest, have been looked through for such.
    pub(crate) fn note_condensed(&self, objects: u64) {
        let less = |behind: u64| Some(behind.saturating_sub(objects));
        let _ = self.behind.fetch_update(Relaxed, Relaxed, less);
    }

    /// What is to pack the next page beside `packer`, to see what that comes to, if it is
    /// time.
    #[must_use]
    pub(crate) fn to_try(&self, packer: Packer) -> Option<Packer> {
        // zstd's memory is not touched for nothing.
        let is_due = self.may_be_dense
            && self.is_wanted.load(Relaxed)
            && self.probe.turn.fetch_add(1, Relaxed).is_multiple_of(PROBE_EVERY);
        is_due.then_some(if packer == DENSE { Packer::Lz4 } else { DENSE })
    }

    /// Notes what packing the same page came to.
    pub(crate) fn note_tried(&self, packer: Packer, by_packer: Sample, by_other: Sample) {
        let (fast, dense) =
            if packer == DENSE { (by_other, by_packer) } else { (by_packer, by_other) };
        let probe = &self.probe;
        let is_first = probe.seen.fetch_add(1, Relaxed) == 0;
        for (average, seen) in [
            (&probe.fast_bytes, (fast.bytes + HEADER_BYTES) * PARTS),
            (&probe.dense_bytes, (dense.bytes + HEADER_BYTES) * PARTS),
            (&probe.fast_ns, fast.ns),
            (&probe.dense_ns, dense.ns),
        ] {
            // A thread that was interrupted tells nothing of the codec.
            let seen = if is_first { seen } else { seen.min(2 * average.load(Relaxed) + PROBES) };
            if is_first { average.store(seen, Relaxed) } else { follow(average, seen, PROBES) }
        }
    }

    /// So many pages left memory.
    pub(crate) fn note_left(&self, pages: u64) {
        self.left.fetch_add(pages, Relaxed);
    }

    /// A page was packed, or could not be.
    pub(crate) fn note_packed(&self) {
        self.packed.fetch_add(1, Relaxed);
    }

    /// A page went to the pool, packed just now or as it was.
    pub(crate) fn note_pooled(&self) {
        self.pooled.fetch_add(1, Relaxed);
    }

    /// A touched page was in the pool, and so many had left memory since it did.
    pub(crate) fn found_in_pool(&self, distance: u64) {
        if self.is_dense.load(Relaxed) && distance > self.reach.load(Relaxed) {
            self.spared.fetch_add(1, Relaxed);
        }
    }

    /// A touched page was on the disk, packed, and the pool would have had to hold so
    /// many more for it.
    pub(crate) fn found_on_disk(&self, more: u64) {
        if !self.is_wanted.load(Relaxed) {
            self.is_wanted.store(true, Relaxed);
        }
        if !self.is_dense.load(Relaxed) && more < self.reach.load(Relaxed) {
            self.spared.fetch_add(1, Relaxed);
        }
    }

    /// Looks whether the other codec is to pack from now on, once enough pages were
    /// packed, by what is spared with a page that stays in the pool.
    pub(crate) fn step(&self, view: impl FnOnce() -> PoolView, spared_ns: impl FnOnce() -> f64) {
        if !self.may_be_dense || self.packed.load(Relaxed) < LOOK_PAGES {
            return;
        }
        // Not waited for: a forked child may find it taken for good.
        let Ok(mut gains) = self.gains.try_lock() else { return };
        let [packed, pooled, left, spared] = [&self.packed, &self.pooled, &self.left, &self.spared]
            .map(|count| count.swap(0, Relaxed));
        let view = view();
        let is_dense = self.is_dense.load(Relaxed);
        let (times, longer_ns) = self.probe.of_dense();
        self.reach.store(reach(view, times, (is_dense, pooled, left)), Relaxed);
        if self.probe.seen.load(Relaxed) < LEAST_PROBES {
            return;
        }
        let for_dense_ns = spared as f64 * spared_ns() - packed as f64 * longer_ns;
        let for_change_ns = if is_dense { -for_dense_ns } else { for_dense_ns };
        gains.gained_ns += if is_dense { for_dense_ns } else { 0.0 };
        // What the dense codec gains shows when the pool has been packed anew by it.
        let all = view.objects as u64;
        let pages = if is_dense { all.max(LOOKS * LOOK_PAGES) } else { LOOKS * LOOK_PAGES };
        if gains.follow(for_change_ns, pages as f64 * longer_ns) {
            gains.change(is_dense);
            self.is_dense.store(!is_dense, Relaxed);
            self.behind.store(if is_dense { 0 } else { view.objects as u64 }, Relaxed);
            // What is found now was judged by the other codec's.
            self.reach.store(if is_dense { 0 } else { u64::MAX }, Relaxed);
        }
    }
}

impl Probe {
    /// How many times as many pages the dense codec packs into the same room, and how
    /// much longer each takes both ways together.
    fn of_dense(&self) -> (f64, f64) {
        let [fast_bytes, dense_bytes, fast_ns, dense_ns] =
            [&self.fast_bytes, &self.dense_bytes, &self.fast_ns, &self.dense_ns]
                .map(|average| average.load(Relaxed) as f64);
        let longer_ns = (dense_ns - fast_ns).max(0.0) * BOTH_WAYS;
        (fast_bytes / dense_bytes.max(1.0), longer_ns)
    }
}

/// While LZ4 packs: how many more pages the pool would hold, were it `times` as dense. While
/// the dense codec does: after how many pages that left, of which only some went to the
/// pool, one had been written back from a pool that is less dense.
fn reach(view: PoolView, times: f64, (is_dense, pooled, left): (bool, u64, u64)) -> u64 {
    let more = (times - 1.0).max(0.0);
    if !is_dense {
        return (view.objects as f64 * more) as u64;
    }
    let room = (view.limit_bytes / 100 * WRITE_BACK_PERCENT) as f64;
    let held = room / (view.average_bytes() as f64 * times.max(1.0));
    (held * left.max(pooled) as f64 / pooled.max(1) as f64) as u64
}

impl Gains {
    /// The other codec would have gained so much since the last look, or lost. Whether
    /// it is to pack from now on.
    fn follow(&mut self, for_change_ns: f64, cost_ns: f64) -> bool {
        self.for_change_ns = (self.for_change_ns + for_change_ns).max(0.0);
        self.for_change_ns > cost_ns * 2_f64.powi(self.doubt)
    }

    /// Another codec packs from now on. If the dense one has lost more than it gained, it
    /// was wrong.
    fn change(&mut self, is_back: bool) {
        let doubt = match (is_back, self.gained_ns > 0.0) {
            (true, false) => self.doubt + 1,
            (true, true) => self.doubt - 1,
            (false, _) => self.doubt,
        };
        *self = Gains { doubt: doubt.clamp(0, MOST_DOUBT), ..Gains::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: usize = 64 << 20;
    /// What a page that stays in the pool spares.
    const SPARED_NS: f64 = 50_000.0;

    /// A full pool of 10,000 pages of 1 KiB.
    fn view() -> PoolView {
        PoolView { limit_bytes: 10_240_000, used_bytes: 10_240_000, objects: 10_000 }
    }

    /// The dense codec packs twice as dense, and takes 4 us longer, 6 both ways.
    fn density(budget_bytes: usize) -> CodecChoice {
        let density = CodecChoice::new(budget_bytes, 13, true);
        let (fast, dense) = (Sample { bytes: 1024, ns: 4000 }, Sample { bytes: 512, ns: 8000 });
        (0..LEAST_PROBES).for_each(|_| density.note_tried(Packer::Lz4, fast, dense));
        density
    }

    /// One look: so many of its faults were on pages that would have been kept, or lost.
    fn look(density: &CodecChoice, spared: u64) -> Packer {
        for at in 0..LOOK_PAGES {
            density.note_packed();
            density.note_pooled();
            let is_one = at < spared;
            match density.packer() {
                Packer::Lz4 => density.found_on_disk(if is_one { 5_000 } else { 15_000 }),
                Packer::Zstd { .. } => density.found_in_pool(if is_one { 9_000 } else { 2_000 }),
            }
        }
        density.note_left(LOOK_PAGES);
        density.step(view, || SPARED_NS);
        density.packer()
    }

    fn looks_until(density: &CodecChoice, packer: Packer, spared: u64) -> Option<usize> {
        (0..2000).find(|_| look(density, spared) == packer)
    }

    #[test]
    fn the_dense_codec_packs_while_it_spares_more_than_it_costs() {
        // 512 pages take 3 ms longer: as much as 61 faults from the disk cost more.
        let density = density(BUDGET);
        assert_eq!(looks_until(&density, DENSE, 55), None);
        assert!(looks_until(&density, DENSE, 200).is_some_and(|looks| looks < 5));
        assert_eq!(looks_until(&density, Packer::Lz4, 70), None);
        assert!(looks_until(&density, Packer::Lz4, 10).is_some_and(|looks| looks < 40));
    }

    #[test]
    fn a_change_that_lost_makes_the_next_one_wait_for_twice_as_much() {
        let density = density(BUDGET);
        let waits: Vec<_> = (0..6)
            .map(|_| {
                let forth = looks_until(&density, DENSE, 100).unwrap();
                looks_until(&density, Packer::Lz4, 0).unwrap();
                forth
            })
            .collect();
        assert!(waits[5] > 8 * waits[0].max(1), "{waits:?}");
        // One that gained for long is no reason to doubt.
        looks_until(&density, DENSE, 100).unwrap();
        assert_eq!(looks_until(&density, Packer::Lz4, 300), None);
        looks_until(&density, Packer::Lz4, 0).unwrap();
        assert!(looks_until(&density, DENSE, 100).unwrap() <= waits[5]);
    }

    #[test]
    fn with_little_memory_or_nothing_tried_lz4_packs() {
        for density in [density(BUDGET / 4), CodecChoice::new(BUDGET, 13, true)] {
            assert_eq!(looks_until(&density, DENSE, LOOK_PAGES), None);
        }
        let (small, large) =
            (CodecChoice::new(BUDGET / 4, 13, true), CodecChoice::new(BUDGET, 13, true));
        small.found_on_disk(0);
        assert!((0..1000).all(|_| small.to_try(Packer::Lz4).is_none() && large.to_try(Packer::Lz4).is_none()));
        large.found_on_disk(u64::MAX);
        assert!((0..1000).any(|_| large.to_try(Packer::Lz4).is_some()));
    }

    #[test]
    fn one_page_in_64_is_packed_by_the_other_codec_too() {
        let density = density(BUDGET);
        let tried = |density: &CodecChoice| {
            (0..640).filter_map(|_| density.to_try(density.packer())).collect()
        };
        density.found_on_disk(0);
        let tried_fast: Vec<_> = tried(&density);
        assert_eq!(tried_fast, [DENSE; 10]);
        assert!(looks_until(&density, DENSE, LOOK_PAGES).is_some());
        let tried_dense: Vec<_> = tried(&density);
        assert_eq!(tried_dense, [Packer::Lz4; 10]);
    }

    #[test]
    fn what_is_tried_tells_how_dense_and_how_slow() {
        let density = density(BUDGET);
        let (times, longer_ns) = density.probe.of_dense();
        assert!((1.9..2.1).contains(&times) && (5500.0..6500.0).contains(&longer_ns));
        // A thread that is interrupted now and then changes little, data of another kind all.
        let (fast, dense) = (Sample { bytes: 2048, ns: 4000 }, Sample { bytes: 1850, ns: 8000 });
        for at in 0..400 {
            let ns = if at % 20 == 0 { 5_000_000 } else { fast.ns };
            density.note_tried(DENSE, dense, Sample { ns, ..fast });
        }
        let (times, longer_ns) = density.probe.of_dense();
        assert!((1.05..1.15).contains(&times), "{times}");
        assert!((4000.0..6500.0).contains(&longer_ns), "{longer_ns}");
    }

    #[test]
    fn what_was_packed_before_a_change_is_packed_anew_once_where_room_is_wanted() {
        let density = density(BUDGET);
        assert!(!density.want_room() && !density.take_wish(), "all is as dense as it gets");
        looks_until(&density, DENSE, LOOK_PAGES).unwrap();
        assert!(!density.take_wish(), "nobody wants room");
        assert!(density.want_room() && density.take_wish() && !density.take_wish());
        density.note_condensed(view().objects as u64 - 1);
        assert!(density.want_room());
        density.note_condensed(32);
        assert!(!density.take_wish() && !density.want_room());
        looks_until(&density, Packer::Lz4, 0).unwrap();
        assert!(!density.want_room());
    }

    #[test]
    fn reach_is_what_the_other_pool_would_hold_more_or_less() {
        assert_eq!(reach(view(), 1.5, (false, 100, 100)), 5000);
        assert_eq!(reach(view(), 0.5, (false, 100, 100)), 0);
        // Nine tenths of the limit, in pages of 2 KiB; half of those that left were pooled.
        assert_eq!(reach(view(), 2.0, (true, 100, 100)), 4500);
        assert_eq!(reach(view(), 2.0, (true, 100, 200)), 9000);
        let empty = PoolView { limit_bytes: 0, used_bytes: 0, objects: 0 };
        assert_eq!(reach(empty, f64::INFINITY, (true, 0, 0)), 0);
    }
}
