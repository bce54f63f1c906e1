//! Shared memory between the processes of a tree.
//!
//! Any process of the tree may write anything to these words, or be killed at any moment. So each
//! change of an owner is one compare-and-swap, and every value that is read is checked.
//!
//! There are two rules of liveness. Entries of one process are reaped once that process is dead
//! ([`softswap_sys::process_identity`]). Pages that a forked child still reads are reaped once the
//! last process has closed the open file that marks them ([`softswap_sys::open_mark`]).
#![forbid(unsafe_code)]
#![warn(missing_docs)]
#![cfg_attr(feature = "loom", allow(dead_code, unused_imports))]

#[cfg(all(test, feature = "loom"))]
mod common_model;
pub(crate) mod segment;
pub(crate) mod membership;
pub(crate) mod claims;
pub mod turns;
pub mod ledger;
pub mod request_queue;
pub mod cluster_table;
