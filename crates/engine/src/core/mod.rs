//! The engine's state.

pub mod errors;
pub mod parts;
