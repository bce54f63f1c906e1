//! How the buffers are being used.

use super::Pools;
use softswap_sys::PAGE_SIZE;
use softswap_sys::primitive::Ordering::Relaxed;

/// The least time between two words about full buffers.
const QUIET_NS: u64 = 10_000_000_000;

/// How the buffers are being used.
///
/// ```
/// use softswap_engine::store::bounce::{Pools, Shape};
/// let shape = Shape { areas: 1, slots_per_area: 64, reserve_slots: 0, extra_bytes: 0 };
/// let pools = Pools::new(shape).unwrap();
/// drop(pools.take(0, 1));
/// let usage = pools.usage();
/// assert_eq!((usage.takes, usage.areas_visited, usage.contended), (1, 1, 0));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Slots of the pools that there are now.
    pub(crate) slots: usize,
    /// Of those, in use.
    pub(crate) used: usize,
    /// The areas' own peaks added up: no less than the peak.
    pub(crate) high_water: usize,
    /// Slots of buffers that are lent.
    pub(crate) transient: usize,
    /// Buffers ever taken from pools.
    pub takes: u64,
    /// Buffers ever lent.
    pub(crate) lent: u64,
    /// Searches that found nothing.
    pub(crate) misses: u64,
    /// Areas looked into, all searches together. Equal to `takes` when every
    /// CPU found what it needed in its own area of the first pool.
    pub areas_visited: u64,
    /// Times that a thread had to try again because another one changed the
    /// same segment: what waiting for a lock is elsewhere.
    pub contended: u64,
    /// Pools added.
    pub(crate) grown: u64,
    /// Pools taken away again.
    pub(crate) released: u64,
}

impl Pools {
    /// How the buffers are being used.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let open = self.open.load(Relaxed);
        let mut usage = Usage {
            transient: self.growth.lent_slots(),
            lent: self.growth.lent(),
            misses: self.misses.load(Relaxed),
            grown: self.growth.grown(),
            released: self.growth.released(),
            ..Usage::default()
        };
        for (index, pool) in self.pools.iter().enumerate() {
            for area in &pool.areas {
                usage.slots += if open >> index & 1 == 1 { area.slots() } else { 0 };
                usage.used += area.used();
                usage.high_water += area.high_water();
                usage.takes += area.takes();
                usage.areas_visited += area.more_areas();
                usage.contended += area.contended();
            }
        }
        usage.areas_visited += usage.takes;
        usage
    }

    /// Notes that somebody waited long for a buffer of so many pages.
    pub(crate) fn note_long_wait(&self, pages: usize) {
        self.long_wait.pages.store(pages, Relaxed);
    }

    /// What there is to say about that, now and then.
    #[must_use]
    pub fn full_message(&self, now_ns: u64) -> Option<String> {
        let said_ns = self.long_wait.said_ns.load(Relaxed);
        if self.long_wait.pages.load(Relaxed) == 0 || (said_ns > 0 && now_ns - said_ns < QUIET_NS) {
            return None;
        }
        self.long_wait.said_ns.store(now_ns, Relaxed);
        let wanted = self.long_wait.pages.swap(0, Relaxed) * PAGE_SIZE;
        let usage = self.usage();
        Some(format!(
            "softswap: the bounce buffers are full ({wanted} bytes wanted, {} in all, {} used): \
             pages wait for the disk to take others; a larger --memory gives more buffers\n",
            (usage.slots + usage.transient) * PAGE_SIZE,
            (usage.used + usage.transient) * PAGE_SIZE,
        ))
    }

    /// Lets the peak begin again from what is in use now.
    pub(crate) fn reset_high_water(&self) {
        self.pools.iter().flat_map(|pool| &pool.areas).for_each(|area| area.reset_high_water());
    }
}
