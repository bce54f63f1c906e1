//! A swap area in the memory of other machines.
//!
//! [`store::PageStore`] is what keeps pages elsewhere: written under a number and a generation,
//! read back whole or not at all. [`cluster::Cluster`] does it on a Redis or Valkey cluster, as a
//! [`url::Url`] names one.
#![forbid(unsafe_code)]

mod size;
pub mod refusal;
pub mod secret;
pub mod url;
pub mod store;
pub mod in_memory;
mod seal;
mod trouble;
mod topology;
mod placement;
mod link;
mod node;
mod router;
mod shared;
mod copies;
mod scan;
mod upkeep;
pub mod cluster;
pub mod runs;
pub mod check;
mod program;

pub use program::{command, main};
