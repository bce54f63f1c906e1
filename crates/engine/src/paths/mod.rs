//! Complete operations: page-out, page-in, reclaim, upkeep, mappings.

pub(crate) mod page_out;
pub(crate) mod upkeep;
pub(crate) mod pool_upkeep;
pub(crate) mod reclaim;
pub(crate) mod page_in;
pub(crate) mod prefetch;
pub(crate) mod mapping;
pub(crate) mod adopt;
