//! Areas that the tree shares: files and devices, and clusters accessed through helpers.
//!
//! `run` claims files and devices, creates the table of clusters, and frees the clusters of exited
//! processes, whose marks (file locks) the kernel has released.

use super::areas::Named;
use super::raw_watch::RawWatch;
use super::remote::{Helper, LAST_RESTART, Remote};
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
use std::time::Instant;

pub(super) fn start_helpers(
    remotes: Vec<(usize, Remote)>,
    notes: &mut Vec<String>,
) -> Result<Vec<(usize, Remote, Helper)>, Refusal> {
    let start = |(order, remote): (usize, Remote)| {
        Helper::start(&remote, notes).map(|helper| (order, remote, helper))
    };
    remotes.into_iter().map(start).collect()
}

pub(super) struct TreeAreas {
    /// `None` without named areas.
    tables_fd: Option<OwnedFd>,
    named: Vec<NamedArea>,
    helpers: Vec<Helper>,
}

/// `raw` is dropped last: the flag of a raw file is cleared after its claim is released.
struct NamedArea {
    file: Arc<SwapFile>,
    table: ClusterTable,
    raw: Option<RawWatch>,
}

impl TreeAreas {
    pub(super) fn make(
        named: Vec<Named>,
        helpers: Vec<(usize, Remote, Helper)>,
        config: &mut Config,
        stats: &Stats,
    ) -> Result<TreeAreas, Refusal> {
        for (order, remote, helper) in &helpers {
            let number = helper.fd().as_raw_fd();
            config.areas[*order].inherited = Some(match remote.is_mirror() {
                true => Inherited::Mirror(number),
                false => Inherited::RequestQueue(number),
            });
        }
        let helpers = helpers.into_iter().map(|(_, _, helper)| helper).collect();
        if named.is_empty() {
            return Ok(TreeAreas { tables_fd: None, named: Vec::new(), helpers });
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
        let named = named.into_iter().zip(which).filter_map(|(named, which)| {
            let table = tables.table(which)?;
            let (file, pages) = (Arc::new(named.area.file), named.area.header.pages());
            let path = config.areas[named.order].path.clone();
            let raw = named.raw.map(|raw| RawWatch::new(raw, path, &file, pages, table));
            Some(NamedArea { file, table, raw })
        });
        Ok(TreeAreas { tables_fd: Some(tables_fd), named: named.collect(), helpers })
    }

    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let files = self.named.iter().map(|area| area.file.as_fd());
        let tables = self.tables_fd.iter().map(AsFd::as_fd);
        files.chain(tables).chain(self.helpers.iter().map(Helper::fd))
    }

    /// Threads watch raw areas, and restart helpers with a message unless `is_quiet`.
    pub(super) fn watch(&mut self, is_quiet: bool) -> Result<(), Refusal> {
        let start =
            |area: &mut NamedArea| area.raw.iter_mut().try_for_each(|raw| raw.start(&area.file));
        self.named.iter_mut().try_for_each(start).or_own("cannot watch a raw swap file")?;
        self.helpers.iter_mut().try_for_each(|helper| helper.watch(is_quiet))
    }

    pub(super) fn poll(&mut self) -> Vec<String> {
        let poll = |NamedArea { file, table, raw }: &mut NamedArea| {
            let marked = raw.as_ref().map_or(&**file, |raw| &raw.device);
            table.reap(|mark| mark != MARK_OF_TREE && open_mark::is_released(marked, mark));
            raw.as_mut().and_then(RawWatch::news)
        };
        self.named.iter_mut().filter_map(poll).collect()
    }

    /// Waits for helpers that are being restarted, because they remove the pages of exited
    /// processes. Releases claims and marks unless other processes of the tree still run.
    pub(super) fn release(&mut self) {
        let until = Instant::now() + LAST_RESTART;
        self.helpers.iter().for_each(|helper| helper.await_restart(until));
        (self.named, self.tables_fd) = (Vec::new(), None);
    }
}

/// Returns the discard mode for the processes, without `once`.
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
        // The map may have changed since it was verified.
        Some(raw) => raw
            .file
            .check_unchanged(area)
            .map_err(io::Error::other)
            .and_then(|()| discard_blocks(raw)),
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

/// Keeps the first block, which holds the header.
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
