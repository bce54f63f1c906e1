//! Managed memory: its addresses, and how pages are installed and evicted.

pub mod aslr;
pub mod uffd;
pub(crate) mod self_memory;
pub mod faults;
pub mod committed;
pub mod proc_maps;
pub mod window;
pub mod touches;
pub mod attach_count;
