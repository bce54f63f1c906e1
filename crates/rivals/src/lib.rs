//! What softswap's parts are measured against: other ways to do the same.
//!
//! Here so that the engine does not depend on them, and in a crate of their
//! own because the macro that makes nodes of a red-black tree expands to
//! unsafe code, which the command forbids.
#![deny(unsafe_code)]
#![warn(missing_docs)]

pub mod list;
pub mod samefill;
pub mod tree;

/// A run of pages that lies in one piece on the device. All in pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Where it begins in the area.
    pub start_page: u64,
    /// How long it is.
    pub nr_pages: u64,
    /// Where it begins on the device.
    pub start_block: u64,
}
