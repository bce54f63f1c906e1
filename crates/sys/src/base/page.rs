//! A page of memory, 4 KiB: the engine handles no others.

/// Bytes in a page.
pub const PAGE_SIZE: usize = 4096;

/// One page of engine memory, aligned so that it can be given to O_DIRECT.
///
/// ```
/// use softswap_sys::{PAGE_SIZE, Page};
///
/// let page = Page([0; PAGE_SIZE]);
/// assert!((&raw const page).addr().is_multiple_of(PAGE_SIZE));
/// ```
#[repr(C, align(4096))]
pub struct Page(pub [u8; PAGE_SIZE]);
