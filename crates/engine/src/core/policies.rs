//! The policies, and the settings that can be changed while a program runs.

use crate::base::page::{PageNo, Place};
use crate::codec::{Choice, Compressor, Selector};
use crate::policy::admission::Admission;
use crate::policy::clock::{Clock, PREFETCHED};
use crate::policy::compression_tier::CompressionTier;
use crate::policy::mechanism::{Mechanism, Without};
use crate::policy::partition::{Partition, PoolView};
use crate::policy::prefetch::advised::Advised;
use crate::policy::prefetch::offset_prefetch::OffsetPrefetch;
use crate::policy::prefetch::readahead::Readahead;
use crate::policy::stored_copies::{KeepCopy, StoredCopies};
use crate::policy::write_load::WriteLoad;
use softswap_sys::PAGE_SIZE;
use std::io;

/// A page evicted now is this many times as likely to be touched soon as the oldest pages in the
/// pool. Smaller values slow down programs that have hot and cold pages.
const RECENT_TO_OLD_LIKELIHOOD: f64 = 8.0;

#[derive(Debug, Clone, Copy, Default)]
pub struct Batch {
    pub left: u64,
    pub for_disk: usize,
    pub cpu_ns: u64,
}

pub struct Policies {
    pub(crate) without: Without,
    pub clock: Clock,
    pub admission: Admission,
    pub partition: Partition,
    pub(crate) write_load: WriteLoad,
    pub readahead: Readahead,
    pub(crate) offset_prefetch: OffsetPrefetch,
    pub(crate) advised: Advised,
    pub stored_copies: StoredCopies,
    pub(crate) codec: Selector,
    pub tier: CompressionTier,
}

impl Policies {
    /// Fails if no address space is left for the tables.
    pub fn new(
        window_pages: usize,
        budget_bytes: usize,
        contexts: usize,
        partition: Partition,
        codec: Choice,
        without: Without,
    ) -> io::Result<Policies> {
        let budget_pages = budget_bytes / PAGE_SIZE;
        Ok(Policies {
            without,
            clock: Clock::new(window_pages, budget_pages)?,
            admission: Admission::new(window_pages)?,
            partition,
            write_load: WriteLoad::default(),
            readahead: Readahead::new(budget_pages, without),
            offset_prefetch: OffsetPrefetch::new(window_pages)?,
            advised: Advised::new(window_pages)?,
            stored_copies: StoredCopies::new(window_pages)?,
            codec: Selector::new(codec),
            tier: CompressionTier::new(budget_bytes, contexts, !without.has(Mechanism::DenseTier)),
        })
    }

    /// Does not resize the partition.
    pub(crate) fn resize(&self, budget_bytes: usize) {
        self.clock.refaults.resize(budget_bytes / PAGE_SIZE);
        self.readahead.resize(budget_bytes / PAGE_SIZE);
        self.tier.resize(budget_bytes);
    }

    pub fn has(&self, mechanism: Mechanism) -> bool {
        !self.without.has(mechanism)
    }

    /// The caller holds the page's claim and has not called [`Policies::age_of_faulted`] yet.
    pub fn note_return(&self, page: PageNo, place: Place, pool: impl FnOnce() -> PoolView) {
        let Some(distance) = self.clock.refaults.distance(page) else { return };
        match place {
            Place::Slot { .. } if self.admission.refaults_in_streams(page) => {}
            Place::Slot { is_incompressible: true, .. } => {
                self.partition.note_incompressible_fault(distance)
            }
            Place::Pool { .. } => {
                self.partition.write_back_rate.note_held();
                let PoolView { limit_bytes, used_bytes, .. } = pool();
                self.partition.note_pool_fault(distance, limit_bytes, used_bytes);
            }
            // A larger pool would also hold the pages that bypassed it when it was full.
            Place::Slot { .. } => {
                let more = self.partition.write_back_rate.note_refault_after(distance);
                self.partition.note_disk_fault(more, pool());
            }
            Place::CompressedSlot { .. } => {
                let more = self.partition.write_back_rate.note_write_back_refault(distance);
                self.partition.note_disk_fault(more, pool());
            }
            _ => {}
        }
    }

