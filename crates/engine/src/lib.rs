//! The swap engine.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod config;
pub mod stats;
