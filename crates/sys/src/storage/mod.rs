//! Files and block devices to swap to, and I/O to them.

mod file_error;
mod unnamed_file;
pub mod file;
pub mod ring;
pub mod fiemap;
pub mod layout;
pub mod holders;
pub mod claim;
pub mod kernel_swap;
