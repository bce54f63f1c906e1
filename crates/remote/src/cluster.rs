//! The store: an area of one run on a cluster.

use crate::link::Helper;
use crate::node::Node;
use crate::placement::{self, Keys, Kind, PAGES, Placement, parse_key};
use crate::refusal::Refusal;
use crate::router::Router;
use crate::scan::{Batches, all_primaries, primaries_but, send, send_all, unreachable};
use crate::seal::Sealer;
use crate::shared::{ALL, Shared};
use crate::store::{Page, PageStore, StoreError};
use crate::upkeep::Upkeep;
use crate::url::Url;
use crate::watch::Watch;
use redis::{Value, cmd};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::task::JoinHandle;
use zeroize::Zeroizing;

pub const EXTENT_PAGES: u64 = PAGES;
pub const EXTENT_BYTES: usize = placement::EXTENT_BYTES;

pub struct Run {
    pub id: u64,
    pub area: u16,
    pub key: Zeroizing<[u8; 32]>,
    pub continues: bool,
}

/// Create it inside a tokio runtime, which runs its upkeep until the value is dropped. The pages
/// remain stored until [`Cluster::close`], or until `gc` runs after the lease has expired.
pub struct Cluster {
    shared: Arc<Shared>,
    upkeep: JoinHandle<()>,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.upkeep.abort();
    }
}

impl Cluster {
    /// Connects and takes a lease. Does not check the cluster: see `check::examine`.
    ///
    /// # Errors
    /// If no server answers, the login fails, or too few primaries exist or store the lease.
    pub async fn connect(url: &Url, run: Run) -> Result<Self, Refusal> {
        let router = Router::new(url, Some(Helper::new(run.id, run.continues)?))?;
        let until = tokio::time::Instant::now() + url.deadline;
        router.refresh(until).await.map_err(|request_error| unreachable(&request_error))?;
        // This helper has stored nothing yet, so earlier changes of slot owners do not matter.
        router.take_changed();
        let copies = url.copies.count();
        let placement = Placement::new(&router.topology(), copies).ok_or_else(|| {
            Refusal::new(format!(
                "{url}: two copies need two primaries with hash slots; there is one: add servers, \
                 or use copies=local together with an area on disk"
            ))
        })?;
        let sealer = Sealer::new(&run.key, run.id, run.area);
        let keys = Keys { run: run.id, area: run.area };
        let continues = run.continues;
        let shared = Shared::new(url.clone(), router, sealer, keys, placement);
        if continues {
            shared.find_stored_extents().await?;
        }
        if shared.put_lease().await < copies {
            return Err(Refusal::new(format!(
                "{url}: the lease cannot be written to enough servers; `softswap remote check` \
                 prints the reason"
            )));
        }
        let shared = Arc::new(shared);
        let upkeep_shared = Arc::clone(&shared);
        let upkeep = tokio::spawn(async move { Upkeep::new(continues).run(&upkeep_shared).await });
        Ok(Self { shared, upkeep })
    }

    pub(crate) fn messages_due(&self, watch: &mut Watch) -> Vec<String> {
        watch.check(&self.shared.router)
    }

    /// Removes what this run stores in this area, and with its last area the run's lease.
    ///
    /// # Errors
    /// If a server does not answer; its pages remain stored until `gc`.
    pub async fn close(mut self) -> Result<(), Refusal> {
        self.upkeep.abort();
        // Wait for the abort; otherwise the upkeep might store its table again.
        _ = (&mut self.upkeep).await;
        let pattern = format!("softswap:{{*}}:{:016x}:*", self.shared.keys.run);
        let area = self.shared.keys.area;
        let (nodes, is_one_missing) = primaries_but(usize::MAX, &self.shared.router).await?;
        let mut leases = Vec::new();
        let mut has_other_areas = false;
        // An error of one server does not prevent the removal on the others.
        let mut removed = Ok(());
        for node in nodes {
            let mut batches = Batches::of(&node, &pattern);
            while let Some(keys) = batches.next().await? {
                let mut own = Vec::new();
                for key in keys {
                    let Some((_, kind)) = parse_key(&key) else { continue };
                    match kind {
                        Kind::Lease => leases.push((Arc::clone(&node), key)),
                        Kind::Extent { area: other, .. } | Kind::Placement { area: other } => {
                            match other == area {
                                true => own.push(key),
                                false => has_other_areas = true,
                            }
                        }
                    }
                }
                removed = removed.and(unlink(&node, own.into_iter()).await);
            }
        }
        if !has_other_areas {
            for (node, key) in leases {
                removed = removed.and(unlink(&node, [key].into_iter()).await);
            }
        }
        match is_one_missing {
            false => removed,
            true => Err(Refusal::new(format!(
                "a primary is down, so this run's pages on it were not removed; when it is up \
                 again, run `softswap remote gc '{}' --run {:016x}`",
                self.shared.url, self.shared.keys.run
            ))),
        }
    }
}

