//! Reclaim within the pool: write-back of the oldest pages, and compaction of sparse slabs.

mod objects;
mod write_back;
mod compact;

pub(crate) use compact::compact;
pub(crate) use write_back::write_back;
