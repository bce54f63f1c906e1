//! Swap areas of the tree: swap files and devices, and areas on a cluster of servers.
//!
//! `softswap run` has claimed them. All started programs inherit the descriptors, which stay open
//! also while this process sleeps.

use softswap_engine::api::settings::{Config, Inherited};
use softswap_shared::cluster_table::ClusterTables;
use softswap_shared::request_queue::SHAPE;
use softswap_sys::{file, own_descriptors, shared};
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;

static TABLES: OnceLock<Option<ClusterTables>> = OnceLock::new();

pub(crate) fn tables(config: &Config) -> Option<&'static ClusterTables> {
    TABLES.get_or_init(|| open(config.tables_fd?)).as_ref()
}

fn open(number: i32) -> Option<ClusterTables> {
    // SAFETY: the descriptor is borrowed for this call only, which rejects a wrong number.
    let fd = unsafe { BorrowedFd::borrow_raw(number) };
    let tables = ClusterTables::open(shared::open_all(fd).ok()?)?;
    own_descriptors::keep(number);
    Some(tables)
}

/// Returns false if the area is missing.
pub(crate) fn keep_descriptor(config: &Config, inherited: Inherited) -> bool {
    let (number, is_there) = match inherited {
        Inherited::File(number) | Inherited::Raw(number, _) => {
            let found = tables(config).zip(file::identity_of(number));
            (number, found.is_some_and(|(tables, (device, inode))| tables.have(device, inode)))
        }
        Inherited::RequestQueue(number) | Inherited::Mirror(number) => (number, is_queue(number)),
    };
    if is_there {
        own_descriptors::keep(number);
    }
    is_there
}

fn is_queue(number: i32) -> bool {
    // SAFETY: the descriptor is borrowed for this call only, which rejects a wrong number.
    let fd = unsafe { BorrowedFd::borrow_raw(number) };
    shared::is_shared(fd, SHAPE.words())
}
