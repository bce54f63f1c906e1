//! A process's part in an area that its tree shares: under which mark it has clusters.

use softswap_shared::cluster_table::ClusterTable;
use softswap_sys::file::SwapFile;
use softswap_sys::open_mark;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

/// A process's part in an area.
#[derive(Debug)]
pub(crate) struct Share {
    pub(super) table: ClusterTable,
    pub(super) mark: u64,
    /// The open file that is marked. Without, nobody is ever taken for dead.
    file: Option<Arc<SwapFile>>,
    /// Not a parent's: clusters may be taken and given back.
    pub(super) is_own: AtomicBool,
    /// Where the next cluster is looked for: after the last one.
    pub(super) next: AtomicU32,
    /// When to look again at what is free.
    pub(super) next_look_ns: AtomicU64,
}

impl Share {
    /// What is held under a mark that `file` has, if it is one.
    pub(crate) fn new(table: ClusterTable, mark: u64, file: Option<Arc<SwapFile>>) -> Share {
        Share {
            table,
            mark,
            file,
            is_own: AtomicBool::new(true),
            next: AtomicU32::new(0),
            next_look_ns: AtomicU64::new(0),
        }
    }

    /// Frees what the dead have left.
    pub(super) fn reap(&self) -> usize {
        let Some(file) = &self.file else { return 0 };
        self.table.reap(|mark| mark != self.mark && open_mark::is_gone(&**file, mark))
    }
}
