//! The engine's state: what each room below has of a running engine, and how the
//! budget and the policies see all of it.
//!
//! A step that needs one of these is given that one; who needs most of them is given
//! [`Core`], which holds them side by side and knows no walk.

pub mod errors;
pub mod recorder;
pub(crate) mod memory;
pub(crate) mod stores;
pub mod policies;
pub(crate) mod background;
mod state;
mod dram;
pub(crate) mod resize;
mod refault;
mod report;

pub(crate) use background::Background;
pub(crate) use memory::Memory;
pub(crate) use policies::Policies;
pub(crate) use state::Core;
pub(crate) use stores::Stores;
