//! Managed memory: where it lies, and how pages enter and leave it.

pub mod aslr;
pub mod uffd;
pub(crate) mod self_memory;
pub mod faults;
pub mod committed;
pub mod found;
pub mod window;
pub mod touches;
pub mod attach_count;
