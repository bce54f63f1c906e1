//! Test doubles for tests and benchmarks. Of the programs for users, only `softswap-bench` depends
//! on this crate.
//!
//! | file            | content                                                         |
//! |-----------------|-----------------------------------------------------------------|
//! | [`sim_device`]  | a device in memory that fails on request                        |
//! | [`simulator`]   | the policies without a program                                  |
//! | [`inline`]      | accesses to managed memory that survive a refused fault         |
//! | [`kernel_swap`] | `swapon` and `swapoff`                                          |
//! | [`mounts`]      | a mount namespace for a test                                    |
//! | [`random`]      | pseudo-random numbers                                           |
//! | [`waiting`]     | waits with a time-out                                           |
#![cfg(not(feature = "loom"))]
#![warn(missing_docs)]

pub mod sim_device;
pub mod simulator;
pub mod inline;
pub mod kernel_swap;
pub mod mounts;
pub mod random;
pub mod waiting;

#[cfg(test)]
mod sim_device_tests;

pub use inline::Memory;
pub use sim_device::SimDevice;
