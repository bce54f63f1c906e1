//! Types that every module uses: page entries and their table, counters, averages.

pub mod page;
#[cfg(not(feature = "loom"))]
pub(crate) mod average;
#[cfg(not(feature = "loom"))]
pub(crate) mod likelihood;
#[cfg(not(feature = "loom"))]
pub mod transfer_size;
#[cfg(not(feature = "loom"))]
pub mod access;
#[cfg(not(feature = "loom"))]
pub mod stats;
