//! Publishes the engine's state in the shared counters.

use crate::base::stats::Counter;
use crate::core::state::Core;
use softswap_sys::PAGE_SIZE;
use softswap_sys::raw::{now_ns, write_stderr};

impl Core {
    /// Prints a message if a thread has waited long for a buffer.
    pub(crate) fn report_full_buffers(&self) {
        if let Some(message) = self.stores.bounce.full_message(now_ns()) {
            write_stderr(message.as_bytes());
        }
    }

    pub(crate) fn report(&self) {
        self.stores.report_buffers();
        self.report_peaks();
    }

    /// Updates gauges and peaks.
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
}
