//! The benchmarks as commands, in one executable.

#[path = "../../../cli/tests/cli/common/mod.rs"]
mod common;

mod command;
mod extents;
mod pages;
mod shape;
