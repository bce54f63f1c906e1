//! Decisions: eviction (clock, refault distances), admission to the pool, pool size, codec,
//! readahead. These modules store no pages.

pub mod mechanism;
pub mod refault;
pub mod clock;
pub(crate) mod write_back_rate;
pub mod pool_limit;
pub mod partition;
pub mod compression_tier;
pub(crate) mod admission;
pub mod stored_copies;
pub(crate) mod write_load;
pub mod prefetch;
