//! The engine's counters of single-page reads by wait mode.

use super::sample::{Object, object};
use softswap_engine::base::stats::{Counter, Stats};

pub(crate) fn poll_counts<'s>(runs: impl Iterator<Item = &'s Stats> + Clone) -> Object {
    let sum = |counter| runs.clone().map(|stats| stats.get(counter)).sum::<u64>();
    object! {
        considered: sum(Counter::IoConsidered),
        polled: sum(Counter::IoPolled),
        hit: sum(Counter::IoPollHit),
        slept: sum(Counter::IoSlept),
        overslept: sum(Counter::IoOverslept),
    }
}

pub(crate) fn notes_on(direct: bool, io_uring: bool) -> impl Iterator<Item = String> {
    let direct = (!direct).then_some("no O_DIRECT here: reads come from the page cache");
    let ring = (!io_uring).then_some("no io_uring here: every read completes by interrupt");
    direct.into_iter().chain(ring).map(String::from)
}
