//! Shared memory between the processes of a tree.
//!
//! | module         | content                                                            |
//! |----------------|--------------------------------------------------------------------|
//! | `segment`      | words with a magic number                                          |
//! | `membership`   | table entries that processes own, by compare-and-swap; reaping     |
//! | `claims`       | words that members own, by one compare-and-swap; reaping           |
//! | [`turns`]      | turns of the processes of a tree that thrashes                     |
//! | [`ledger`]     | memory budget of the tree                                          |
//! | [`request_queue`] | requests to `softswap-remote`                                   |
//! | [`cluster_table`] | owners of the clusters of named areas                           |
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
