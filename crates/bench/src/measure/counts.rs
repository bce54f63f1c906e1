//! What the engine counted of reads of single pages, and how it waited for them.

use serde::Serialize;
use softswap_engine::base::stats::{Counter, Stats};
use std::iter::Sum;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Counts {
    pub(crate) considered: u64,
    pub(crate) polled: u64,
    pub(crate) hit: u64,
    pub(crate) slept: u64,
    pub(crate) overslept: u64,
}

impl Counts {
    pub(crate) fn of(stats: &Stats) -> Counts {
        Counts {
            considered: stats.get(Counter::IoConsidered),
            polled: stats.get(Counter::IoPolled),
            hit: stats.get(Counter::IoPollHit),
            slept: stats.get(Counter::IoSlept),
            overslept: stats.get(Counter::IoOverslept),
        }
    }
}

impl Sum for Counts {
    fn sum<I: Iterator<Item = Counts>>(all: I) -> Counts {
        all.fold(Counts::default(), |sum, one| Counts {
            considered: sum.considered + one.considered,
            polled: sum.polled + one.polled,
            hit: sum.hit + one.hit,
            slept: sum.slept + one.slept,
            overslept: sum.overslept + one.overslept,
        })
    }
}
