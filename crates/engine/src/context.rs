//! What one thread needs to move pages: claimed for the length of a walk.
//!
//! All of it is made at start, because a walk may run inside a signal handler
//! that interrupted the program anywhere. Contexts are found by CPU rather
//! than kept in thread-local storage; holding one is also what fork waits for.

use crate::codec;
use crate::io::Lane;
use softswap_sys::memory::{Page, reserve_pages};
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Pages that leave together: one cluster buffer's worth.
pub const BATCH_PAGES: usize = 32;

/// The resources of one walk.
pub struct Context {
    /// I/O channel.
    pub lane: Lane,
    /// Scratch of the codec.
    pub scratch: codec::Scratch,
    /// A page put together before it is installed.
    pub page: &'static mut Page,
    /// A page packed before it is stored.
    pub packed: &'static mut Page,
    /// The first of this context's [`BATCH_PAGES`] staging frames.
    pub first_frame: usize,
}

/// All contexts of an engine.
pub struct Contexts {
    slots: Box<[Mutex<Context>]>,
}

/// DRAM of one context beside its I/O ring, in bytes.
pub const CONTEXT_BYTES: usize = 2 * softswap_sys::PAGE_SIZE + size_of::<codec::Scratch>();

impl Contexts {
    /// Makes `count` contexts; the last is background reclaim's own.
    pub fn new(count: usize, mut open_lane: impl FnMut() -> Lane) -> io::Result<Contexts> {
        let mut pages = reserve_pages(2 * count)?.iter_mut();
        let mut slots = Vec::with_capacity(count);
        for index in 0..count {
            let (Some(page), Some(packed)) = (pages.next(), pages.next()) else { break };
            slots.push(Mutex::new(Context {
                lane: open_lane(),
                scratch: codec::Scratch::new(),
                page,
                packed,
                first_frame: index * BATCH_PAGES,
            }));
        }
        Ok(Contexts { slots: slots.into_boxed_slice() })
    }

    /// Claims a context, preferably this CPU's; waits when all are in use.
    pub fn claim(&self, cpu: usize) -> MutexGuard<'_, Context> {
        let shared = self.slots.len() - 1;
        for step in 0..shared {
            if let Ok(context) = self.slots[(cpu + step) % shared].try_lock() {
                return context;
            }
        }
        lock(&self.slots[cpu % shared])
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.slots.len()
    }

    /// Claims background reclaim's context.
    pub fn claim_background(&self) -> MutexGuard<'_, Context> {
        lock(&self.slots[self.slots.len() - 1])
    }

    /// Claims every context: when this returns, no walk is under way.
    #[must_use]
    pub fn claim_all(&self) -> Vec<MutexGuard<'_, Context>> {
        self.slots.iter().map(lock).collect()
    }
}

fn lock(slot: &Mutex<Context>) -> MutexGuard<'_, Context> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}
