//! What is measured of a store, and what each figure is.

use crate::measure::sample::Round;
use futures_util::stream::{FuturesUnordered, StreamExt};
use softswap_cli::refusal::Refusal;
use std::future::Future;
use std::time::{Duration, Instant};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Whole extents, many at a time: what reclaim writes.
    WriteExtents,
    /// The same, read: what streams ask for.
    ReadExtents,
    /// Single pages at random, many at a time: what many threads touch.
    ReadPages,
    /// One page at a time, by who waits for it.
    WritePage,
    ReadPage,
}

impl Step {
    pub(super) const ALL: [Step; 5] =
        [Step::WriteExtents, Step::ReadExtents, Step::ReadPages, Step::WritePage, Step::ReadPage];

    pub(super) fn name(self) -> &'static str {
        match self {
            Step::WriteExtents => "write_extents",
            Step::ReadExtents => "read_extents",
            Step::ReadPages => "read_pages",
            Step::WritePage => "write_page",
            Step::ReadPage => "read_page",
        }
    }

    pub(super) fn is_write(self) -> bool {
        matches!(self, Step::WriteExtents | Step::WritePage)
    }

    /// Whether a figure of it is the us of one operation, and not pages a second.
    pub(super) fn is_latency(self) -> bool {
        matches!(self, Step::WritePage | Step::ReadPage)
    }

    /// Pages of one operation.
    pub(super) fn pages(self, of_extent: u64) -> u64 {
        match self {
            Step::WriteExtents | Step::ReadExtents => of_extent,
            Step::ReadPages | Step::WritePage | Step::ReadPage => 1,
        }
    }

    /// Operations under way, where `most` are asked for.
    pub(super) fn depth(self, most: usize) -> usize {
        if self.is_latency() { 1 } else { most }
    }
}

/// One round of a step: pages a second, counted once for each copy that is sent, or us.
pub(super) type Figure = f64;

/// Keeps `depth` operations under way until the time is over. `begin` returns what an operation
/// took, in ns, and moves `pages`.
pub(super) async fn measure<F: Future<Output = Result<u64, Refusal>>>(
    step: Step,
    mut places: impl Iterator<Item = u64>,
    (depth, time): (usize, Duration),
    begin: impl Fn(u64) -> F,
    pages: u64,
) -> Result<Figure, Refusal> {
    let mut latencies_ns = Vec::new();
    let mut under_way = FuturesUnordered::new();
    under_way.extend(places.by_ref().take(step.depth(depth)).map(&begin));
    let start = Instant::now();
    while let Some(ns) = under_way.next().await {
        latencies_ns.push(ns?);
        if start.elapsed() < time {
            under_way.extend(places.next().map(&begin));
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    Ok(match step.is_latency() {
        true => Round::of(&mut latencies_ns).p50_us,
        false => (latencies_ns.len() as u64 * pages) as f64 / seconds,
    })
}
