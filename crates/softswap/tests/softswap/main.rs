//! Tests of the crate's API, in one executable.

mod common;

mod api;
mod calls;
mod examples;
mod pool;
mod process;
