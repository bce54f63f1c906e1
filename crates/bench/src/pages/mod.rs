//! Pages of real memory: their sources, same-filled checks, and compression.

pub(crate) mod source;
pub(crate) mod file;
pub(crate) mod process;
pub(crate) mod open;
pub(crate) mod checks;
pub(crate) mod packing;

use softswap_sys::PAGE_SIZE;

/// A page, aligned as in the engine, so that checks read the same cache lines.
#[derive(Debug, Clone)]
#[repr(C, align(4096))]
pub(crate) struct Page(pub(crate) [u8; PAGE_SIZE]);

impl Page {
    pub(crate) const ZERO: Page = Page([0; PAGE_SIZE]);
}
