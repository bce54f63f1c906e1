//! Changes of the DRAM budget at run time.

use super::Engine;
use crate::api::settings::MIN_MEMORY_BYTES;
pub use crate::core::background::More;
use crate::paths::mapping;
use crate::policy::pool_limit::text_of_size;
use softswap_sys::memory::dram_bytes;
use softswap_sys::raw::now_ns;
use softswap_sys::{PAGE_SIZE, signals};
use std::io;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;

#[derive(Debug, thiserror::Error)]
pub enum LimitRefused {
    #[error(
        "{} is too little: softswap itself and a few pages need {}; give at least {}",
        text_of_size(*asked_bytes), text_of_size(*min_bytes), text_of_size(*min_bytes)
    )]
    TooSmall { asked_bytes: u64, min_bytes: u64 },
    #[error(
        "{} is too little: the program has locked {} in memory (mlock), and a quarter of the \
         budget may be locked; give at least {}, or let the program unlock some",
        text_of_size(*asked_bytes), text_of_size(*locked_bytes), text_of_size(*min_bytes)
    )]
    Locked { asked_bytes: u64, locked_bytes: u64, min_bytes: u64 },
    #[error(
        "a forked child has no background reclaim, so its limit can only be raised; to free \
         memory, lower the limit of its parent (`softswap ctl PID set memory SIZE`)"
    )]
    ForkedChild,
    #[error("cannot reserve address space for larger tables ({0}); raise `ulimit -v`")]
    Tables(#[from] io::Error),
}

fn whole_mib(bytes: usize) -> u64 {
    (bytes as u64).next_multiple_of(1 << 20)
}

impl Engine {
    /// Changes the budget: to a higher limit immediately, but at most to the machine's DRAM. For a
    /// lower one, waits up to 100 ms for evictions.
    pub fn set_memory_limit(&self, asked_bytes: u64) -> Result<(), LimitRefused> {
        let core = &self.core;
        let bytes = asked_bytes.min(dram_bytes()).next_multiple_of(PAGE_SIZE as u64);
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        // A fork waits for this lock, so that it is free in the child.
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
        // Pages held by calls are ignored here: they are released soon.
        let min_bytes = whole_mib(core.min_bytes()).max(MIN_MEMORY_BYTES);
        if (bytes as u64) < min_bytes {
            return Err(LimitRefused::TooSmall { asked_bytes, min_bytes });
        }
        let locked_bytes = signals::with_all_blocked(|| mapping::locked_bytes(&core.memory));
        let min_bytes = whole_mib(locked_bytes * super::locking::SHARE);
        if (bytes as u64) < min_bytes {
            let locked_bytes = locked_bytes as u64;
            return Err(LimitRefused::Locked { asked_bytes, locked_bytes, min_bytes });
        }
        Ok(())
    }

    /// Evicts nothing: the calling thread may be unable to write to the disk.
    fn await_limit(&self) {
        let until = now_ns() + 100_000_000;
        while self.core.memory.budget.is_moving() && now_ns() < until {
            let background = &self.core.background;
            background.pause(background.seen(), 1_000_000);
        }
    }

    /// Makes this budget a share of a common one. The engine calls `more` when memory is short.
    pub fn share_budget(&self, more: More) {
        self.core.background.more.get_or_init(|| more);
    }

    /// Sets the limit of a forked child with a shared budget, which has its parent's limit so far.
    pub fn begin_share(&self, bytes: usize) {
        self.core.memory.budget.reset(bytes);
        // A forked child has no background thread that follows the budget, and its pool still has
        // the parent's limit.
        self.core.follow_budget();
        self.core.report();
    }

    /// In a child whose engine has just started: its present pages stay charged to the parent.
    pub fn charge_to_parent(&self) {
        self.core.memory.budget.inherit();
    }

    /// Charges a forked child for its inherited pages if it will probably not call exec.
    pub fn count_inherited(&self) {
        self.core.count_inherited(0);
    }

    pub fn keeps_limit(&self, bytes: usize) -> bool {
        let budget = &self.core.memory.budget;
        !budget.is_moving() && budget.limit_bytes() <= bytes.next_multiple_of(PAGE_SIZE)
    }

    pub fn used_bytes(&self) -> usize {
        self.core.used_bytes()
    }

    pub fn may_write(&self) -> bool {
        self.core.stores.may_write()
    }

    pub fn is_short_of_memory(&self) -> bool {
        !self.core.memory.budget.is_above_high(self.core.other_bytes())
    }

    /// Returns the approximate time that one MiB more of DRAM would have saved this process so far,
    /// in ns. Its increase per second is the benefit of memory, compared among processes. It is
    /// constant unless the pool's limit adapts.
    pub fn saved_by_mib_ns(&self) -> u64 {
        self.core.policies.partition.saved_by_mib_ns()
    }

    /// Returns the target and, while the limit is being lowered, the current limit.
    pub fn memory_limit(&self) -> String {
        let budget = &self.core.memory.budget;
        let [limit, target] = [budget.limit_bytes(), budget.target_bytes()];
        let target = text_of_size(target as u64);
        if self.core.background.limit_failed.load(Relaxed) {
            return format!(
                "{target} (a lower limit failed, because no swap area accepted the pages; see \
                 `softswap stat`)"
            );
        }
        if budget.is_moving() {
            return format!(
                "{target} ({}M until enough pages are evicted)",
                limit.div_ceil(1 << 20)
            );
        }
        target
    }
}
