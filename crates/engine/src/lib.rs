//! The swap engine.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod bounce;
pub mod budget;
pub mod codec;
pub mod config;
pub mod context;
pub mod engine;
pub mod fill;
pub mod io;
pub mod mapping;
pub mod page;
pub mod page_in;
pub mod page_out;
pub mod parts;
pub mod policy;
pub mod pool;
mod primitive;
pub mod reclaim;
pub mod seal;
pub mod space;
pub mod stats;
pub mod swap;
