//! Interface of a remote page store, and its errors. The interface hides where pages are stored.

use std::future::Future;
use std::ops::Range;
use std::time::Duration;

pub const PAGE_BYTES: usize = 4096;

/// A page as the engine passes it: encrypted, unless encryption is disabled.
pub type Page = [u8; PAGE_BYTES];

/// Stores the pages of one area, numbered from 0.
///
/// A page is written under a generation, which is never 0 and rises with each write of that page. A
/// reader passes the generation of the last write, and gets those bytes or an error. A stale,
/// truncated or foreign page is never returned.
///
/// Any number of calls may run concurrently. The caller orders calls for the same page: it waits
/// for one before it starts the next. A dropped call may have been executed.
pub trait PageStore: Send + Sync {
    /// Stores `pages[i]` as page `first_page + i` of generation `generations[i]`.
    ///
    /// Returns `Ok` once every page is stored in all copies. After an error each page may
    /// be written or not, and its previous content may be lost: the caller keeps the page, and
    /// writes it again under a higher generation.
    fn write(
        &self,
        first_page: u64,
        generations: &[u64],
        pages: &[Page],
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Reads page `first_page + i`, written under `generations[i]`, into `into[i]`. After an error
    /// the content of `into` is undefined.
    fn read(
        &self,
        first_page: u64,
        generations: &[u64],
        into: &mut [Page],
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Removes pages, written or not. Their space may become free later.
    fn remove(&self, pages: Range<u64>) -> impl Future<Output = Result<(), StoreError>> + Send;
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The store has no space. Stored pages can still be read, and space may become free.
    #[error("{node} has no space for more pages: raise its maxmemory, or lower size=")]
    Full { node: String },
    #[error(
        "page {page} is lost: {} no longer have the data that was written (servers: {}; found: \
         {found})",
        .keys.join(" and "), .nodes.join(", ")
    )]
    Lost { page: u64, keys: Vec<String>, nodes: Vec<String>, found: String },
    /// No answer in time. The pages may be stored nevertheless, and a retry may succeed.
    #[error(
        "{nodes} did not complete the request within {deadline:?}{}: {last}", for_keys(.keys),
        nodes = .nodes.join(", ")
    )]
    Deadline { nodes: Vec<String>, keys: Vec<String>, deadline: Duration, last: String },
    /// The server refuses the login or the request; a retry does not help.
    #[error("{node} refuses: {reason}")]
    Refused { node: String, reason: String },
}

fn for_keys(keys: &[String]) -> String {
    if keys.is_empty() { String::new() } else { format!(" for {}", keys.join(" or ")) }
}

impl StoreError {
    /// Returns true if a retry may succeed without a change of the store's settings.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Full { .. } | Self::Deadline { .. })
    }
}
