//! Sections of a report: the pool, mappings, bounce buffers, swap areas, and waits for reads.

use serde::{Deserialize, Serialize};
use softswap_engine::base::stats::{Counter, Stats};
use softswap_sys::faults::Faults;

/// Copies of resident pages that the pool or the swap areas still store.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Copies {
    /// Pages whose copy was kept when they were faulted in.
    pub copies_kept: u64,
    /// Copies freed because the page was written.
    pub copies_written: u64,
    /// Copies freed because the pool or the areas were nearly full.
    pub copies_shed: u64,
    /// Pages evicted unchanged to a copy that was still stored.
    pub unchanged_pages: u64,
}

impl Copies {
    /// Returns the number of copies at the last sample.
    #[must_use]
    pub fn now(&self) -> u64 {
        let freed = self.copies_written + self.copies_shed + self.unchanged_pages;
        self.copies_kept.saturating_sub(freed)
    }
}

/// The compressed pool: its contents at the last sample, and its traffic.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Pool {
    pub limit_bytes: u64,
    /// Bytes in whole slabs.
    pub used_bytes: u64,
    pub stored_bytes: u64,
    pub stored_pages: u64,
    /// Stores rejected by the limit.
    pub limit_hits: u64,
    /// Pages not offered to the pool, because the pool or the budget was full.
    pub refused_pages: u64,
    /// Pages written to the disk without being offered to the pool: pages of streams, and all pages
    /// while a full pool gains too little.
    pub passed_pages: u64,
    pub written_back_pages: u64,
    /// Written-back pages that share a swap slot with other compressed pages.
    pub packed_pages: u64,
    pub packed_slots: u64,
    /// Compressed pages moved from sparse slabs into gaps of other slabs.
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

/// Mappings of the process that page protection creates.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Mappings {
    /// Number at the last sample.
    pub now: u64,
    pub peak: u64,
    /// Nine tenths of `vm.max_map_count`, minus the program's own mappings.
    pub limit: u64,
}

impl Mappings {
    /// Reads the counters; `None` with userfaultfd.
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

/// The bounce buffers. A slot is one page.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Bounce {
    /// Slots of all pools at the last sample.
    pub slots: u64,
    pub used: u64,
    /// Sum over the bounce areas of the peak of slots in use.
    pub peak_slots: u64,
    /// Buffers created for one use, at the last sample.
    pub transient: u64,
    /// Buffers taken from pools.
    pub taken: u64,
    /// Buffers created for one use.
    pub lent: u64,
    /// Requests that no pool could serve.
    pub misses: u64,
    /// Bounce areas visited by all searches for a free slot.
    pub areas_visited: u64,
    /// Searches repeated because another thread took the slot.
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

/// The swap areas and their storage.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Areas {
    pub count: u64,
    /// Areas that are no longer written to, because consecutive writes failed.
    pub failed: u64,
    /// Slots out of service because a write to them failed.
    pub retired_slots: u64,
    pub pages_moved: u64,
    #[serde(flatten)]
    pub copies: Copies,
    pub discarded_bytes: u64,
    /// Areas in which a discard failed. softswap does not discard in them again.
    pub discard_errors: u64,
    /// Bytes that swap files returned to the file system by shrinking.
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

/// Waits for synchronous reads.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Polling {
    /// True if the kernel polls the device for completions.
    pub device_polling: bool,
    /// Single-page reads.
    pub considered: u64,
    /// Considered reads for which the thread polled.
    pub polled: u64,
    /// Polled reads that completed during the poll.
    pub hit: u64,
    /// Single-page reads for which the thread slept before polling.
    pub slept: u64,
    /// Reads that slept and were already complete after the sleep.
    pub overslept: u64,
    /// CPU time of synchronous reads in ns, estimated from one in 16.
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
