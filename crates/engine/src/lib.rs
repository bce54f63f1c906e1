//! The swap engine: moves pages out of a program's memory and faults them back in.
//!
//! The modules, in order of dependency: each module, and each file of a module, uses only those
//! before it.
//!
//! | module     | content                                                                     |
//! |------------|-----------------------------------------------------------------------------|
//! | [`base`]   | page entries and their table, counters, averages                            |
//! | [`codec`]  | same-filled pages, compression, compressed slots, seals                     |
//! | [`store`]  | compressed pool, swap areas, bounce buffers, I/O                            |
//! | [`memory`] | the program's address space, the DRAM budget, the context of one operation  |
//! | [`policy`] | eviction, admission to the pool, pool size, readahead                       |
//! | [`core`]   | the engine's state                                                          |
//! | [`steps`]  | single operations: compress, install, read slots, write, reclaim clean pages |
//! | [`paths`]  | page-out, page-in, reclaim, upkeep, mappings                                |
//! | [`api`]   | public interface: builder, engine, settings, control protocol               |
//!
//! The entry point is [`api::engine::Engine`]. It takes addresses; the modules below it use page
//! numbers.
//!
//! An operation may run in a signal handler that interrupted the program at any instruction. So all
//! that it needs is allocated at the start and claimed as a [`memory::context::Context`].
#![forbid(unsafe_code)]
// Loom builds only the lock-free state, most of which is unused there.
#![cfg_attr(feature = "loom", allow(dead_code, unreachable_pub, unused_imports))]

// Unit tests include a file of the testkit, which uses this name.
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
mod paths;
#[cfg(not(feature = "loom"))]
pub mod api;
