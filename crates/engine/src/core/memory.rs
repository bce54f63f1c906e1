//! The program's memory: the managed window, page entries, mappings, and the budget.

use crate::base::page::PageTable;
use crate::memory::address_space::AddressSpace;
use crate::memory::budget::Budget;
use crate::memory::pinners::Pinners;
use softswap_sys::memory::reserve_u64;
use softswap_sys::window::Window;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;

pub(crate) struct Memory {
    /// The managed window and the staging frames.
    pub(crate) window: Window,
    pub(crate) pages: PageTable<'static>,
    pub(crate) space: AddressSpace,
    pub(crate) budget: Budget,
    /// The budget for which tables and policies are sized, in bytes.
    pub(crate) sized_for: Mutex<usize>,
    /// Bytes reserved temporarily: for stores into the pool, each of which may add a slab, and for
    /// transient buffers.
    pub(crate) claimed_bytes: AtomicUsize,
    pub(crate) pinners: Pinners,
}

impl Memory {
    pub(crate) fn new(window: Window, budget: Budget) -> io::Result<Memory> {
        Ok(Memory {
            pages: PageTable::new(reserve_u64(window.pages())?),
            space: AddressSpace::scattered(window.pages() as u64)?,
            sized_for: Mutex::new(budget.limit_bytes()),
            budget,
            claimed_bytes: AtomicUsize::new(0),
            pinners: Pinners::start(window.uses_move()),
            window,
        })
    }
}
