//! The engine's own memory, which is never swapped.

pub mod alloc;
pub mod segment;
pub mod secret;
pub mod shared;
