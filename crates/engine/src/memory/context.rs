//! What one thread needs to move pages: claimed for the length of a walk.
//!
//! All of it is made at start, because a walk may run inside a signal handler
//! that interrupted the program anywhere. Contexts are found by CPU rather
//! than kept in thread-local storage; holding one is also what fork waits for.

use crate::codec::{self, Workspaces};
use crate::store::swap::{AreaFull, Lanes};
use softswap_sys::memory::{Page, reserve_pages};
use std::io;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Pages that leave together: one bounce buffer's worth.
pub const BATCH_PAGES: usize = 32;
/// Pages that one write-back moves from the pool to the swap area at most.
pub const WRITE_BACK_PAGES: usize = 4 * BATCH_PAGES;
/// Neighbours that are written back together: most were evicted together, and one read brings
/// several from shared slots.
pub const GROUP_PAGES: usize = 16;

/// The resources of one walk.
pub(crate) struct Context {
    /// I/O channels, one for each swap area.
    pub(crate) lanes: Lanes,
    /// Scratch of the codec.
    pub(crate) scratch: codec::Scratch,
    /// A page put together before it is installed.
    pub(crate) page: &'static mut Page,
    /// A page packed before it is stored.
    pub(crate) packed: &'static mut Page,
    /// The first of this context's [`BATCH_PAGES`] staging frames.
    pub(crate) first_frame: usize,
    /// Whether it may take pages out to make room: not while it forks, when
    /// the address space must stay as it is. The few pages are the reserve's.
    pub(crate) may_reclaim: bool,
    /// What the last write came to where an area took nothing: whoever has the context asks only
    /// others, until it has waited. A device may take long to refuse.
    pub(crate) refusal: Option<AreaFull>,
}

/// All contexts of an engine: those shared by faults, then some with one user
/// each: background reclaim, the threads that bring pages in ahead of touches, and
/// the thread that forks.
pub(crate) struct Contexts {
    slots: Box<[Mutex<Context>]>,
    /// The thread that has claimed all others to fork; 0 when there is none.
    forker: AtomicI32,
    workspaces: Arc<Workspaces>,
}

/// Threads that bring pages in ahead of touches, each with one read under way.
pub const PREFETCH_THREADS: usize = 3;
/// Contexts that faults do not share.
pub(crate) const OWN_CONTEXTS: usize = 2 + PREFETCH_THREADS;

/// DRAM of one context beside its I/O ring, in bytes.
pub(crate) const CONTEXT_BYTES: usize = 2 * softswap_sys::PAGE_SIZE + size_of::<codec::Scratch>();

impl Contexts {
    /// Makes `count` contexts, the last [`OWN_CONTEXTS`] of which are not shared.
    pub(crate) fn new(count: usize, mut open_lanes: impl FnMut() -> Lanes) -> io::Result<Contexts> {
        let mut pages = reserve_pages(2 * count)?.iter_mut();
        let mut slots = Vec::with_capacity(count);
        let workspaces = Arc::<Workspaces>::default();
        for index in 0..count {
            let (Some(page), Some(packed)) = (pages.next(), pages.next()) else { break };
            slots.push(Mutex::new(Context {
                lanes: open_lanes(),
                scratch: codec::Scratch::new(Arc::clone(&workspaces))?,
                page,
                packed,
                first_frame: index * BATCH_PAGES,
                may_reclaim: index + 1 < count,
                refusal: None,
            }));
        }
        Ok(Contexts { slots: slots.into_boxed_slice(), forker: AtomicI32::new(0), workspaces })
    }

    /// Claims a context, preferably this CPU's; waits when all are in use.
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

    /// How many there are.
    #[must_use]
    pub(crate) fn count(&self) -> usize {
        self.slots.len()
    }

    /// What the codecs have taken in all contexts beside [`CONTEXT_BYTES`]:
    /// it grows as they are used.
    #[must_use]
    pub(crate) fn workspaces(&self) -> Arc<Workspaces> {
        Arc::clone(&self.workspaces)
    }

    /// Claims background reclaim's context.
    pub(crate) fn claim_background(&self) -> MutexGuard<'_, Context> {
        lock(&self.slots[self.slots.len() - OWN_CONTEXTS])
    }

    /// Claims the context of one of the [`PREFETCH_THREADS`].
    pub(crate) fn claim_prefetch(&self, thread: usize) -> MutexGuard<'_, Context> {
        lock(&self.slots[self.slots.len() - OWN_CONTEXTS + 1 + thread % PREFETCH_THREADS])
    }

    /// Whether the calling thread is the one that forks. Without a fork under
    /// way this is one load.
    fn is_forker(&self) -> bool {
        match self.forker.load(Ordering::Relaxed) {
            0 => false,
            forker => forker == current_thread(),
        }
    }

    /// Claims every context but the forking thread's own: when this returns,
    /// no other thread's walk is under way, while the caller can still fault.
    #[must_use]
    pub(crate) fn claim_for_fork(&self) -> Vec<MutexGuard<'_, Context>> {
        let claimed = self.slots[..self.slots.len() - 1].iter().map(lock).collect();
        self.forker.store(current_thread(), Ordering::Relaxed);
        claimed
    }

    /// Ends what [`Contexts::claim_for_fork`] began, in parent and child.
    pub(crate) fn end_fork(&self) {
        self.forker.store(0, Ordering::Relaxed);
    }

    /// In a forked child: no lane may use a ring that the parent uses too.
    pub(crate) fn give_up_rings(&self, claimed: &mut [MutexGuard<'_, Context>]) {
        let mut own = lock(&self.slots[self.slots.len() - 1]);
        for context in claimed.iter_mut().map(|guard| &mut **guard).chain([&mut *own]) {
            context.lanes.give_up_rings();
        }
    }
}

fn current_thread() -> i32 {
    softswap_sys::raw::current_thread()
}

fn lock(slot: &Mutex<Context>) -> MutexGuard<'_, Context> {
    let mut context = slot.lock().unwrap_or_else(PoisonError::into_inner);
    context.refusal = None;
    context
}
