//! Test doubles for tests and benchmarks. Of the programs for users, only `softswap-bench` depends
//! on this crate.
#![cfg(not(feature = "loom"))]
#![warn(missing_docs)]

pub mod sim_device;
pub mod simulator;
pub mod inline;
pub mod kernel_swap;
pub mod mounts;
pub mod random;
pub mod waiting;
pub mod documents;

#[cfg(test)]
mod sim_device_tests;

pub use inline::Memory;
pub use sim_device::SimDevice;
