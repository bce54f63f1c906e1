//! The store against a real cluster, and what happens to one.

mod bed;
mod job;
mod lies;
mod liar;
mod failures;
mod commands;
