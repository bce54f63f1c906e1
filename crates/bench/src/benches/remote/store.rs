//! The store itself, as the helper of a run uses it: sealed pages, all copies, as many threads.

use super::step::{self, Figure, Step};
use crate::measure::noise::{below, fill_with_noise, noise};
use softswap_cli::refusal::{Refusal, plain};
use softswap_remote::cluster::{Cluster, EXTENT_PAGES, Run};
use softswap_remote::control::RunKey;
use softswap_remote::store::{Page, PageStore, StoreError};
use softswap_remote::url::{Copies, Url};
use softswap_sys::PAGE_SIZE;
use softswap_sys::raw::now_ns;
use std::time::Duration;

/// An area of so many extents, all of which are written.
pub(super) struct Store {
    cluster: Cluster,
    copies: u64,
    extents: u64,
    /// All pages have the same.
    generation: u64,
    extent: Vec<Page>,
}

fn failed(error: &StoreError) -> Refusal {
    Refusal::own(error.to_string())
}

impl Store {
    /// Connects, and writes all extents once.
    pub(super) async fn fill(url: &Url, extents: u64) -> Result<Store, Refusal> {
        let RunKey { id, key } = RunKey::choose()
            .map_err(|error| Refusal::own(format!("no random numbers: {}", plain(&error))))?;
        let run = Run { id, area: 0, key, continues: false };
        let cluster = Cluster::connect(url, run)
            .await
            .map_err(|refusal| Refusal::own(refusal.to_string()))?;
        let copies = if url.copies == Copies::Two { 2 } else { 1 };
        let mut extent = vec![[0; PAGE_SIZE]; EXTENT_PAGES as usize];
        for (page, seed) in extent.iter_mut().zip(1..) {
            fill_with_noise(page, seed);
        }
        let store = Store { cluster, copies, extents, generation: 1, extent };
        for number in 0..extents {
            store.operate(Step::WriteExtents, number * EXTENT_PAGES).await?;
        }
        Ok(store)
    }

    pub(super) fn stored_bytes(&self) -> u64 {
        self.extents * EXTENT_PAGES * self.copies * PAGE_SIZE as u64
    }

    /// One operation of a step. What is read is what was written: the store refuses else.
    async fn operate(&self, step: Step, first_page: u64) -> Result<(), Refusal> {
        let pages = step.pages(EXTENT_PAGES) as usize;
        let generations = [self.generation; EXTENT_PAGES as usize];
        let generations = &generations[..pages];
        if step.is_write() {
            let at = (first_page % EXTENT_PAGES) as usize;
            let contents = &self.extent[at..at + pages];
            let written = self.cluster.write(first_page, generations, contents).await;
            return written.map_err(|error| failed(&error));
        }
        let mut into = vec![[0; PAGE_SIZE]; pages];
        let read = self.cluster.read(first_page, generations, &mut into).await;
        read.map_err(|error| failed(&error))
    }

    /// Where the operations of a step begin, one after the other.
    fn places(&self, step: Step, seed: u64) -> impl Iterator<Item = u64> {
        let (extents, pages) = (self.extents, self.extents * EXTENT_PAGES);
        let is_whole = step.pages(EXTENT_PAGES) == EXTENT_PAGES;
        noise(seed).map(move |number| match is_whole {
            true => below(number, extents) * EXTENT_PAGES,
            false => below(number, pages),
        })
    }

    /// Does a step for a while, with so many operations under way. Two may write one page at a
    /// time: here both write the same.
    pub(super) async fn measure(
        &self,
        step: Step,
        how: (usize, Duration),
        seed: u64,
    ) -> Result<Figure, Refusal> {
        let begin = |at: u64| async move {
            let start = now_ns();
            self.operate(step, at).await.map(|()| now_ns() - start)
        };
        let copies = if step.is_write() { self.copies } else { 1 };
        let pages = step.pages(EXTENT_PAGES) * copies;
        step::measure(step, self.places(step, seed), how, begin, pages).await
    }

    /// Removes all that it has stored.
    pub(super) async fn close(self) -> Result<(), Refusal> {
        self.cluster.close().await.map_err(|refusal| Refusal::own(refusal.to_string()))
    }
}
