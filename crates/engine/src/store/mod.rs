//! Where a page can be, and what carries it there.

pub mod bounce;
#[cfg(not(loom))]
pub mod io;
#[cfg(not(loom))]
pub mod pool;
#[cfg(not(loom))]
pub mod standby;
#[cfg(not(loom))]
pub(crate) mod read_ahead_pages;
#[cfg(not(loom))]
pub mod swap;
#[cfg(loom)]
pub(crate) mod swap {
    //! The modules of the swap area that have lock-free state.
    pub(crate) mod cluster;
    pub(crate) mod cluster_table;
    pub(crate) mod extent;
    pub(crate) mod slot;
}
