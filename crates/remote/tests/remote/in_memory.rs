//! A page store in the memory of this process, with an optional limit.

use softswap_remote::store::{Page, PageStore, StoreError};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

#[derive(Default)]
struct State {
    pages: BTreeMap<u64, (u64, Box<Page>)>,
}

#[derive(Default)]
pub(crate) struct InMemory {
    limit_pages: Option<usize>,
    state: Mutex<State>,
}

impl InMemory {
    pub(crate) fn with_limit(limit_pages: usize) -> Self {
        Self { limit_pages: Some(limit_pages), ..Self::default() }
    }

    pub(crate) fn stored_pages(&self) -> usize {
        self.state().pages.len()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const NODE: &str = "memory";

impl PageStore for InMemory {
    async fn write(
        &self,
        first_page: u64,
        generations: &[u64],
        pages: &[Page],
    ) -> Result<(), StoreError> {
        assert_eq!(generations.len(), pages.len(), "one generation for each page");
        let mut state = self.state();
        for ((number, generation), page) in (first_page..).zip(generations).zip(pages) {
            let is_new = !state.pages.contains_key(&number);
            if is_new && self.limit_pages.is_some_and(|limit| state.pages.len() >= limit) {
                return Err(StoreError::Full { node: NODE.into() });
            }
            state.pages.insert(number, (*generation, Box::new(*page)));
        }
        Ok(())
    }

    async fn read(
        &self,
        first_page: u64,
        generations: &[u64],
        into: &mut [Page],
    ) -> Result<(), StoreError> {
        assert_eq!(generations.len(), into.len(), "one generation for each page");
        let state = self.state();
        for ((number, generation), into) in (first_page..).zip(generations).zip(into) {
            let found = match state.pages.get(&number) {
                Some((stored, page)) if stored == generation => {
                    *into = **page;
                    continue;
                }
                Some((stored, _)) => format!("generation {stored} instead of {generation}"),
                None => "nothing".into(),
            };
            return Err(StoreError::Lost {
                page: number,
                keys: vec![number.to_string()],
                nodes: vec![NODE.into()],
                found,
            });
        }
        Ok(())
    }

    async fn remove(&self, pages: Range<u64>) -> Result<(), StoreError> {
        let mut state = self.state();
        state.pages.retain(|number, _| !pages.contains(number));
        Ok(())
    }
}
