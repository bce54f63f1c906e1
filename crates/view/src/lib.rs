//! Presentation of programs under softswap. The command passes the data in (`tree`).
#![forbid(unsafe_code)]

pub mod units;
pub mod stall;
pub mod reading;
pub mod tree;
pub mod rates;
pub mod metrics;
pub mod top;
pub mod sections;
pub mod report;
pub mod curve;
pub mod estimate;
pub mod advice;
mod heap_limits;
pub mod summary;
mod plots;
pub mod page;
pub mod flame_graph;
pub mod compared;
