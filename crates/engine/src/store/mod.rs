//! The places where a page can be stored, and the I/O that moves it there.

pub mod bounce;
#[cfg(not(feature = "loom"))]
pub mod io;
#[cfg(not(feature = "loom"))]
pub mod pool;
#[cfg(not(feature = "loom"))]
pub mod standby;
#[cfg(not(feature = "loom"))]
pub(crate) mod read_ahead_pages;
#[cfg(not(feature = "loom"))]
pub mod swap;
#[cfg(feature = "loom")]
pub(crate) mod swap {
    //! The modules of the swap area that have lock-free state.
    pub(crate) mod cluster;
    pub(crate) mod extent_map;
    pub(crate) mod slot_allocator;
}
