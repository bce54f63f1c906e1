//! The swap engine: takes pages out of a program's memory and brings them back.
//!
//! The rooms, in the order in which they depend on each other: each uses those before
//! it and none after it, and so does each file of a room.
//!
//! | room       | what is in it                                                              |
//! |------------|----------------------------------------------------------------------------|
//! | [`base`]   | the entry of a page and the table of them, counters, averages              |
//! | [`codec`]  | same-filled pages, compression, packed slots, seals                        |
//! | [`store`]  | where a page can be: pool, swap areas; bounce buffers and I/O              |
//! | [`memory`] | the program's address space, the DRAM budget, what one walk owns           |
//! | [`policy`] | eviction, admission to the pool, how large the pool is, readahead           |
//! | [`core`]   | the engine's state                                                         |
//! | [`steps`]  | one act each: compress, install, read slots, write out, reclaim clean pages |
//! | [`walks`]  | a page out, a page in, reclaim, upkeep, mappings                            |
//! | [`door`]   | how an engine is built, asked and set                                      |
//!
//! [`door::engine::Engine`] is the way in. It takes addresses; everything below knows
//! pages by number.
//!
//! Where a page is, and who may change that, is one 64-bit word: see [`base::page`].
//! A walk may run in a signal handler that interrupted the program anywhere,
//! so all it needs is made at the start and claimed as a [`memory::context::Context`];
//! nothing is allocated on the way.
#![forbid(unsafe_code)]
#![warn(missing_docs)]
// Under loom only the lock-free state is built, so much of it has no user there.
#![cfg_attr(feature = "loom", allow(dead_code, unreachable_pub, unused_imports))]

// For the file of the testkit that unit tests include.
#[cfg(all(test, not(feature = "loom")))]
extern crate self as softswap_engine;

pub mod base;
#[cfg(not(feature = "loom"))]
pub mod codec;
pub mod store;
#[cfg(not(feature = "loom"))]
pub mod memory;
#[cfg(not(feature = "loom"))]
pub mod policy;
#[cfg(not(feature = "loom"))]
pub mod core;
#[cfg(not(feature = "loom"))]
mod steps;
#[cfg(not(feature = "loom"))]
mod walks;
#[cfg(not(feature = "loom"))]
pub mod door;
