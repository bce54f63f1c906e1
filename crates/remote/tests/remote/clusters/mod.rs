//! Tests of the store with a real cluster and its failures.

mod test_cluster;
mod job;
mod corruptions;
mod corrupting_proxy;
mod failures;
mod commands;