    /// Called before the page's age is decided. `limit_bytes` is the pool's limit.
    pub fn note_streamed(&self, page: PageNo, place: Place, limit_bytes: usize) {
        let was_held = match (place, self.clock.refaults.distance(page)) {
            (Place::Pool { .. }, _) => true,
            (Place::CompressedSlot { .. }, _) => false,
            (Place::Slot { .. }, Some(left)) => self.admission.would_hold(left, limit_bytes),
            _ => return,
        };
        self.admission.streamed(page, was_held);
    }

    pub fn note_waited_for(&self, page: PageNo, place: Place) {
        if matches!(place, Place::Pool { .. } | Place::Slot { .. } | Place::CompressedSlot { .. }) {
            self.admission.waited_for(page);
        }
    }

    /// Returns true if a page should skip the pool: its chunk refaults in streams and the disk is
    /// cheaper, or the pool is nearly full and its pages are touched too rarely. The second case
    /// requires plenty of free slots, because an uncompressed page uses a whole one.
    pub fn bypasses_pool(
        &self,
        page: PageNo,
        slots_are_plenty: impl FnOnce() -> bool,
        pool: impl FnOnce() -> PoolView,
    ) -> bool {
        let gains_too_little = || {
            self.admission.may_pass()
                && pool().is_nearly_full()
                && slots_are_plenty()
                && !self.is_held_for_long()
        };
        self.has(Mechanism::Admission) && (self.admission.passes(page) || gains_too_little())
    }

    /// Returns true if pages in the pool are touched often enough to pay for compressing those that
    /// are written back.
    fn is_held_for_long(&self) -> bool {
        let (pool_ns, disk_ns) = self.partition.costs.faults_ns();
        let spared_ns = disk_ns.saturating_sub(pool_ns) as f64;
        let share_held = self.partition.write_back_rate.share_held();
        RECENT_TO_OLD_LIKELIHOOD * share_held * spared_ns
            >= self.admission.compress_ns() as f64
                + (1.0 - share_held) * self.partition.costs.write_back_ns() as f64
    }

    pub fn age_of_faulted(&self, page: PageNo, place: Place, resident: usize) -> u8 {
        if place == Place::Vacant || !self.has(Mechanism::RefaultDistance) {
            return self.clock.age_of_new(page);
        }
        self.clock.age_of_refault(page, resident)
    }

    /// Pages outside streams may never be touched, so they are evicted first.
    pub fn age_of_read_ahead(&self, page: PageNo, is_stream: bool, resident: usize) -> u8 {
        if !is_stream {
            return PREFETCHED;
        }
        self.clock.age_of_refault(page, resident)
    }

    /// Decides if a page keeps its stored copy after a swap-in for reading. Only a touched page is
    /// known to refault early or not. Another page must be rarely written in both cases.
    #[must_use]
    pub fn keep_copy(
        &self,
        page: PageNo,
        place: Place,
        has_space_left: bool,
        is_touched: bool,
    ) -> KeepCopy {
        let mechanism = match place {
            Place::Pool { .. } => Mechanism::PoolCopies,
            _ => Mechanism::SwapCache,
        };
        let refaults_early = self.clock.refaults.refaults_early(page);
        let is_rarely_written = |soon| self.stored_copies.is_rarely_written(page, soon);
        let is_worth_a_copy = || {
            is_rarely_written(refaults_early) && (is_touched || is_rarely_written(!refaults_early))
        };
        match has_space_left && self.has(mechanism) {
            true if is_worth_a_copy() => KeepCopy::Yes,
            _ => KeepCopy::No,
        }
    }

    pub fn note_batch(&self, found: usize, batch: Batch) {
        let Batch { left, for_disk, cpu_ns } = batch;
        self.write_load.note(found, for_disk);
        self.partition.write_back_rate.note_evictions(left);
        self.partition.costs.note_evictions(left, cpu_ns);
    }

