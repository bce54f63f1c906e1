//! What a remote store of pages does, and how it fails. Whatever keeps pages on other machines
//! stands behind this: a cluster today, others later.

use std::future::Future;
use std::ops::Range;
use std::time::Duration;

pub const PAGE_BYTES: usize = 4096;

/// One page as the engine hands it over: sealed, if it seals.
pub type Page = [u8; PAGE_BYTES];

/// Keeps the pages of one area, numbered from 0.
///
/// A page is written under a generation, which is never 0 and rises with each write of that page.
/// Who reads names the generation that it wrote, and gets those bytes or an error: a page that is
/// stale, cut short or another's is never returned.
///
/// Any number of calls may be under way. Those about the same page are the caller's to put in
/// order: it waits for one before it starts the next. A call that is dropped may have happened.
pub trait PageStore: Send + Sync {
    /// Keeps `pages[i]` as page `first_page + i` of generation `generations[i]`.
    ///
    /// `Ok` once every page is where the store promises to keep it. After an error each page may
    /// be written or not, and what it was before may be gone: the caller keeps it, and writes it
    /// again under a higher generation.
    fn write(
        &self,
        first_page: u64,
        generations: &[u64],
        pages: &[Page],
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Reads page `first_page + i` into `into[i]`, which must have been written under
    /// `generations[i]`. After an error the contents of `into` mean nothing.
    fn read(
        &self,
        first_page: u64,
        generations: &[u64],
        into: &mut [Page],
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Forgets pages, written or not. Their room may come back later, as stores keep many pages
    /// in one piece.
    fn remove(&self, pages: Range<u64>) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// Why a store could not do it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The store has no room; what it has can still be read, and room may come back.
    #[error("{node} has no room for more pages: raise its maxmemory, or lower size=")]
    Full { node: String },
    /// No copy of a page is left that is what was written.
    #[error(
        "page {page} is lost: neither {} holds what was written (asked: {}; found: {found})",
        .keys.join(" nor "), .nodes.join(", ")
    )]
    Lost { page: u64, keys: Vec<String>, nodes: Vec<String>, found: String },
    /// No answer in time. What is stored may be there all the same: it can be tried again.
    /// The keys are those of a page that was to be read.
    #[error(
        "{nodes} did not do it within {deadline:?}{}: {last}", about(.keys),
        nodes = .nodes.join(", ")
    )]
    Deadline { nodes: Vec<String>, keys: Vec<String>, deadline: Duration, last: String },
    /// The server will not have us or this call; trying again does not help.
    #[error("{node} refuses: {reason}")]
    Refused { node: String, reason: String },
}

fn about(keys: &[String]) -> String {
    if keys.is_empty() { String::new() } else { format!(" about {}", keys.join(" or ")) }
}

impl StoreError {
    /// Whether the same call may succeed later without anybody changing the store's settings.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Full { .. } | Self::Deadline { .. })
    }
}
