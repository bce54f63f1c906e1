//! The state of an engine, whole.

use crate::base::stats::Stats;
use crate::core::background::Background;
use crate::core::errors::die;
use crate::core::memory::Memory;
use crate::core::policies::Policies;
use crate::core::recorder::Recorder;
use crate::core::stores::Stores;

/// What an engine is made of, except who runs it. Its fields do not know each other.
pub(crate) struct Core {
    /// The program's memory.
    pub(crate) memory: Memory,
    /// Where pages are that are not resident.
    pub(crate) stores: Stores,
    /// What is decided, and by what.
    pub(crate) policies: Policies,
    /// The background thread that reclaims pages.
    pub(crate) background: Background,
    /// What writes down which pages are touched, where that was asked for.
    pub(crate) recorder: Option<Recorder>,
    /// Counters shared with `softswap run`.
    pub(crate) stats: Stats,
}

impl Core {
    /// Ends the process: going on would lose a page. Never returns.
    pub(crate) fn die(&self, why: &str) -> ! {
        die(self.stats, why)
    }
}
