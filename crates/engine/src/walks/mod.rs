//! The engine's work, from one end to the other.

pub mod page_out;
pub mod upkeep;
pub mod pool_upkeep;
pub mod reclaim;
pub mod page_in;
pub mod prefetch;
pub mod mapping;
