//! The engine's state.

pub mod parts;
