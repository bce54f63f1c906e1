//! Pages of real memory: where they come from, how they are told to be
//! same-filled, how they pack.

pub(crate) mod source;
pub(crate) mod file;
pub(crate) mod process;
pub(crate) mod open;
pub(crate) mod checks;
pub(crate) mod packing;

use softswap_sys::PAGE_SIZE;

/// A page as programs have it: aligned, so that no check reads across lines
/// that it would not meet in the engine.
#[derive(Debug, Clone)]
#[repr(C, align(4096))]
pub(crate) struct Page(pub(crate) [u8; PAGE_SIZE]);

impl Page {
    pub(crate) const ZERO: Page = Page([0; PAGE_SIZE]);
}
