//! Accesses the store as `softswap-remote` does: sealed pages, all copies, as many threads.

use crate::measure::noise::{below, fill_with_noise, noise};
use crate::measure::sample::Round;
use clap::ValueEnum;
use futures_util::stream::{FuturesUnordered, StreamExt};
use softswap_cli::refusal::{OrRefuse, Refusal};
use softswap_remote::cluster::{Cluster, EXTENT_PAGES, Run};
use softswap_remote::control::RunKey;
use softswap_remote::store::{Page, PageStore};
use softswap_remote::url::{Copies, Url};
use softswap_sys::PAGE_SIZE;
use softswap_sys::raw::now_ns;
use std::time::{Duration, Instant};

const GENERATION: u64 = 1;

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
    fn is_write(self) -> bool {
        matches!(self, Step::WriteExtents | Step::WritePage)
    }

    /// True for the latency of one operation in us; otherwise the figure is pages per second.
    pub(super) fn is_latency(self) -> bool {
        matches!(self, Step::WritePage | Step::ReadPage)
    }

    fn pages(self, of_extent: u64) -> u64 {
        match self {
            Step::WriteExtents | Step::ReadExtents => of_extent,
            Step::ReadPages | Step::WritePage | Step::ReadPage => 1,
        }
    }
}

pub(super) struct Store {
    cluster: Cluster,
    copies: u64,
    extents: u64,
    extent: Vec<Page>,
}

impl Store {
    pub(super) async fn fill(url: &Url, extents: u64) -> Result<Store, Refusal> {
        let RunKey { id, key } =
            RunKey::choose().or_own("the kernel returned no random numbers")?;
        let run = Run { id, area: 0, key, continues: false };
        let cluster = Cluster::connect(url, run).await.map_err(Refusal::own)?;
        let copies = if url.copies == Copies::Two { 2 } else { 1 };
        let mut extent = vec![[0; PAGE_SIZE]; EXTENT_PAGES as usize];
        for (page, seed) in extent.iter_mut().zip(1..) {
            fill_with_noise(page, seed);
        }
        let store = Store { cluster, copies, extents, extent };
        for number in 0..extents {
            store.operate(Step::WriteExtents, number * EXTENT_PAGES).await?;
        }
        Ok(store)
    }

    pub(super) fn stored_bytes(&self) -> u64 {
        self.extents * EXTENT_PAGES * self.copies * PAGE_SIZE as u64
    }

    /// The store itself verifies pages that it reads.
    async fn operate(&self, step: Step, first_page: u64) -> Result<(), Refusal> {
        let pages = step.pages(EXTENT_PAGES) as usize;
        let generations = &[GENERATION; EXTENT_PAGES as usize][..pages];
        if step.is_write() {
            let at = (first_page % EXTENT_PAGES) as usize;
            let contents = &self.extent[at..at + pages];
            return self
                .cluster
                .write(first_page, generations, contents)
                .await
                .map_err(Refusal::own);
        }
        let mut into = vec![[0; PAGE_SIZE]; pages];
        self.cluster.read(first_page, generations, &mut into).await.map_err(Refusal::own)
    }

    /// Repeats a step until `time` is over, with `depth` operations at a time (one for latency).
    /// Returns pages per second, counting each copy, or the median in us. Concurrent writes of a
    /// page are allowed: they write the same content.
    pub(super) async fn measure(
        &self,
        step: Step,
        depth: usize,
        time: Duration,
        seed: u64,
    ) -> Result<f64, Refusal> {
        let begin = |at: u64| async move {
            let start = now_ns();
            self.operate(step, at).await.map(|()| now_ns() - start)
        };
        let pages = step.pages(EXTENT_PAGES);
        let places = self.extents * EXTENT_PAGES / pages;
        let mut places = noise(seed).map(move |number| below(number, places) * pages);
        let depth = if step.is_latency() { 1 } else { depth };
        let (mut latencies_ns, mut in_flight) = (Vec::new(), FuturesUnordered::new());
        in_flight.extend(places.by_ref().take(depth).map(begin));
        let start = Instant::now();
        while let Some(ns) = in_flight.next().await {
            latencies_ns.push(ns?);
            if start.elapsed() < time {
                in_flight.extend(places.next().map(begin));
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        let pages = pages * if step.is_write() { self.copies } else { 1 };
        Ok(match step.is_latency() {
            true => Round::of(&mut latencies_ns).p50_us,
            false => (latencies_ns.len() as u64 * pages) as f64 / seconds,
        })
    }

    pub(super) async fn close(self) -> Result<(), Refusal> {
        self.cluster.close().await.map_err(Refusal::own)
    }
}
