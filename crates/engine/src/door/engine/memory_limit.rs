//! The DRAM budget while the program runs: moved up at once, and down as pages leave.

use super::Engine;
pub use crate::core::background::More;
use crate::door::settings::MIN_MEMORY_BYTES;
use crate::policy::pool_limit::text_of_size;
use crate::walks::mapping;
use softswap_sys::PAGE_SIZE;
use softswap_sys::memory::dram_bytes;
use softswap_sys::raw::now_ns;
use softswap_sys::signals;
use std::io;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;

/// So long at most waits who lowers the limit for pages to leave.
const WAIT_NS: u64 = 100_000_000;
const LOOK_NS: u64 = 1_000_000;

/// Why the budget stays as it is.
///
/// ```
/// use softswap_engine::door::engine::memory_limit::LimitRefused;
/// let refused = LimitRefused::TooSmall { asked_bytes: 1 << 20, least_bytes: 8 << 20 };
/// assert!(refused.to_string().contains("give at least 8M"));
/// ```
#[derive(Debug, thiserror::Error)]
pub enum LimitRefused {
    /// Less than the engine itself needs.
    #[error(
        "{} is too little: softswap itself and a few pages need {}; give at least {}",
        text_of_size(*asked_bytes), text_of_size(*least_bytes), text_of_size(*least_bytes)
    )]
    TooSmall {
        /// What was asked for.
        asked_bytes: u64,
        /// What is needed, in whole MiB.
        least_bytes: u64,
    },
    /// Less than what may not leave, and the rest.
    #[error(
        "{} is too little: {} are locked in memory (mlock), which may be a quarter; give at least \
         {}, or have the program unlock some",
        text_of_size(*asked_bytes), text_of_size(*locked_bytes), text_of_size(*least_bytes)
    )]
    Locked {
        /// What was asked for.
        asked_bytes: u64,
        /// What is locked.
        locked_bytes: u64,
        /// What is needed, in whole MiB.
        least_bytes: u64,
    },
    /// A forked child has nowhere to put what is over a smaller limit.
    #[error("a forked child has no thread that makes room: its limit can only be raised")]
    ForkedChild,
    /// No memory for larger tables.
    #[error("cannot reserve address space for larger tables ({0}); raise `ulimit -v`")]
    Tables(#[from] io::Error),
}

fn whole_mib(bytes: usize) -> u64 {
    (bytes as u64).next_multiple_of(1 << 20)
}

impl Engine {
    /// Moves the limit of the budget: up at once, at most to the machine's DRAM; down as pages
    /// leave, which is waited for, not for long.
    pub fn set_memory_limit(&self, asked_bytes: u64) -> Result<(), LimitRefused> {
        let core = &self.core;
        let bytes = asked_bytes.min(dram_bytes()).next_multiple_of(PAGE_SIZE as u64);
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        // A fork waits for that: no child has a lock that this thread was about to release.
        let moves = self.remapping.lock().unwrap_or_else(PoisonError::into_inner);
        if bytes < core.memory.budget.target_bytes() {
            self.may_lower(bytes, asked_bytes)?;
        }
        core.grow_tables(bytes)?;
        core.background.limit_failed.store(false, Relaxed);
        core.memory.budget.move_to(bytes);
        core.follow_budget();
        drop(moves);
        core.memory.budget.follow(core.other_bytes());
        core.background.wake_all();
        self.await_limit();
        core.report();
        Ok(())
    }

    fn may_lower(&self, bytes: usize, asked_bytes: u64) -> Result<(), LimitRefused> {
        let core = &self.core;
        if core.stores.areas.has_inherited() {
            return Err(LimitRefused::ForkedChild);
        }
        // What calls hold they soon let go of: it may be more than a share for a while.
        let least_bytes = whole_mib(core.least_bytes()).max(MIN_MEMORY_BYTES);
        if (bytes as u64) < least_bytes {
            return Err(LimitRefused::TooSmall { asked_bytes, least_bytes });
        }
        let locked_bytes = signals::with_all_blocked(|| mapping::locked_bytes(&core.memory));
        let least_bytes = whole_mib(locked_bytes * super::locking::SHARE);
        if (bytes as u64) < least_bytes {
            let locked_bytes = locked_bytes as u64;
            return Err(LimitRefused::Locked { asked_bytes, locked_bytes, least_bytes });
        }
        Ok(())
    }

    /// Waits until the limit is where it is to be. The background thread sees to that, and who
    /// touches pages meanwhile: not everybody who may call here can write to the disk.
    fn await_limit(&self) {
        let until = now_ns() + WAIT_NS;
        while self.core.memory.budget.is_moving() && now_ns() < until {
            let background = &self.core.background;
            background.pause(background.seen(), LOOK_NS);
        }
    }

    /// From now on the budget is a part of one that processes share: whoever finds it short asks
    /// `more` first.
    pub fn share_budget(&self, more: More) {
        self.core.background.more.get_or_init(|| more);
    }

    /// The limit of a forked child that shares a budget: whatever it had by its parent.
    pub fn begin_share(&self, bytes: usize) {
        self.core.memory.budget.begin_anew(bytes);
        // No thread does that here, and the pool has its parent's limit.
        self.core.follow_budget();
        self.core.report();
    }

    /// What is in DRAM now is the parent's, in a forked child that has just got an engine: it
    /// counts here as [`Engine::become_child`] says.
    pub fn leave_to_parent(&self) {
        self.core.memory.budget.inherit();
    }

    /// A forked child that lives on has what it inherits to itself, sooner or later.
    pub fn count_inherited(&self) {
        self.core.count_inherited(0);
    }

    /// Whether this limit holds: pages have left for it.
    #[must_use]
    pub fn keeps_limit(&self, bytes: usize) -> bool {
        let budget = &self.core.memory.budget;
        !budget.is_moving() && budget.limit_bytes() <= bytes.next_multiple_of(PAGE_SIZE)
    }

    /// All that counts against the budget, in bytes.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        self.core.used_bytes()
    }

    /// Whether pages can be written to an area: not where a forked child can have none.
    #[must_use]
    pub fn may_write(&self) -> bool {
        self.core.stores.may_write()
    }

    /// Whether pages leave for want of memory, or are about to.
    #[must_use]
    pub fn is_short_of_memory(&self) -> bool {
        !self.core.memory.budget.is_comfortable(self.core.other_bytes())
    }

    /// What one MiB more of DRAM would have spared this process so far, in ns, about: how much
    /// that rises in a second is what the process's memory is worth beside others'. Nothing is
    /// known of it unless the pool's limit moves.
    #[must_use]
    pub fn spared_by_a_mib_ns(&self) -> u64 {
        self.core.policies.partition.spared_by_a_mib_ns()
    }

    /// The limit of the budget, for people: what is to hold, and what does until then.
    #[must_use]
    pub fn memory_limit(&self) -> String {
        let budget = &self.core.memory.budget;
        let [limit, target] = [budget.limit_bytes(), budget.target_bytes()];
        let target = text_of_size(target as u64);
        if self.core.background.limit_failed.load(Relaxed) {
            return format!(
                "{target} (less could not be kept: pages had no place to go; see `softswap stat`)"
            );
        }
        if budget.is_moving() {
            return format!("{target} ({}M until more has left)", limit.div_ceil(1 << 20));
        }
        target
    }
}
