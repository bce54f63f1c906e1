//! The whole state of an engine, and its reports to the policies and the shared counters.

use crate::base::page::{PageNo, Place};
use crate::base::stats::{Counter, Return, Stats};
use crate::core::background::Background;
use crate::core::errors::die;
use crate::core::memory::Memory;
use crate::core::policies::Policies;
use crate::core::recorder::Recorder;
use crate::core::stores::Stores;
use crate::policy::partition::PoolView;
use crate::store::swap::SwapArea;
use softswap_sys::PAGE_SIZE;
use softswap_sys::alloc::HEAP;
use softswap_sys::raw::{now_ns, process_cpu_ns};

pub(crate) struct Core {
    pub(crate) memory: Memory,
    pub(crate) stores: Stores,
    pub(crate) policies: Policies,
    pub(crate) background: Background,
    pub(crate) recorder: Option<Recorder>,
    pub(crate) stats: Stats,
    pub(crate) is_quiet: bool,
}

impl Core {
    pub(crate) fn die(&self, why: &str) -> ! {
        die(self.stats, why)
    }

    /// Returns the number of bytes charged to the budget outside pages and the fixed part.
    pub(crate) fn other_bytes(&self) -> usize {
        self.stores.used_bytes() + self.metadata_bytes() + HEAP.taken_bytes()
    }

    pub(crate) fn metadata_bytes(&self) -> usize {
        self.memory.space.metadata_bytes() + self.policies.clock.refaults.metadata_bytes()
    }

    /// Returns the number of bytes in use. While they are counted, pages become pool objects and
    /// pool objects pages. With the smaller number of pages, none of them counts twice.
    pub(crate) fn used_bytes(&self) -> usize {
        let budget = &self.memory.budget;
        let (pages, other_bytes) = (budget.pages(), self.other_bytes());
        budget.used_with(pages.min(budget.pages()), other_bytes)
    }

    pub(super) fn non_resident_slots(&self) -> u64 {
        let copies = self.policies.stored_copies.count() as u64;
        self.stores.areas.used_slots().saturating_sub(copies)
    }

    pub(crate) fn report(&self) {
        self.stores.report_buffers();
        self.report_peaks();
    }

    pub(crate) fn report_peaks(&self) {
        self.stores.report_areas();
        let (stats, pool, areas) = (&self.stats, &self.stores.pool, &self.stores.areas);
        let used_bytes = self.used_bytes() as u64;
        let budget_bytes = self.memory.budget.limit_bytes() as u64;
        stats.set(Counter::BudgetBytes, budget_bytes);
        stats.peak(Counter::BudgetPeakBytes, budget_bytes);
        stats.set(Counter::UsedBytes, used_bytes);
        stats.peak(Counter::UsedPeakBytes, used_bytes);
        let pages = self.memory.budget.pages() * PAGE_SIZE;
        stats.set(Counter::ResidentBytes, pages as u64);
        stats.peak(Counter::ResidentPeakBytes, pages as u64);
        stats.peak(Counter::PoolPeakBytes, pool.used_bytes() as u64);
        stats.set(Counter::PoolObjects, pool.objects() as u64);
        stats.set(Counter::PoolStoredBytes, pool.stored_bytes() as u64);
        stats.set(Counter::PoolUsedBytes, pool.used_bytes() as u64);
        stats.set(Counter::PoolLimitBytes, pool.limit_bytes() as u64);
        let disk_bytes = areas.used_slots() * PAGE_SIZE as u64;
        stats.set(Counter::DiskBytes, disk_bytes);
        stats.peak(Counter::DiskPeakBytes, disk_bytes);
        stats.peak(Counter::MetadataPeakBytes, self.metadata_bytes() as u64);
        let mapped_bytes = self.memory.space.mapped_bytes() as u64;
        stats.set(Counter::MappedBytes, mapped_bytes);
        stats.peak(Counter::MappedPeakBytes, mapped_bytes);
        stats.set(Counter::SwapFileBytes, areas.size_bytes());
        let mappings = self.memory.window.mappings() as u64;
        stats.set(Counter::Mappings, mappings);
        stats.peak(Counter::MappingsPeak, mappings);
        stats.set(Counter::MappingsLimit, self.memory.window.mappings_limit() as u64);
    }

    /// The caller holds the page's claim, and the page's age is not decided yet.
    pub(crate) fn note_return(&self, page: PageNo, place: Place) {
        if let (Place::Slot { .. }, Some(distance)) =
            (place, self.policies.clock.refaults.distance(page))
        {
            // Pages of streams are not kept on standby, so they would not be found there.
            let is_in_stream = self.policies.admission.refaults_in_streams(page);
            let left = if is_in_stream { u64::MAX } else { distance };
            self.stores.standby.note_return(left, self.non_resident_slots());
        }
        let from = match place {
            Place::Slot { is_incompressible: true, .. } => Some(Return::Incompressible),
            Place::Slot { .. } | Place::CompressedSlot { .. } => Some(Return::Disk),
            Place::Pool { .. } | Place::SameFilled { .. } => Some(Return::Pool),
            _ => None,
        };
        if let (Some(from), Some(left)) = (from, self.policies.clock.refaults.distance(page)) {
            self.stats.record_return(from, left);
        }
        self.policies.note_return(page, place, || self.pool_view());
    }

    pub(crate) fn bypasses_pool(&self, page: PageNo) -> bool {
        let slots_are_plenty = || self.stores.areas.own().any(SwapArea::has_spare);
        self.stores.may_write()
            && self.policies.bypasses_pool(page, slots_are_plenty, || self.pool_view())
    }

    pub(crate) fn pool_view(&self) -> PoolView {
        let pool = &self.stores.pool;
        let (limit_bytes, used_bytes) = (pool.limit_bytes(), pool.used_bytes());
        PoolView { limit_bytes, used_bytes, objects: pool.objects() }
    }

    pub(crate) fn balance_pool(&self) {
        let Self { policies, memory, .. } = self;
        let (partition, pool) = (&policies.partition, &self.stores.pool);
        partition.costs.sample(now_ns(), process_cpu_ns);
        // A forked child without areas has no other place for pages.
        if !self.stores.may_write() {
            return;
        }
        let set_limit = |limit_bytes| pool.set_limit_bytes(limit_bytes);
        let distance = |random| {
            let owner = pool.owner_at_random(random)?;
            // A damaged header may contain any owner.
            (owner < memory.window.pages() as u64)
                .then(|| policies.clock.refaults.distance(owner))?
        };
        partition.step(|| self.pool_view(), distance, set_limit);
    }
}
