//! A page store in the memory of this process, which fails on request.

use softswap_remote::store::{Page, PageStore, StoreError};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

#[derive(Default)]
struct State {
    pages: BTreeMap<u64, (u64, Box<Page>)>,
    failures: Vec<StoreError>,
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

    /// Makes the next call fail with `error`. Several errors are returned last to first.
    pub(crate) fn fail_next(&self, error: StoreError) {
        self.state().failures.push(error);
    }

    pub(crate) fn stored_pages(&self) -> usize {
        self.state().pages.len()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self) -> Result<MutexGuard<'_, State>, StoreError> {
        let mut state = self.state();
        match state.failures.pop() {
            Some(error) => Err(error),
            None => Ok(state),
        }
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
        let mut state = self.begin()?;
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
        let state = self.begin()?;
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
        let mut state = self.begin()?;
        state.pages.retain(|number, _| !pages.contains(number));
        Ok(())
    }
}

#[tokio::test]
async fn store_returns_written_pages_only() {
    let store = InMemory::default();
    store.write(5, &[1, 2], &[[7; 4096], [8; 4096]]).await.unwrap();
    let mut pages = [[0; 4096]; 2];
    store.read(5, &[1, 2], &mut pages).await.unwrap();
    assert_eq!((pages[0][0], pages[1][4095]), (7, 8));
    let stale = store.read(5, &[1, 3], &mut pages).await.unwrap_err();
    assert!(stale.to_string().contains("page 6 is lost"), "{stale}");
    store.remove(0..6).await.unwrap();
    assert!(matches!(
        store.read(5, &[1], &mut pages[..1]).await,
        Err(StoreError::Lost { page: 5, .. })
    ));
    store.read(6, &[2], &mut pages[..1]).await.unwrap();
}

#[tokio::test]
async fn full_store_accepts_overwrites() {
    let store = InMemory::with_limit(1);
    store.write(0, &[1], &[[1; 4096]]).await.unwrap();
    let full = store.write(1, &[1], &[[1; 4096]]).await.unwrap_err();
    assert!(full.is_transient() && full.to_string().contains("no space"), "{full}");
    store.write(0, &[2], &[[2; 4096]]).await.unwrap();
    store.fail_next(full.clone());
    assert_eq!(store.remove(0..1).await, Err(full));
    assert_eq!(store.stored_pages(), 1);
}
