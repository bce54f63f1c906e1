//! The engine's state, and how the budget and the policies use it. Operations that need most of its
//! parts get [`Core`], which holds them and calls no operation.

pub mod errors;
pub mod recorder;
pub(crate) mod memory;
pub(crate) mod stores;
pub mod policies;
pub(crate) mod background;
mod state;
mod dram;
pub(crate) mod resize;

pub(crate) use background::Background;
pub(crate) use memory::Memory;
pub(crate) use policies::Policies;
pub(crate) use state::Core;
pub(crate) use stores::Stores;
