//! What reclaim does inside the pool: the oldest pages go on to the swap area,
//! and what is left in sparse slabs moves together.

mod objects;
mod write_back;
mod compact;
mod recompress;
mod condense;
mod shrinker;

pub use compact::compact;
pub use condense::condense;
pub use recompress::Recompressor;
pub use shrinker::Shrinker;
pub use write_back::write_back;
