//! Resources that a thread claims to move pages.
//!
//! Contexts are found by CPU and not stored in thread-local storage. Fork waits until all are free.

use crate::codec::{self, Workspaces};
use crate::store::swap::{AreaFull, Lanes};
use softswap_sys::memory::{Page, reserve_pages};
use softswap_sys::raw::current_thread;
use std::io;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Pages evicted together: the size of one bounce buffer.
pub const BATCH_PAGES: usize = 32;
/// Maximum number of pages that one write-back moves from the pool to the swap area.
pub const WRITE_BACK_PAGES: usize = 4 * BATCH_PAGES;
/// Maximum number of adjacent pages written back together. Most were evicted together, and one read
/// of a shared slot returns several of them.
pub const GROUP_PAGES: usize = 16;

pub(crate) struct Context {
    /// I/O channels, one for each swap area.
    pub(crate) lanes: Lanes,
    pub(crate) scratch: codec::Scratch,
    pub(crate) page: &'static mut Page,
    pub(crate) compressed: &'static mut Page,
    /// The first of this context's [`BATCH_PAGES`] staging frames.
    pub(crate) first_frame: usize,
    /// False during fork: the address space must not change. The reserve has the few pages needed.
    pub(crate) may_reclaim: bool,
    /// Result of the last write if an area refused it. Until the context's owner has waited, it
    /// tries only other areas, because a device may take long to refuse.
    pub(crate) refusal: Option<AreaFull>,
}

/// All contexts of an engine. Faults share the first ones. The others have one user each:
/// background reclaim, the prefetch threads, and the forking thread.
pub(crate) struct Contexts {
    slots: Box<[Mutex<Context>]>,
    /// The thread that forks; 0 if none. It claims all other contexts.
    forker: AtomicI32,
    workspaces: Arc<Workspaces>,
}

pub const PREFETCH_THREADS: usize = 3;
/// Contexts not shared by faults.
pub(crate) const OWN_CONTEXTS: usize = 2 + PREFETCH_THREADS;

/// DRAM of one context without its I/O ring, in bytes.
pub(crate) const CONTEXT_BYTES: usize = 2 * softswap_sys::PAGE_SIZE + size_of::<codec::Scratch>();

impl Contexts {
    pub(crate) fn new(count: usize, mut open_lanes: impl FnMut() -> Lanes) -> io::Result<Contexts> {
        let mut pages = reserve_pages(2 * count)?.iter_mut();
        let mut slots = Vec::with_capacity(count);
        let workspaces = Arc::<Workspaces>::default();
        for index in 0..count {
            let (Some(page), Some(compressed)) = (pages.next(), pages.next()) else { break };
            slots.push(Mutex::new(Context {
                lanes: open_lanes(),
                scratch: codec::Scratch::new(Arc::clone(&workspaces))?,
                page,
                compressed,
                first_frame: index * BATCH_PAGES,
                may_reclaim: index + 1 < count,
                refusal: None,
            }));
        }
        Ok(Contexts { slots: slots.into_boxed_slice(), forker: AtomicI32::new(0), workspaces })
    }

    /// Claims a context, preferably this CPU's. Waits if all are in use.
    pub(crate) fn claim(&self, cpu: usize) -> MutexGuard<'_, Context> {
        let shared = self.slots.len() - OWN_CONTEXTS;
        if self.is_forker() {
            return lock(&self.slots[self.slots.len() - 1]);
        }
        for step in 0..shared {
            if let Ok(mut context) = self.slots[(cpu + step) % shared].try_lock() {
                context.refusal = None;
                return context;
            }
        }
        lock(&self.slots[cpu % shared])
    }

    pub(crate) fn is_any_in_use(&self) -> bool {
        let shared = &self.slots[..self.slots.len() - OWN_CONTEXTS];
        shared.iter().any(|slot| slot.try_lock().is_err())
    }

    pub(crate) fn count(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn workspaces(&self) -> Arc<Workspaces> {
        Arc::clone(&self.workspaces)
    }

    pub(crate) fn claim_background(&self) -> MutexGuard<'_, Context> {
        lock(&self.slots[self.slots.len() - OWN_CONTEXTS])
    }

    pub(crate) fn claim_prefetch(&self, thread: usize) -> MutexGuard<'_, Context> {
        lock(&self.slots[self.slots.len() - OWN_CONTEXTS + 1 + thread % PREFETCH_THREADS])
    }

    /// Returns true in the forking thread. Without a fork in progress this is one load.
    pub(crate) fn is_forker(&self) -> bool {
        match self.forker.load(Ordering::Relaxed) {
            0 => false,
            forker => forker == current_thread(),
        }
    }

    /// Called before the thread takes a lock that it must not take again in a fault.
    pub(crate) fn begin_fork(&self) {
        self.forker.store(current_thread(), Ordering::Relaxed);
    }

    /// Afterwards no other thread moves pages, and the caller can still fault.
    #[must_use]
    pub(crate) fn claim_for_fork(&self) -> Vec<MutexGuard<'_, Context>> {
        self.slots[..self.slots.len() - 1].iter().map(lock).collect()
    }

    /// Called before another thread can begin a fork.
    pub(crate) fn end_fork(&self) {
        self.forker.store(0, Ordering::Relaxed);
    }

    /// Detaches all lanes from their rings in a forked child, because the parent uses the rings.
    pub(crate) fn abandon_rings(&self, claimed: &mut [MutexGuard<'_, Context>]) {
        let mut own = lock(&self.slots[self.slots.len() - 1]);
        for context in claimed.iter_mut().map(|guard| &mut **guard).chain([&mut *own]) {
            context.lanes.abandon_rings();
        }
    }
}

fn lock(slot: &Mutex<Context>) -> MutexGuard<'_, Context> {
    let mut context = slot.lock().unwrap_or_else(PoisonError::into_inner);
    context.refusal = None;
    context
}
