//! The program's memory: the managed window, the entry of each of its pages, which pages
//! are mapped, and how many may be resident.

use crate::base::page::PageTable;
use crate::memory::address_space::AddressSpace;
use crate::memory::budget::Budget;
use crate::memory::pinners::Pinners;
use softswap_sys::memory::reserve_u64;
use softswap_sys::window::Window;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;

/// The program's memory.
pub(crate) struct Memory {
    /// The managed window and the staging frames.
    pub(crate) window: Window,
    /// One entry per page of the window.
    pub(crate) pages: PageTable<'static>,
    /// Which pages belong to the program.
    pub(crate) space: AddressSpace,
    /// The DRAM budget.
    pub(crate) budget: Budget,
    /// The size of the budget that all else goes by, in bytes.
    pub(crate) sized_for: Mutex<usize>,
    /// What may be taken of it in a moment, in bytes: by stores into the pool, each of
    /// which may open a slab, and for transient buffers.
    pub(crate) claimed_bytes: AtomicUsize,
    /// Whether pages may be unmapped together that lie apart.
    pub(crate) pinners: Pinners,
}

impl Memory {
    /// All pages of `window` vacant.
    ///
    /// # Errors
    /// When there is no address space for the tables.
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
