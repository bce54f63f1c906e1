//! The kernel's interfaces, made safe for the engine.
#![warn(missing_docs)]

pub mod alloc;
pub mod child;
pub mod descriptor;
pub mod file;
pub mod futex;
pub mod lz4;
pub mod memory;
pub mod probe;
pub mod raw;
pub mod ring;
pub mod seccomp;
pub mod shared;
pub mod signals;
pub mod syscall_table;
pub mod uffd;
pub mod window;

pub use memory::{PAGE_SIZE, Page};
