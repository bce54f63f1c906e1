//! Snapshot of an engine's counters.

use softswap_engine::base::stats::{Counter, Stats, TIERS, Tier};

/// Figures read one after the other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reading {
    pub budget_bytes: u64,
    pub used_bytes: u64,
    pub resident_bytes: u64,
    /// Whole slabs.
    pub pool_bytes: u64,
    pub pool_pages: u64,
    /// Compressed, in the slabs.
    pub pool_stored_bytes: u64,
    pub disk_bytes: u64,
    pub mapped_bytes: u64,
    /// This and the counts up to `polled_ns` are cumulative since the start.
    pub faults: [u64; TIERS.len()],
    pub waited_ns: [u64; TIERS.len()],
    pub stalled_ns: u64,
    pub pages_out: u64,
    pub pages_same_filled: u64,
    pub pages_pooled: u64,
    pub pooled_bytes: u64,
    pub pages_incompressible: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
    pub direct_reclaims: u64,
    /// Including pages that failed verification.
    pub errors: u64,
    /// CPU time of waits for reads.
    pub polled_ns: u64,
    pub engine_threads: u64,
    /// Created by page protection; 0 with userfaultfd.
    pub mappings: u64,
    pub mappings_limit: u64,
}

impl Reading {
    #[must_use]
    pub fn of(stats: &Stats) -> Reading {
        use Counter as C;
        let get = |counter| stats.get(counter);
        let errors = [C::WriteErrors, C::ReadErrors, C::ChecksumErrors, C::DecompressErrors];
        Reading {
            budget_bytes: get(C::BudgetBytes),
            used_bytes: get(C::UsedBytes),
            // A sleeping process has no resident count; show committed memory.
            resident_bytes: get(if get(C::Asleep) != 0 { C::UsedBytes } else { C::ResidentBytes }),
            pool_bytes: get(C::PoolUsedBytes),
            pool_pages: get(C::PoolObjects),
            pool_stored_bytes: get(C::PoolStoredBytes),
            disk_bytes: get(C::DiskBytes),
            mapped_bytes: get(C::MappedBytes),
            faults: TIERS.map(|tier| stats.faults(tier)),
            waited_ns: TIERS.map(|tier| stats.waited_ns(tier)),
            stalled_ns: get(C::StalledNs),
            pages_out: get(C::PagesOut),
            pages_same_filled: get(C::PagesSameFilled),
            pages_pooled: get(C::PagesPooled),
            pooled_bytes: get(C::PooledBytes),
            pages_incompressible: get(C::PagesIncompressible),
            bytes_read: get(C::BytesRead),
            bytes_written: get(C::BytesWritten),
            direct_reclaims: get(C::DirectReclaims),
            errors: errors.into_iter().map(get).sum(),
            polled_ns: get(C::IoWaitCpuNs),
            engine_threads: get(C::EngineThreads),
            mappings: get(C::Mappings),
            mappings_limit: get(C::MappingsLimit),
        }
    }

    /// Returns the rest of the budget: tables, buffers, pages in transit and on standby.
    #[must_use]
    pub fn other_bytes(&self) -> u64 {
        self.used_bytes.saturating_sub(self.resident_bytes + self.pool_bytes)
    }

    /// Bytes before over bytes after, of all pages stored in the pool.
    #[must_use]
    pub fn compression_ratio(&self) -> Option<f64> {
        let before = self.pages_pooled * softswap_sys::PAGE_SIZE as u64;
        (self.pooled_bytes > 0).then(|| before as f64 / self.pooled_bytes as f64)
    }

    #[must_use]
    pub fn faults_of(&self, tier: Tier) -> u64 {
        self.faults[tier as usize]
    }

    pub fn add(&mut self, other: &Reading) {
        let each = [
            (&mut self.budget_bytes, other.budget_bytes),
            (&mut self.used_bytes, other.used_bytes),
            (&mut self.resident_bytes, other.resident_bytes),
            (&mut self.pool_bytes, other.pool_bytes),
            (&mut self.pool_pages, other.pool_pages),
            (&mut self.pool_stored_bytes, other.pool_stored_bytes),
            (&mut self.disk_bytes, other.disk_bytes),
            (&mut self.mapped_bytes, other.mapped_bytes),
            (&mut self.stalled_ns, other.stalled_ns),
            (&mut self.pages_out, other.pages_out),
            (&mut self.pages_same_filled, other.pages_same_filled),
            (&mut self.pages_pooled, other.pages_pooled),
            (&mut self.pooled_bytes, other.pooled_bytes),
            (&mut self.pages_incompressible, other.pages_incompressible),
            (&mut self.bytes_read, other.bytes_read),
            (&mut self.bytes_written, other.bytes_written),
            (&mut self.direct_reclaims, other.direct_reclaims),
            (&mut self.errors, other.errors),
            (&mut self.polled_ns, other.polled_ns),
            (&mut self.engine_threads, other.engine_threads),
            (&mut self.mappings, other.mappings),
            (&mut self.mappings_limit, other.mappings_limit),
        ];
        each.into_iter().for_each(|(sum, more)| *sum += more);
        self.faults.iter_mut().zip(other.faults).for_each(|(sum, more)| *sum += more);
        self.waited_ns.iter_mut().zip(other.waited_ns).for_each(|(sum, more)| *sum += more);
    }
}