/// Removes keys of one server, each with a separate command because their slots differ.
pub(crate) async fn unlink(node: &Node, keys: impl Iterator<Item = String>) -> Result<(), Refusal> {
    let mut pipeline = redis::pipe();
    for key in keys {
        pipeline.cmd("UNLINK").arg(key);
    }
    match pipeline.is_empty() {
        true => Ok(()),
        false => send_all(node, &pipeline, 0).await.map(drop),
    }
}

impl Shared {
    /// Finds what an earlier helper stored. With two copies, one primary may be missing.
    async fn find_stored_extents(&self) -> Result<(), Refusal> {
        let copies = self.url.copies.count();
        let (nodes, is_one_missing) = primaries_but(copies - 1, &self.router).await?;
        self.may_have_more.store(is_one_missing, Ordering::Relaxed);
        let mut newest: Option<Placement> = None;
        for node in nodes {
            for key in self.find_extents(&node).await? {
                let answer = send(&node, cmd("GET").arg(key)).await?;
                let Value::BulkString(bytes) = answer else { continue };
                if let Some(table) = self.read_placement(&bytes)
                    && newest.as_ref().is_none_or(|newest| newest.version < table.version)
                {
                    newest = Some(table);
                }
            }
        }
        match newest {
            Some(placement) => self.change_placement(|current| *current = placement),
            None if self.live().is_empty() => {}
            None => {
                return Err(Refusal::new(
                    "the table of page locations is missing (removed or expired), so pages of this \
                     run cannot be found; check eviction and persistence with `softswap remote \
                     check`",
                ));
            }
        }
        Ok(())
    }

    async fn find_extents(&self, node: &Node) -> Result<Vec<String>, Refusal> {
        let pattern = format!("softswap:{{*}}:{:016x}:{}:*", self.keys.run, self.keys.area);
        let mut tables = Vec::new();
        let mut batches = Batches::of(node, &pattern);
        while let Some(keys) = batches.next().await? {
            for key in keys {
                match parse_key(&key) {
                    Some((_, Kind::Extent { extent, .. })) => {
                        // Keep the state of an extent that is already known.
                        self.live().entry(extent).or_insert(ALL);
                    }
                    Some((_, Kind::Placement { .. })) => tables.push(key),
                    _ => {}
                }
            }
        }
        Ok(tables)
    }

    /// Repeats the search if a primary was missing when this helper started.
    pub(crate) async fn repeat_search(&self) {
        if !self.may_have_more.load(Ordering::Relaxed) {
            return;
        }
        let Ok(nodes) = all_primaries(&self.router).await else { return };
        for node in nodes {
            if self.find_extents(&node).await.is_err() {
                return;
            }
        }
        self.may_have_more.store(false, Ordering::Relaxed);
    }

    fn read_placement(&self, bytes: &[u8]) -> Option<Placement> {
        let (table, signature) = bytes.split_last_chunk::<16>()?;
        (self.sealer.sign(table) == *signature).then_some(())?;
        Placement::from_bytes(table, self.url.copies.count())
    }
}

impl PageStore for Cluster {
    async fn write(
        &self,
        first_page: u64,
        generations: &[u64],
        pages: &[Page],
    ) -> Result<(), StoreError> {
        self.shared.write_pages(first_page, generations, pages).await
    }

    async fn read(
        &self,
        first_page: u64,
        generations: &[u64],
        into: &mut [Page],
    ) -> Result<(), StoreError> {
        self.shared.read_pages(first_page, generations, into).await
    }

    async fn remove(&self, pages: Range<u64>) -> Result<(), StoreError> {
        self.shared.remove_pages(pages).await;
        Ok(())
    }
}

/// Stored bytes for each page and copy: the page, its header, a share of the extent's extra byte.
pub const STORED_BYTES_PER_PAGE: f64 = EXTENT_BYTES as f64 / PAGES as f64;
