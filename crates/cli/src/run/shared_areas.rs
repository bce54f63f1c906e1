//! Named areas that the tree of processes shares. `run` claims them, creates the table of clusters,
//! and frees the clusters of exited processes, whose marks (file locks) the kernel has released.

use super::areas::Named;
use super::raw_watch::RawWatch;
use crate::refusal::{OrRefuse, Refusal, plain};
use crate::swapon_raw::Raw;
use softswap_engine::api::open_areas::{claim_for_tree, discard_of};
use softswap_engine::api::settings::{Config, Inherited};
use softswap_engine::base::stats::{Counter, Stats};
use softswap_engine::store::swap::{Activated, Discard};
use softswap_shared::cluster_table::{ClusterTable, ClusterTables, MARK_OF_TREE};
use softswap_sys::file::{SwapFile, errno};
use softswap_sys::{PAGE_SIZE, open_mark, shared};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Named areas of the tree.
pub(super) struct SharedAreas {
    tables_fd: OwnedFd,
    areas: Vec<SharedArea>,
}

/// A named area. Fields are dropped in order, so the claim is released before the mark of a raw
/// file is removed.
struct SharedArea {
    file: Arc<SwapFile>,
    table: ClusterTable,
    raw: Option<RawWatch>,
}

impl SharedAreas {
    /// Creates the tables of the claimed areas, and adds their descriptors to the configuration.
    /// Returns `None` without areas.
    pub(super) fn make(
        named: Vec<Named>,
        config: &mut Config,
        stats: &Stats,
    ) -> Result<Option<SharedAreas>, Refusal> {
        if named.is_empty() {
            return Ok(None);
        }
        let mut which = Vec::new();
        for Named { order, area, raw, shown } in &named {
            let claimed = claim_for_tree(area).map_err(|error| {
                Refusal::usage(format!(
                    "{shown}: no byte range of it can be locked ({}), so processes cannot share \
                     it; use a file on another file system, or a device",
                    plain(&error)
                ))
            })?;
            which.push(claimed);
            let spec = &mut config.areas[*order];
            let asked = discard_of(area, raw.is_some(), spec.discard);
            spec.discard = discard_at_start(area, raw.as_ref(), asked, stats);
            let number = area.file.as_fd().as_raw_fd();
            spec.inherited = Some(match raw {
                Some(raw) => Inherited::Raw(number, raw.file.fingerprint()),
                None => Inherited::File(number),
            });
        }
        let (tables_fd, words) = shared::create(ClusterTables::words(&which))
            .or_own("cannot create the table through which processes share swap areas")?;
        config.tables_fd = Some(tables_fd.as_raw_fd());
        let tables = ClusterTables::create(words, &which);
        let areas = named.into_iter().zip(which).filter_map(|(named, which)| {
            let table = tables.table(which)?;
            let (file, pages) = (Arc::new(named.area.file), named.area.header.pages());
            let path = config.areas[named.order].path.clone();
            let raw = named.raw.map(|raw| RawWatch::new(raw, path, &file, pages, table));
            Some(SharedArea { file, table, raw })
        });
        Ok(Some(SharedAreas { tables_fd, areas: areas.collect() }))
    }

    /// Returns the descriptors that the tree inherits.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let files = self.areas.iter().map(|area| area.file.as_fd());
        files.chain([self.tables_fd.as_fd()])
    }

    /// Starts threads that watch raw areas.
    pub(super) fn watch(&mut self) -> Result<(), Refusal> {
        let start =
            |area: &mut SharedArea| area.raw.iter_mut().try_for_each(|raw| raw.start(&area.file));
        self.areas.iter_mut().try_for_each(start).or_own("cannot watch a raw swap file")
    }

    /// Frees the clusters of exited processes. Returns messages for the user.
    pub(super) fn poll(&mut self) -> Vec<String> {
        let poll = |SharedArea { file, table, raw }: &mut SharedArea| {
            let marked = raw.as_ref().map_or(&**file, |raw| &raw.device);
            table.reap(|mark| mark != MARK_OF_TREE && open_mark::is_released(marked, mark));
            raw.as_mut().and_then(RawWatch::news)
        };
        self.areas.iter_mut().filter_map(poll).collect()
    }
}

/// Discards an area before its first use, if requested. Returns the discard mode for the processes.
fn discard_at_start(area: &Activated, raw: Option<&Raw>, asked: Discard, stats: &Stats) -> Discard {
    let then = match asked {
        Discard::None | Discard::Once => Discard::None,
        Discard::Pages | Discard::Both => Discard::Pages,
    };
    if !matches!(asked, Discard::Once | Discard::Both) {
        return then;
    }
    let bytes = (area.header.pages() - 1) * PAGE_SIZE as u64;
    let discarded = match raw {
        Some(raw) => discard_blocks(raw),
        None => area.file.discard(PAGE_SIZE as u64, bytes),
    };
    match discarded {
        Ok(()) => stats.add(Counter::DiscardedBytes, bytes),
        Err(error) if error.raw_os_error() == Some(errno::EOPNOTSUPP) => return Discard::None,
        Err(_) => {
            stats.add(Counter::DiscardErrors, 1);
            return Discard::None;
        }
    }
    then
}

/// Discards the blocks of a raw file, except the header's, which is the first.
fn discard_blocks(raw: &Raw) -> io::Result<()> {
    const PAGE_BYTES: u64 = PAGE_SIZE as u64;
    raw.file.map.iter().try_for_each(|extent| {
        let header = u64::from(extent.page == 0);
        let (block, pages) = (extent.block + header, extent.pages - header);
        match pages {
            0 => Ok(()),
            _ => raw.file.device.discard(block * PAGE_BYTES, pages * PAGE_BYTES),
        }
    })
}
