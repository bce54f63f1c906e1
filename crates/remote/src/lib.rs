//! A swap area in the memory of other machines.
//!
//! [`store::PageStore`] is what keeps pages elsewhere: written under a number and a generation,
//! read back whole or not at all. [`cluster::Cluster`] does it on a Redis or Valkey cluster, as a
//! [`url::Url`] names one. [`serve`] does there what the processes of a run ask.
#![forbid(unsafe_code)]

mod size;
pub mod refusal;
pub mod secret;
pub mod url;
pub mod store;
mod seal;
mod trouble;
mod topology;
mod placement;
mod link;
mod node;
mod router;
mod shared;
mod copies;
mod removal;
mod scan;
mod upkeep;
mod watch;
pub mod cluster;
pub mod runs;
pub mod check;
pub mod simulation;
pub mod control;
pub mod serve;
mod helper;
mod program;

pub use program::{WORKERS, command, main};

/// What the program is called that does this; it lies beside `softswap`.
pub const PROGRAM: &str = "softswap-remote";
