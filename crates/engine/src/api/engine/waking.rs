//! Start of an engine in a process that has run without one.

use super::{Engine, StartError};
use crate::api::builder;
use crate::api::settings::Config;
use crate::base::stats::Stats;
use crate::paths::adopt;
use crate::store::swap::Backing;
use softswap_sys::PAGE_SIZE;
use softswap_sys::proc_maps::{self, Mapping};
use softswap_sys::window::{Occupied, Part};
use std::ops::Range;

/// The future window, and the memory of a process that has no engine yet.
#[derive(Debug, Clone)]
pub struct Before {
    pub base: usize,
    pub len: usize,
    /// Address range in which no other mapping may be placed.
    pub reserved: Option<Range<usize>>,
    /// True if the program has set the treatment of memory in forked children.
    pub is_odd: bool,
}

impl Engine {
    /// Starts an engine in a process that already has mappings in the window. The caller has
    /// blocked signals, and calls [`Engine::fit`] as soon as it can handle faults. Until then other
    /// threads must not change mappings. On an error nothing changes. Returns also the memory that
    /// the program has locked, for [`Engine::adopt_locked`].
    pub fn start_around(
        config: &Config,
        storage: Vec<Backing>,
        stats: Stats,
        before: &Before,
    ) -> Result<(Engine, Vec<Range<usize>>), StartError> {
        let with_details = before.is_odd || proc_maps::has_locked_memory();
        let mappings = proc_maps::mappings(before.base..before.base + before.len, with_details)?;
        let part = |mapping: &Mapping| Part {
            range: mapping.range.clone(),
            managed_as: mapping.is_private_anonymous.then_some(mapping.protection),
        };
        let parts = mappings.iter().map(part).collect();
        let occupied = Occupied { base: before.base, len: before.len, parts };
        let (core, contexts) = builder::build(config, storage, stats, Some(&occupied))?;
        adopt::adopt(&core, &mappings, before.reserved.as_ref())?;
        let is_locked = |mapping: &Mapping| mapping.is_private_anonymous && mapping.is_locked;
        let locked = mappings.into_iter().filter(is_locked).map(|mapping| mapping.range).collect();
        Ok((Engine::of(core, contexts), locked))
    }

    /// Pins memory that the program locked before the start. Unlocks what exceeds
    /// [`Engine::may_lock`], because the kernel discards no locked pages. Returns the unlocked
    /// bytes.
    pub fn adopt_locked(&self, locked: &[Range<usize>]) -> usize {
        // If a wait has not helped once, later ranges do not wait.
        let mut waits = true;
        let mut is_refused = |range: &&Range<usize>| {
            let result = self.lock_or_wait(range.start, range.len(), waits);
            waits &= result.is_ok();
            result.is_err()
        };
        let unlock = |range: &Range<usize>| {
            let page = self.page_of(range.start);
            // Fails for unmapped memory only.
            let _ = self.core.memory.window.unlock(page, range.len() / PAGE_SIZE);
            range.len()
        };
        locked.iter().filter(&mut is_refused).map(unlock).sum()
    }

    /// Evicts pages until free memory is above the low watermark, or no page is evictable.
    pub fn fit(&self) {
        adopt::fit(&self.core, &self.contexts);
    }
}
