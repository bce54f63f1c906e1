//! An engine for a process that has run without one until now.

use super::{Engine, StartError, held};
use crate::base::stats::Stats;
use crate::door::builder;
use crate::door::settings::Config;
use crate::store::swap::Backing;
use crate::walks::adopt;
use softswap_sys::found::{self, Mapping};
use softswap_sys::window::{Occupied, Part};
use std::ops::Range;
use std::sync::Mutex;

/// What a process had before it woke.
#[derive(Debug, Clone)]
pub struct Before {
    /// The first address of what becomes the window.
    pub base: usize,
    /// Its length.
    pub len: usize,
    /// Addresses that are kept from other mappings.
    pub reserved: Option<Range<usize>>,
    /// Whether the program has said what a forked child gets of its memory.
    pub is_odd: bool,
}

impl Engine {
    /// As [`Engine::start`], around what the process has in the window. The caller has
    /// signals blocked, and calls [`Engine::fit`] as soon as it can take faults. Other threads
    /// change no mapping meanwhile, and wait where they touch what is absent.
    ///
    /// # Errors
    /// As [`Engine::start`]. The program's memory is as it was then.
    pub fn start_around(
        config: &Config,
        storage: Vec<Backing>,
        stats: Stats,
        before: &Before,
    ) -> Result<Engine, StartError> {
        let with_details = before.is_odd || found::has_locked_memory();
        let mappings = found::mappings(before.base..before.base + before.len, with_details)?;
        let part = |mapping: &Mapping| Part {
            range: mapping.range.clone(),
            managed_as: mapping.is_private_anonymous.then_some(mapping.protection),
        };
        let parts = mappings.iter().map(part).collect();
        let occupied = Occupied { base: before.base, len: before.len, parts };
        let (core, contexts) = builder::build(config, storage, stats, Some(&occupied))?;
        adopt::adopt(&core, &mappings, before.reserved.as_ref())?;
        let held = held::Held::default();
        let engine = Engine { core, contexts, remapping: Mutex::new(()), held };
        for mapping in mappings.iter().filter(|it| it.is_private_anonymous && it.is_locked) {
            // Refused only beyond the limit, which the kernel has kept already.
            let _ = engine.lock_range(mapping.range.start, mapping.range.len());
        }
        Ok(engine)
    }

    /// Takes pages out until the budget is kept.
    pub fn fit(&self) {
        adopt::fit(&self.core, &self.contexts);
    }
}
