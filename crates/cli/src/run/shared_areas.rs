//! Named areas that the tree of processes shares: `run` claims them, creates the cluster tables, and
//! reaps clusters whose marks are gone.

use super::areas::Named;
use crate::refusal::{Refusal, plain};
use softswap_engine::base::stats::{Counter, Stats};
use softswap_engine::door::open_areas::{claim_for_tree, discard_of};
use softswap_engine::door::settings::{Config, Inherited};
use softswap_engine::store::swap::{Activated, Discard};
use softswap_shared::cluster_table::{ClusterTable, ClusterTables, MARK_OF_TREE};
use softswap_sys::file::{SwapFile, errno};
use softswap_sys::{PAGE_SIZE, open_mark, shared};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Named areas of the tree.
pub(super) struct SharedAreas {
    tables_fd: OwnedFd,
    areas: Vec<(SwapFile, ClusterTable)>,
}

impl SharedAreas {
    /// Creates the tables of the claimed areas, and adds their descriptors to the configuration. Returns
    /// `None` without areas.
    pub(super) fn make(
        named: Vec<Named>,
        config: &mut Config,
        stats: &Stats,
    ) -> Result<Option<SharedAreas>, Refusal> {
        if named.is_empty() {
            return Ok(None);
        }
        let mut which = Vec::new();
        for Named { order, area, shown } in &named {
            let claimed = claim_for_tree(area).map_err(|error| {
                Refusal::usage(format!(
                    "{shown}: no part of it can be locked ({}), so processes cannot share it: use \
                     a file on another file system, or a device",
                    plain(&error)
                ))
            })?;
            which.push(claimed);
            let spec = &mut config.areas[*order];
            spec.discard = discard_at_start(area, discard_of(area, spec.discard), stats);
            spec.inherited = Some(Inherited::File(area.file.as_fd().as_raw_fd()));
        }
        let (tables_fd, words) = shared::create(ClusterTables::words(&which)).map_err(|error| {
            let why = plain(&error);
            Refusal::own(format!(
                "cannot create the table through which processes share swap areas: {why}"
            ))
        })?;
        config.tables_fd = Some(tables_fd.as_raw_fd());
        let tables = ClusterTables::create(words, &which);
        let areas = named.into_iter().zip(which);
        let areas =
            areas.filter_map(|(named, which)| Some((named.area.file, tables.table(which)?)));
        Ok(Some(SharedAreas { tables_fd, areas: areas.collect() }))
    }

    /// Returns the descriptors that the tree inherits.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let files = self.areas.iter().map(|(file, _)| file.as_fd());
        files.chain([self.tables_fd.as_fd()])
    }

    /// Reaps clusters whose marks are gone.
    pub(super) fn look(&self) {
        for (file, table) in &self.areas {
            table.reap(|mark| mark != MARK_OF_TREE && open_mark::is_gone(file, mark));
        }
    }
}

/// Discards an area before its first use, if requested. Returns when processes are to discard
/// afterwards.
fn discard_at_start(area: &Activated, asked: Discard, stats: &Stats) -> Discard {
    let then = match asked {
        Discard::None | Discard::Once => Discard::None,
        Discard::Pages | Discard::Both => Discard::Pages,
    };
    if !matches!(asked, Discard::Once | Discard::Both) {
        return then;
    }
    let bytes = (area.header.pages() - 1) * PAGE_SIZE as u64;
    match area.file.discard(PAGE_SIZE as u64, bytes) {
        Ok(()) => stats.add(Counter::DiscardedBytes, bytes),
        Err(error) if error.raw_os_error() == Some(errno::EOPNOTSUPP) => return Discard::None,
        Err(_) => {
            stats.add(Counter::DiscardErrors, 1);
            return Discard::None;
        }
    }
    then
}
