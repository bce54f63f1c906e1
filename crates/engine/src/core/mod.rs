//! The engine's state: what each room below has of a running engine, and how the
//! budget and the policies see all of it.
//!
//! A step that needs one of these is given that one; who needs most of them is given
//! [`Core`], which holds them side by side and knows no walk.

pub mod errors;
pub mod memory;
pub mod stores;
pub mod policies;
pub mod background;
pub mod steering;
mod state;
mod dram;
mod refault;
mod report;

pub use background::Background;
pub use dram::Room;
pub use memory::Memory;
pub use policies::Policies;
pub use state::Core;
pub use steering::Steering;
pub use stores::Stores;
