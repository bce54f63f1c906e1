//! The engine's counters of single-page reads by wait mode.

use serde::Serialize;
use softswap_engine::base::stats::{Counter, Stats};
use std::iter::Sum;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct PollCounts {
    pub(crate) considered: u64,
    pub(crate) polled: u64,
    pub(crate) hit: u64,
    pub(crate) slept: u64,
    pub(crate) overslept: u64,
}

impl PollCounts {
    pub(crate) fn of(stats: &Stats) -> PollCounts {
        PollCounts {
            considered: stats.get(Counter::IoConsidered),
            polled: stats.get(Counter::IoPolled),
            hit: stats.get(Counter::IoPollHit),
            slept: stats.get(Counter::IoSlept),
            overslept: stats.get(Counter::IoOverslept),
        }
    }
}

impl Sum for PollCounts {
    fn sum<I: Iterator<Item = PollCounts>>(all: I) -> PollCounts {
        all.fold(PollCounts::default(), |sum, one| PollCounts {
            considered: sum.considered + one.considered,
            polled: sum.polled + one.polled,
            hit: sum.hit + one.hit,
            slept: sum.slept + one.slept,
            overslept: sum.overslept + one.overslept,
        })
    }
}

/// Returns notes on missing features of the access path to a file.
pub(crate) fn notes_on(direct: bool, io_uring: bool) -> impl Iterator<Item = String> {
    let direct = (!direct).then_some("no O_DIRECT here: reads come from the page cache");
    let ring = (!io_uring).then_some("no io_uring here: every read completes by interrupt");
    direct.into_iter().chain(ring).map(String::from)
}
