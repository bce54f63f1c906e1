//! Tests of the command and of programs under softswap, in one executable: each links all of it.

mod common;
mod support;

#[path = "../../../remote/tests/remote/clusters/test_cluster.rs"]
#[allow(dead_code, reason = "the store's own tests use the rest")]
mod test_cluster;
#[path = "../../../remote/tests/remote/clusters/proxies.rs"]
mod proxies;

mod abi;
mod areas;
mod unmanaged;
mod budget;
mod doctor;
mod faults;
mod jupyter;
mod loading;
mod metrics;
mod parking;
mod pools;
mod program;
mod programs;
mod python_module;
mod raw_area;
mod recipes;
mod record;
mod remote;
mod remote_turns;
mod reports;
mod run;
mod secrets;
mod shared_area;
mod sleeping;
mod socket_directory;
mod started;
mod stat_and_ctl;
mod swap_device;
mod swap_header;
mod tell;
mod thrashing;
mod top;
mod transfers;
mod tree;
mod tree_turns;
mod turns;
mod usage;