    pub(crate) fn is_current_codec(&self, tag: u8) -> bool {
        match self.codec.get() {
            Choice::Auto => true,
            Choice::Fixed(compressor) => {
                compressor.is_some_and(|compressor| compressor.codec().tag() == tag)
            }
        }
    }

    pub fn note_bypassed(&self, page: PageNo) {
        self.admission.note_bypassed();
        if !self.admission.refaults_in_streams(page) {
            self.partition.write_back_rate.note_bypassed();
        }
    }

    pub fn has_codec(&self) -> bool {
        self.codec.get() != Choice::Fixed(None)
    }

    /// Returns the codec to use if the working memory of `compressor` does not fit into the budget.
    pub(crate) fn without_memory(&self, compressor: Compressor) -> Option<Compressor> {
        (self.codec.get() == Choice::Auto && compressor != Compressor::Lz4)
            .then_some(Compressor::Lz4)
    }

    pub fn compressor(&self, pool: impl FnOnce() -> PoolView) -> Option<Compressor> {
        match self.codec.get() {
            Choice::Auto => Some(self.tier.first_try(|| pool().is_filling())),
            Choice::Fixed(compressor) => compressor,
        }
    }

    pub fn second_compressor(&self, first: Compressor) -> Option<Compressor> {
        let is_on = first == Compressor::Lz4 && self.codec.get() == Choice::Auto;
        if is_on { self.tier.second_try() } else { None }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    const PAGE: PageNo = 3;

    fn policies() -> Policies {
        let budget_bytes = 64 << 20;
        let partition = Partition::new(true, 1 << 20, 48 << 20, budget_bytes, 1);
        let (codec, without) = (Choice::Auto, Without::default());
        Policies::new(1 << 16, budget_bytes, 4, partition, codec, without).unwrap()
    }

    fn pool(used_percent: usize) -> PoolView {
        let limit_bytes = 16 << 20;
        PoolView { limit_bytes, used_bytes: limit_bytes / 100 * used_percent, objects: 4096 }
    }

    /// Records pages that leave the pool, `percent` of them by a touch.
    fn held(policies: &Policies, percent: u64) {
        let rate = &policies.partition.write_back_rate;
        (0..100 * percent).for_each(|_| rate.note_held());
        rate.note_write_backs(100 * (100 - percent));
        (0..1000).for_each(|_| policies.admission.compressed(Some(2048), 20_000));
    }

    #[test]
    fn full_pool_without_hits_admits_nothing() {
        let passes = |percent, used_percent, slots_are_plenty| {
            let policies = policies();
            held(&policies, percent);
            policies.bypasses_pool(PAGE, || slots_are_plenty, || pool(used_percent))
        };
        assert!(passes(1, 95, true));
        assert!(!passes(1, 50, true), "the pool has free space");
        assert!(!passes(1, 95, false), "few slots are free");
        assert!(!passes(80, 95, true), "most pages are touched in the pool");
        let policies = policies();
        assert!(!policies.bypasses_pool(PAGE, || true, || pool(95)), "nothing was measured yet");
    }

    #[test]
    fn full_pool_is_tried_if_disk_refuses_writes() {
        let policies = policies();
        held(&policies, 1);
        policies.note_bypassed(PAGE);
        assert!(policies.admission.refuse());
        assert!(!policies.bypasses_pool(PAGE, || true, || pool(95)));
    }

    #[test]
    fn bypassed_compressible_pages_enlarge_the_pool() {
        let share_after_refault = |is_incompressible| {
            let policies = policies();
            policies.clock.refaults.note_eviction(PAGE);
            (0..100).for_each(|page| policies.clock.refaults.note_eviction(1000 + page));
            policies.partition.write_back_rate.note_evictions(100);
            (0..100).for_each(|_| policies.note_bypassed(PAGE));
            let place = Place::Slot { slot: 1, is_incompressible };
            policies.note_return(PAGE, place, || pool(95));
            policies.partition.write_back_rate.refault_share()
        };
        assert!(share_after_refault(false) > share_after_refault(true));
    }
}
