//! Foundations of the crate: system calls, waits, signals, descriptors.

pub(crate) mod any_bits;
pub mod bitmap;
pub(crate) mod page;
pub(crate) mod program_filter;
pub mod raw;
pub mod memory;
pub mod futex;
pub mod primitive;
pub mod engine_stack;
pub mod signals;
pub mod signal_frame;
pub mod waiting_call;
pub(crate) mod chained;
pub mod locked;
pub mod own_descriptors;
pub mod descriptor;
pub(crate) mod registered_file;
