//! Statistics of the bounce buffers.

use super::BouncePools;
use bytesize::ByteSize;
use softswap_sys::PAGE_SIZE;
use softswap_sys::primitive::Ordering::Relaxed;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    pub(crate) pages: usize,
    pub(crate) used: usize,
    /// Sum of the areas' peaks, at least the real peak.
    pub(crate) high_water: usize,
    pub(crate) transient: usize,
    pub takes: u64,
    pub(crate) transient_total: u64,
    pub(crate) misses: u64,
    /// Equal to `takes` if every CPU found a buffer in its own area of the first pool.
    pub areas_visited: u64,
    /// Retries because another thread changed the same segment.
    pub contended: u64,
    pub(crate) grown: u64,
    pub(crate) released: u64,
}

impl BouncePools {
    pub fn usage(&self) -> Usage {
        let open = self.open.load(Relaxed);
        let mut usage = Usage {
            transient: self.growth.transient_slots_used.load(Relaxed),
            transient_total: self.growth.transient_total.load(Relaxed),
            misses: self.misses.load(Relaxed),
            grown: self.growth.grown.load(Relaxed),
            released: self.growth.released.load(Relaxed),
            ..Usage::default()
        };
        for (index, pool) in self.pools.iter().enumerate() {
            for area in &pool.areas {
                usage.pages += if open >> index & 1 == 1 { area.slots() } else { 0 };
                usage.used += area.used();
                usage.high_water += area.high_water.load(Relaxed) as usize;
                usage.takes += area.takes.load(Relaxed);
                usage.areas_visited += area.more_areas.load(Relaxed);
                usage.contended += area.contended.load(Relaxed);
            }
        }
        usage.areas_visited += usage.takes;
        usage
    }

    pub(crate) fn note_long_wait(&self, pages: usize) {
        self.long_wait.pages.store(pages, Relaxed);
    }

    /// Reports long waits, at most once per 10 s.
    pub fn full_message(&self, now_ns: u64) -> Option<String> {
        let reported_ns = self.long_wait.reported_ns.load(Relaxed);
        if self.long_wait.pages.load(Relaxed) == 0
            || (reported_ns > 0 && now_ns - reported_ns < 10_000_000_000)
        {
            return None;
        }
        self.long_wait.reported_ns.store(now_ns, Relaxed);
        let wanted = self.long_wait.pages.swap(0, Relaxed);
        let usage = self.usage();
        let size_of = |pages: usize| ByteSize((pages * PAGE_SIZE) as u64);
        Some(format!(
            "softswap: the bounce buffers are full ({} are needed; of {} in total, {} are used): \
             threads wait until writes to the disk complete; a larger --memory gives more buffers\n",
            size_of(wanted),
            size_of(usage.pages + usage.transient),
            size_of(usage.used + usage.transient),
        ))
    }

    pub(crate) fn reset_high_water(&self) {
        self.pools.iter().flat_map(|pool| &pool.areas).for_each(|area| area.reset_high_water());
    }
}
