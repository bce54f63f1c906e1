//! Tests of the store with a real cluster and its failures.

mod bed;
mod job;
mod lies;
mod liar;
mod failures;
mod commands;
