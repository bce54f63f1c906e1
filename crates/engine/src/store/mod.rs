//! Where a page can be, and what carries it there.

pub mod bounce;
#[cfg(not(loom))]
pub mod io;
#[cfg(not(loom))]
pub mod pool;
#[cfg(not(loom))]
pub mod standby;
#[cfg(not(loom))]
pub mod read_ahead_pages;
#[cfg(not(loom))]
pub mod swap;
#[cfg(loom)]
pub mod swap {
    //! The modules of the swap area that have lock-free state.
    pub mod cluster;
    pub mod extent;
    pub mod slot;
}
