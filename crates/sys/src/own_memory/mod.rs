//! Memory of the engine's own, which never swaps.

pub mod alloc;
pub mod segment;
pub mod secret;
pub mod shared;
