//! The steps that are measured of a store.

use crate::measure::sample::Round;
use clap::ValueEnum;
use futures_util::stream::{FuturesUnordered, StreamExt};
use softswap_cli::refusal::Refusal;
use std::future::Future;
use std::time::{Duration, Instant};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(super) enum Step {
    /// Whole extents, many at a time, as reclaim writes them.
    WriteExtents,
    /// Whole extents, many at a time, as readahead reads them.
    ReadExtents,
    /// Single pages at random, many at a time, as many threads fault.
    ReadPages,
    /// One page at a time, by a thread that waits for it.
    WritePage,
    ReadPage,
}

impl Step {
    pub(super) fn is_write(self) -> bool {
        matches!(self, Step::WriteExtents | Step::WritePage)
    }

    /// Returns true if its figure is the us of one operation, and not pages a second.
    pub(super) fn is_latency(self) -> bool {
        matches!(self, Step::WritePage | Step::ReadPage)
    }

    /// Returns the pages of one operation.
    pub(super) fn pages(self, of_extent: u64) -> u64 {
        match self {
            Step::WriteExtents | Step::ReadExtents => of_extent,
            Step::ReadPages | Step::WritePage | Step::ReadPage => 1,
        }
    }

    /// Keeps operations under way until `time` is over: `depth`, or one for a latency. `begin` returns
    /// the ns of an operation, which moves `pages`. Returns pages a second, or us.
    pub(super) async fn measure<F: Future<Output = Result<u64, Refusal>>>(
        self,
        mut places: impl Iterator<Item = u64>,
        depth: usize,
        time: Duration,
        begin: impl Fn(u64) -> F,
        pages: u64,
    ) -> Result<f64, Refusal> {
        let depth = if self.is_latency() { 1 } else { depth };
        let (mut latencies_ns, mut under_way) = (Vec::new(), FuturesUnordered::new());
        under_way.extend(places.by_ref().take(depth).map(&begin));
        let start = Instant::now();
        while let Some(ns) = under_way.next().await {
            latencies_ns.push(ns?);
            if start.elapsed() < time {
                under_way.extend(places.next().map(&begin));
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        Ok(match self.is_latency() {
            true => Round::of(&mut latencies_ns).p50_us,
            false => (latencies_ns.len() as u64 * pages) as f64 / seconds,
        })
    }
}
