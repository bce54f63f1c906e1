//! Guard of a swap file whose blocks are written through the device: before a write, the file's
//! block map must be the verified one.
//!
//! From 0.5 s after the last reading one writer reads the map again, and from 1 s on all writers
//! wait for that. After a change nothing more is written: the blocks may belong to another file.
//! Reads continue, because a wrong page does not match its seal.

use softswap_shared::cluster_table::ClusterTable;
use softswap_sys::block_map::Fingerprint;
use softswap_sys::fiemap::Reader;
use softswap_sys::file::SwapFile;
use softswap_sys::raw::now_ns;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

const REFRESH_NS: u64 = 500_000_000;
const MAX_NS: u64 = 1_000_000_000;

const _: () = assert!(REFRESH_NS < MAX_NS);

#[derive(Debug)]
pub struct MapGuard {
    file: Arc<SwapFile>,
    pages: u64,
    verified: Fingerprint,
    /// Table in which a change is published to the other processes of the tree.
    table: Option<ClusterTable>,
    reader: Mutex<Reader>,
    /// Start of the last reading that found the map unchanged, in ns.
    unchanged_ns: AtomicU64,
    has_changed: AtomicBool,
}

impl MapGuard {
    pub fn new(
        file: Arc<SwapFile>,
        pages: u64,
        verified: Fingerprint,
        table: Option<ClusterTable>,
    ) -> MapGuard {
        MapGuard {
            file,
            pages,
            verified,
            table,
            reader: Mutex::default(),
            unchanged_ns: AtomicU64::new(0),
            has_changed: AtomicBool::new(false),
        }
    }

    pub fn file(&self) -> &SwapFile {
        &self.file
    }

    /// Returns true if the map was the verified one less than a second ago.
    #[must_use]
    pub(crate) fn allows_writes(&self) -> bool {
        if self.has_stopped() {
            return false;
        }
        if self.age_ns() < REFRESH_NS {
            return true;
        }
        match self.reader.try_lock() {
            Ok(reader) => self.read(reader),
            Err(TryLockError::Poisoned(poisoned)) => self.read(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if self.age_ns() < MAX_NS => true,
            Err(TryLockError::WouldBlock) => {
                let reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
                if self.age_ns() < REFRESH_NS { !self.has_stopped() } else { self.read(reader) }
            }
        }
    }

    #[must_use]
    pub fn check(&self) -> bool {
        let reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        !self.has_stopped() && self.read(reader)
    }

    /// Allows no more writes, in any process of the tree.
    pub fn stop(&self) {
        self.has_changed.store(true, Relaxed);
        self.table.iter().for_each(ClusterTable::stop);
    }

    /// Returns true once a process of the tree has stopped all writes.
    pub fn has_stopped(&self) -> bool {
        self.has_changed.load(Relaxed) || self.table.is_some_and(|table| table.is_stopped())
    }

    fn age_ns(&self) -> u64 {
        now_ns().saturating_sub(self.unchanged_ns.load(Acquire))
    }

    fn read(&self, mut reader: MutexGuard<'_, Reader>) -> bool {
        let start_ns = now_ns();
        match Fingerprint::read(&mut reader, self.file.as_fd(), self.pages) {
            Ok(Some(now)) if now == self.verified && !self.file.is_kernel_swap() => {
                self.unchanged_ns.store(start_ns, Release);
                true
            }
            Ok(_) => {
                self.stop();
                false
            }
            // The state is unknown: only this write fails.
            Err(_) => false,
        }
    }
}
