//! What reclaim does inside the pool: the oldest pages are written back to the swap area,
//! and what is left in sparse slabs moves together.

mod objects;
mod write_back;
mod compact;

pub(crate) use compact::compact;
pub(crate) use write_back::write_back;
