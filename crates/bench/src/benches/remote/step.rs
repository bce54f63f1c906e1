//! The measured operations of a store.

use crate::measure::sample::Round;
use clap::ValueEnum;
use futures_util::stream::{FuturesUnordered, StreamExt};
use softswap_cli::refusal::Refusal;
use std::future::Future;
use std::time::{Duration, Instant};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(super) enum Step {
    /// Whole extents, concurrently, as reclaim writes them.
    WriteExtents,
    /// Whole extents, concurrently, as readahead reads them.
    ReadExtents,
    /// Random single pages, concurrently, as many faulting threads read them.
    ReadPages,
    WritePage,
    ReadPage,
}

impl Step {
    pub(super) fn is_write(self) -> bool {
        matches!(self, Step::WriteExtents | Step::WritePage)
    }

    /// Returns true if the figure is the latency of one operation in us. Otherwise it is pages per
    /// second.
    pub(super) fn is_latency(self) -> bool {
        matches!(self, Step::WritePage | Step::ReadPage)
    }

    pub(super) fn pages(self, of_extent: u64) -> u64 {
        match self {
            Step::WriteExtents | Step::ReadExtents => of_extent,
            Step::ReadPages | Step::WritePage | Step::ReadPage => 1,
        }
    }

    /// Runs operations until `time` is over: `depth` concurrently, or one at a time if the latency
    /// is measured. `begin` performs an operation and returns its duration in ns. Returns the pages
    /// per second, counting `pages` per operation, or the median latency in us.
    pub(super) async fn measure<F: Future<Output = Result<u64, Refusal>>>(
        self,
        mut places: impl Iterator<Item = u64>,
        depth: usize,
        time: Duration,
        begin: impl Fn(u64) -> F,
        pages: u64,
    ) -> Result<f64, Refusal> {
        let depth = if self.is_latency() { 1 } else { depth };
        let (mut latencies_ns, mut in_flight) = (Vec::new(), FuturesUnordered::new());
        in_flight.extend(places.by_ref().take(depth).map(&begin));
        let start = Instant::now();
        while let Some(ns) = in_flight.next().await {
            latencies_ns.push(ns?);
            if start.elapsed() < time {
                in_flight.extend(places.next().map(&begin));
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        Ok(match self.is_latency() {
            true => Round::of(&mut latencies_ns).p50_us,
            false => (latencies_ns.len() as u64 * pages) as f64 / seconds,
        })
    }
}
