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
//! | entry | [`engine`]                                                               |
//! | walks | [`mapping`], [`page_in`], then [`reclaim`], then [`page_out`]            |
//! | root  | [`parts`]: what both walks use, side by side; [`context`]: one walk's own |
//! | parts | [`policy`] over [`space`] over [`page`]; [`swap`] over [`io`]            |
//! | leaves| [`fill`], [`codec`], [`pool`], [`bounce`], [`seal`], [`budget`], [`stats`], [`config`] |
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

pub mod bounce;
pub mod budget;
pub mod codec;
pub mod config;
pub mod context;
pub mod engine;
pub mod fill;
pub mod io;
pub mod mapping;
pub mod page;
pub mod page_in;
pub mod page_out;
pub mod parts;
pub mod policy;
pub mod pool;
mod primitive;
pub mod readahead;
pub mod reclaim;
pub mod seal;
pub mod space;
pub mod stats;
pub mod swap;
