//! A swap area in the memory of other machines.
//!
//! [`store::PageStore`] stores pages under a number and a generation, and reads them back whole or
//! not at all. [`cluster::Cluster`] implements it for a Redis or Valkey cluster, which a
//! [`url::Url`] names. [`serve`] executes the requests of a run's processes.
#![forbid(unsafe_code)]

mod size;
pub mod refusal;
pub mod secret;
pub mod url;
pub mod store;
mod seal;
mod request_error;
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

/// Name of the program; it is installed in the directory of `softswap`.
pub const PROGRAM: &str = "softswap-remote";
