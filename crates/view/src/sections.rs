//! Sections of a report.

use serde::{Deserialize, Serialize};
use softswap_engine::base::stats::{Counter, Stats};
use softswap_sys::faults::Faults;

#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Copies {
    pub copies_kept: u64,
    /// Freed because the page was written.
    pub copies_written: u64,
    /// Freed because the pool or the areas were nearly full.
    pub copies_shed: u64,
    /// Evicted unchanged to a copy that was still stored.
    pub unchanged_pages: u64,
}

impl Copies {
    #[must_use]
    pub fn now(&self) -> u64 {
        let freed = self.copies_written + self.copies_shed + self.unchanged_pages;
        self.copies_kept.saturating_sub(freed)
    }
}

/// Contents at the last sample, and traffic.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Pool {
    pub limit_bytes: u64,
    pub used_bytes: u64,
    pub stored_bytes: u64,
    pub stored_pages: u64,
    pub limit_hits: u64,
    /// Not offered, because the pool or the budget was full.
    pub refused_pages: u64,
    /// Written without being offered: streams, and all pages while a full pool gains too little.
    pub passed_pages: u64,
    pub written_back_pages: u64,
    /// Share a swap slot with other written-back pages.
    pub packed_pages: u64,
    pub packed_slots: u64,
    /// Moved from sparse slabs into gaps of others.
    pub compacted_pages: u64,
    #[serde(flatten)]
    pub copies: Copies,
}

impl Pool {
    #[must_use]
    pub fn of(stats: &Stats) -> Pool {
        use Counter as C;
        let get = |counter| stats.get(counter);
        Pool {
            limit_bytes: get(C::PoolLimitBytes),
            used_bytes: get(C::PoolUsedBytes),
            stored_bytes: get(C::PoolStoredBytes),
            stored_pages: get(C::PoolObjects),
            limit_hits: get(C::PoolLimitHits),
            refused_pages: get(C::PoolRefusals),
            passed_pages: get(C::PoolPassed),
            written_back_pages: get(C::PagesWrittenBack),
            packed_pages: get(C::PagesPacked),
            packed_slots: get(C::SlotsPacked),
            compacted_pages: get(C::PagesCompacted),
            copies: Copies {
                copies_kept: get(C::PoolCopiesKept),
                copies_written: get(C::PoolCopiesWritten),
                copies_shed: get(C::PoolCopiesShed),
                unchanged_pages: get(C::PoolPagesUnchanged),
            },
        }
    }
}

/// Created by page protection.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Mappings {
    pub now: u64,
    pub peak: u64,
    /// Nine tenths of `vm.max_map_count`, minus the program's own mappings.
    pub limit: u64,
}

impl Mappings {
    /// `None` with userfaultfd.
    #[must_use]
    pub fn of(stats: &Stats) -> Option<Mappings> {
        use Counter as C;
        let get = |counter| stats.get(counter);
        (stats.fault_mechanism() == Some(Faults::Protection)).then(|| Mappings {
            now: get(C::Mappings),
            peak: get(C::MappingsPeak),
            limit: get(C::MappingsLimit),
        })
    }
}

/// A slot is one page.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Bounce {
    pub slots: u64,
    pub used: u64,
    /// Sum of the areas' peaks.
    pub peak_slots: u64,
    /// Created for one use, at the last sample.
    pub transient: u64,
    pub taken: u64,
    /// Created for one use.
    pub lent: u64,
    /// No pool could serve these requests.
    pub misses: u64,
    pub areas_visited: u64,
    /// Another thread took the slot.
    pub contended: u64,
    pub pools_grown: u64,
    pub pools_released: u64,
}

impl Bounce {
    #[must_use]
    pub fn of(stats: &Stats) -> Bounce {
        use Counter as C;
        let get = |counter| stats.get(counter);
        Bounce {
            slots: get(C::BounceSlots),
            used: get(C::BounceUsed),
            peak_slots: get(C::BouncePeakSlots),
            transient: get(C::BounceTransient),
            taken: get(C::BounceTakes),
            lent: get(C::BounceLent),
            misses: get(C::BounceMisses),
            areas_visited: get(C::BounceAreasVisited),
            contended: get(C::BounceContended),
            pools_grown: get(C::BounceGrown),
            pools_released: get(C::BounceReleased),
        }
    }
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Areas {
    pub count: u64,
    /// No longer written to, because consecutive writes failed.
    pub failed: u64,
    /// Out of service after a failed write.
    pub retired_slots: u64,
    pub pages_moved: u64,
    #[serde(flatten)]
    pub copies: Copies,
    pub discarded_bytes: u64,
    /// softswap discards no more in these areas.
    pub discard_errors: u64,
    /// Returned to the file system.
    pub shrunk_bytes: u64,
}

impl Areas {
    #[must_use]
    pub fn of(stats: &Stats) -> Areas {
        use Counter as C;
        let get = |counter| stats.get(counter);
        Areas {
            count: get(C::Areas),
            failed: get(C::AreasFailed),
            retired_slots: get(C::SlotsRetired),
            pages_moved: get(C::PagesMoved),
            copies: Copies {
                copies_kept: get(C::CopiesKept),
                copies_written: get(C::CopiesWritten),
                copies_shed: get(C::CopiesShed),
                unchanged_pages: get(C::PagesUnchanged),
            },
            discarded_bytes: get(C::DiscardedBytes),
            discard_errors: get(C::DiscardErrors),
            shrunk_bytes: get(C::ShrunkBytes),
        }
    }
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Polling {
    pub device_polling: bool,
    pub considered: u64,
    /// Considered reads for which the thread polled.
    pub polled: u64,
    pub hit: u64,
    /// The thread slept before polling.
    pub slept: u64,
    pub overslept: u64,
    /// Estimated from one synchronous read in 16.
    pub wait_cpu_ns: u64,
}

impl Polling {
    #[must_use]
    pub fn of(stats: &Stats) -> Polling {
        use Counter as C;
        let get = |counter| stats.get(counter);
        Polling {
            device_polling: get(C::UsesDevicePolling) != 0,
            considered: get(C::IoConsidered),
            polled: get(C::IoPolled),
            hit: get(C::IoPollHit),
            slept: get(C::IoSlept),
            overslept: get(C::IoOverslept),
            wait_cpu_ns: get(C::IoWaitCpuNs),
        }
    }
}
