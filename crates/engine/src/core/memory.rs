//! The program's memory: the managed window, the entry of each of its pages, which pages
//! are mapped, and how many may be resident.

use crate::base::page::PageTable;
use crate::memory::address_space::AddressSpace;
use crate::memory::budget::Budget;
use crate::memory::pinners::Pinners;
use softswap_sys::window::Window;
use std::sync::atomic::AtomicUsize;

/// The program's memory.
pub struct Memory {
    /// The managed window and the staging frames.
    pub window: Window,
    /// One entry per page of the window.
    pub pages: PageTable<'static>,
    /// Which pages belong to the program.
    pub space: AddressSpace,
    /// The DRAM budget.
    pub budget: Budget,
    /// What may be taken of it in a moment, in bytes: by stores into the pool, each of
    /// which may open a slab, and for transient buffers.
    pub claimed_bytes: AtomicUsize,
    /// Whether pages may be unmapped together that lie apart.
    pub pinners: Pinners,
}
