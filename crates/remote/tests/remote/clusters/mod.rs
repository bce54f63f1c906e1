//! Tests of the store with a real cluster and its failures.

mod test_cluster;
mod job;
#[allow(dead_code, reason = "the tests of whole programs use the rest")]
mod proxies;
mod failures;
mod commands;
