//! The swap engine: takes pages out of a program's memory and brings them back.
//!
//! [`engine::Engine`] is the way in. It takes addresses; everything below
//! knows pages by number. Two walks do the work, and control flow lives only
//! in them: [`page_out`] finds cold pages a cheaper place, [`page_in`] brings
//! a touched page back. [`reclaim`] says when pages leave, [`mapping`] which
//! pages there are.
//!
//! | tier  | modules                                                                  |
//! |-------|--------------------------------------------------------------------------|
//! | door  | [`control`]: questions about a running engine, over [`settings`]         |
//! | entry | [`engine`]                                                               |
//! | walks | [`mapping`], [`page_in`], then [`reclaim`], then [`pool_upkeep`], then [`page_out`] |
//! | root  | [`parts`]: what both walks use, side by side; [`context`]: what one walk owns |
//! | parts | [`policy`] over [`space`] over [`page`]; [`readahead`] over [`page`]; [`swap`] over [`io`] |
//! | leaves| [`fill`], [`codec`], [`pool`], [`packed`], [`bounce`], [`seal`], [`budget`], [`stats`], [`config`] |
//!
//! A tier uses those below it and never those above. The leaves do not know
//! each other: the walks carry values from one to the next.
//!
//! Where a page is, and who may change that, is one 64-bit word: see [`page`].
//! A walk may run in a signal handler that interrupted the program anywhere,
//! so all it needs is made at the start and claimed as a [`context::Context`];
//! nothing is allocated on the way.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

// Under loom only the lock-free state is built: the rest is not its business.
pub mod page;
mod primitive;

#[cfg(not(loom))]
mod accuracy;
#[cfg(not(loom))]
mod assemble;
#[cfg(not(loom))]
mod average;
#[cfg(not(loom))]
pub mod balance;
pub mod bounce;
#[cfg(not(loom))]
pub mod budget;
#[cfg(not(loom))]
pub mod codec;
#[cfg(not(loom))]
pub mod companions;
#[cfg(not(loom))]
pub mod config;
#[cfg(not(loom))]
pub mod context;
#[cfg(not(loom))]
pub mod control;
#[cfg(not(loom))]
pub mod copies;
#[cfg(not(loom))]
pub mod density;
#[cfg(not(loom))]
pub mod engine;
#[cfg(not(loom))]
mod estimate;
#[cfg(not(loom))]
pub mod fill;
#[cfg(not(loom))]
mod fresh;
#[cfg(not(loom))]
mod gathered;
#[cfg(not(loom))]
pub mod io;
#[cfg(not(loom))]
pub mod leaving;
#[cfg(not(loom))]
pub mod lift;
#[cfg(not(loom))]
pub mod mapping;
#[cfg(not(loom))]
pub mod moves;
#[cfg(not(loom))]
mod pack;
#[cfg(not(loom))]
pub mod packed;
#[cfg(not(loom))]
pub mod page_in;
#[cfg(not(loom))]
pub mod page_out;
#[cfg(not(loom))]
pub mod parked;
#[cfg(not(loom))]
pub mod parts;
#[cfg(not(loom))]
mod passing;
#[cfg(not(loom))]
pub mod patience;
#[cfg(not(loom))]
pub mod pieces;
#[cfg(not(loom))]
pub mod policy;
#[cfg(not(loom))]
pub mod pool;
#[cfg(not(loom))]
pub mod pool_upkeep;
#[cfg(not(loom))]
pub mod prefetch;
#[cfg(not(loom))]
pub mod readahead;
#[cfg(not(loom))]
pub mod reclaim;
#[cfg(not(loom))]
pub mod refault;
#[cfg(not(loom))]
mod regain;
#[cfg(not(loom))]
pub mod seal;
#[cfg(not(loom))]
pub mod settings;
#[cfg(not(loom))]
pub mod space;
#[cfg(not(loom))]
pub mod standby;
#[cfg(not(loom))]
pub mod stats;
#[cfg(not(loom))]
mod strides;
#[cfg(not(loom))]
pub mod swap;
#[cfg(loom)]
pub mod swap {
    //! The modules of [`swap`](crate::swap) that have lock-free state.
    pub mod cluster;
    pub mod extent;
    pub mod slot;
}
#[cfg(not(loom))]
pub mod turnover;
#[cfg(not(loom))]
mod unchanged;
#[cfg(not(loom))]
pub mod unpack;
#[cfg(not(loom))]
pub mod upkeep;
#[cfg(not(loom))]
pub mod write_out;
