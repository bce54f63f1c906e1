//! The whole state of an engine.

use crate::base::stats::Stats;
use crate::core::background::Background;
use crate::core::errors::die;
use crate::core::memory::Memory;
use crate::core::policies::Policies;
use crate::core::recorder::Recorder;
use crate::core::stores::Stores;

/// State of an engine without its threads. The fields are independent of each other.
pub(crate) struct Core {
    pub(crate) memory: Memory,
    pub(crate) stores: Stores,
    pub(crate) policies: Policies,
    pub(crate) background: Background,
    pub(crate) recorder: Option<Recorder>,
    pub(crate) stats: Stats,
}

impl Core {
    pub(crate) fn die(&self, why: &str) -> ! {
        die(self.stats, why)
    }
}
