//! The kernel's interfaces, made safe for the engine.
#![warn(missing_docs)]

pub mod memory;

pub use memory::{PAGE_SIZE, Page};
