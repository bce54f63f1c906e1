//! A process's part in an area that its tree shares.

use softswap_shared::cluster_table::ClusterTable;
use softswap_sys::file::SwapFile;
use softswap_sys::open_mark;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

#[derive(Debug)]
pub(crate) struct TreeShare {
    pub(super) table: ClusterTable,
    pub(super) mark: u64,
    /// The marked open file. Without it no owner is ever considered dead.
    file: Option<Arc<SwapFile>>,
    /// False in a forked child: the clusters are the parent's, so none may be taken or returned.
    pub(super) is_own: AtomicBool,
    pub(super) next: AtomicU32,
    pub(super) next_check_ns: AtomicU64,
}

impl TreeShare {
    pub(crate) fn new(table: ClusterTable, mark: u64, file: Option<Arc<SwapFile>>) -> TreeShare {
        TreeShare {
            table,
            mark,
            file,
            is_own: AtomicBool::new(true),
            next: AtomicU32::new(0),
            next_check_ns: AtomicU64::new(0),
        }
    }

    pub(super) fn reap(&self) -> usize {
        let Some(file) = &self.file else { return 0 };
        self.table.reap(|mark| mark != self.mark && open_mark::is_released(&**file, mark))
    }
}
