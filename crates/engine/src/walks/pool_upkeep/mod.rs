//! What reclaim does inside the pool: the oldest pages go on to the swap area,
//! and what is left in sparse slabs moves together.

mod objects;
mod write_back;
mod compact;
mod recompress;
mod condense;
mod shrinker;

pub(crate) use compact::compact;
pub(crate) use condense::condense;
pub(crate) use recompress::Recompressor;
pub(crate) use shrinker::Shrinker;
pub(crate) use write_back::write_back;
