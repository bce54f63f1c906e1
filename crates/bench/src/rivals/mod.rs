//! What softswap's parts are measured against: other ways to do the same.

pub(crate) mod list;
pub(crate) mod samefill;
pub(crate) mod tree;

/// A run of pages that lies in one piece on the device. All in pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Where it begins in the area.
    pub(crate) start_page: u64,
    /// How long it is.
    pub(crate) nr_pages: u64,
    /// Where it begins on the device.
    pub(crate) start_block: u64,
}
