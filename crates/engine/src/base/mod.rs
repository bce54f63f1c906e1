//! What every room uses: the entry of a page and the table of them, counters, averages.

pub(crate) mod primitive;
pub mod page;
#[cfg(not(loom))]
pub(crate) mod average;
#[cfg(not(loom))]
pub(crate) mod likelihood;
#[cfg(not(loom))]
pub mod transfer_size;
#[cfg(not(loom))]
pub mod access;
#[cfg(not(loom))]
pub mod stats;
