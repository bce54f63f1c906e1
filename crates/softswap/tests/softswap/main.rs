//! What the crate offers, in one executable.

mod common;

mod api;
mod calls;
mod examples;
mod pool;
mod process;
