//! The process: its descriptors, threads and children, and the programs that it starts.

pub(crate) mod statistics;
pub(crate) mod shared_areas;
pub(crate) mod own_threads;
pub(crate) mod descriptors;
pub(crate) mod tree_account;
pub(crate) mod tree;
mod parking;
pub(crate) mod turns;
mod budget_thread;
pub(crate) mod tree_asleep;
pub(crate) mod control_thread;
pub(crate) mod file_write_locks;
pub(crate) mod forked_children;
pub(crate) mod thread_exit;
pub(crate) mod named_memory;
pub(crate) mod calls_in_progress;
pub(crate) mod program_threads;
pub(crate) mod engine_threads;
pub(crate) mod aio;
mod unsupported;
pub(crate) mod fork;
pub(crate) mod clone;
pub(crate) mod spawn;
