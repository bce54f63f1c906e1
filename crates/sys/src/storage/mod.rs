//! Swap files and block devices, and I/O to them.

mod file_error;
mod unnamed_file;
pub mod file;
pub mod ring;
pub mod fiemap;
pub mod block_map;
pub mod file_layout;
pub mod holders;
pub mod open_mark;
pub mod raw_mark;
pub mod raw_device;
pub mod exclusive_file;
