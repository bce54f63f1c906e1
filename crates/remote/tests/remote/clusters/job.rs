//! A program's use of its area, with the expected content of each page.

use softswap_remote::cluster::{Cluster, Run};
use softswap_remote::refusal::Refusal;
use softswap_remote::store::{Page, PageStore, StoreError};
use softswap_remote::url::Url;
use softswap_testkit::random::Random;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use zeroize::Zeroizing;

static RUNS: AtomicU64 = AtomicU64::new(1);

pub(crate) fn new_run() -> Run {
    let id = u64::from(std::process::id()) << 20 | RUNS.fetch_add(1, Ordering::Relaxed);
    Run { id, area: 0, key: Zeroizing::new([id as u8; 32]), continues: false }
}

pub(crate) fn same_run(run: &Run) -> Run {
    Run { id: run.id, area: run.area, key: run.key.clone(), continues: true }
}

fn contents(page: u64, generation: u64) -> Page {
    let mut contents = [0; 4096];
    for (at, word) in contents.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *word = (page << 40 ^ generation << 16 ^ at as u64).to_le_bytes();
    }
    contents
}

pub(crate) struct Job {
    pub(crate) cluster: Cluster,
    pub(crate) written: BTreeMap<u64, u64>,
    tried: BTreeMap<u64, u64>,
}

impl Job {
    pub(crate) async fn new(url: &str, run: Run) -> Result<Self, Refusal> {
        let cluster = Cluster::connect(&Url::parse(url)?, run).await?;
        Ok(Self { cluster, written: BTreeMap::new(), tried: BTreeMap::new() })
    }

    /// Writes pages. After an error the pages count as not stored, and are not read.
    pub(crate) async fn write(&mut self, first: u64, count: u64) -> Result<(), StoreError> {
        let numbers: Vec<u64> = (first..first + count).collect();
        let generation = |page: &u64| self.tried.get(page).copied().unwrap_or(0) + 1;
        let generations: Vec<u64> = numbers.iter().map(generation).collect();
        let pages: Vec<Page> =
            numbers.iter().zip(&generations).map(|(p, g)| contents(*p, *g)).collect();
        for (page, generation) in numbers.iter().zip(&generations) {
            self.tried.insert(*page, *generation);
            self.written.remove(page);
        }
        self.cluster.write(first, &generations, &pages).await?;
        self.written.extend(numbers.into_iter().zip(generations));
        Ok(())
    }

    pub(crate) async fn read(&self, first: u64, count: u64) -> Result<(), StoreError> {
        let known: Vec<u64> =
            (first..first + count).map_while(|page| self.written.get(&page).copied()).collect();
        if known.is_empty() {
            return Ok(());
        }
        let mut pages = vec![[0; 4096]; known.len()];
        self.cluster.read(first, &known, &mut pages).await?;
        for ((number, generation), page) in (first..).zip(&known).zip(&pages) {
            let is_written = *page == contents(number, *generation);
            assert!(is_written, "page {number} has other content than was written");
        }
        Ok(())
    }

    pub(crate) async fn read_all(&self) -> Result<(), StoreError> {
        let last = self.written.keys().last().copied().unwrap_or(0);
        for first in (0..=last).step_by(64) {
            self.read(first, 64).await?;
            // A read stops at the first page that was not written.
            for page in first..first + 64 {
                if !self.written.contains_key(&page) {
                    self.read(page + 1, 1).await?;
                }
            }
        }
        Ok(())
    }

    pub(crate) async fn work(&mut self, random: &mut Random, pages: u64, times: u64) {
        for _ in 0..times {
            let (first, count) = (random.below(pages), random.below(40) + 1);
            match random.below(3) {
                0 => self.write(first, count).await.unwrap(),
                _ => self.read(first, count).await.unwrap(),
            }
        }
    }
}

pub(crate) fn block_on<T>(work: impl Future<Output = T>) -> T {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().unwrap().block_on(work)
}
