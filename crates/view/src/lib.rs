//! What programs under softswap do, for people and for what watches them. It is told what there
//! is (`tree`), and asks nobody: the command does.
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
pub mod advice;
pub mod summary;
mod plots;
pub mod page;
pub mod flame_graph;
pub mod compared;
