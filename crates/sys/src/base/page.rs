//! A page of memory, 4 KiB: the only page size that the engine handles.

pub const PAGE_SIZE: usize = 4096;

/// One page of engine memory, aligned for O_DIRECT.
#[repr(C, align(4096))]
pub struct Page(pub [u8; PAGE_SIZE]);
