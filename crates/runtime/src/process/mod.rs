//! The process: its descriptors, its threads and the engine's, its children, and the programs that
//! it starts.
//!
//! | file | contents |
//! |---|---|
//! | `statistics` | the page of statistics, and the process that owns it |
//! | `shared_areas` | named swap areas that the process tree shares |
//! | `own_threads` | IDs of the engine's threads |
//! | `descriptors` | hides the engine's descriptors from the program |
//! | `tree` | share in a budget of the process tree |
//! | `turns` | turns of the processes of a tree that thrashes |
//! | `budget_thread` | the thread that keeps that share |
//! | `tree_asleep` | the same for a sleeping process |
//! | `control_thread` | `softswap stat` and `softswap ctl`; `_exit` |
//! | `file_write_locks` | locks for long writes to one file |
//! | `forked_children` | children that read this process's slots |
//! | `thread_exit` | memory that the kernel accesses for a thread by itself |
//! | `named_memory` | memory registered by an `ioctl` for later use |
//! | `calls_in_progress` | calls that started before the process woke |
//! | `program_threads` | `pthread_create`: a signal stack for every thread |
//! | `engine_threads` | start and end of the engine's threads |
//! | `aio` | POSIX asynchronous I/O, in threads like the program's |
//! | `unsupported` | calls that need the C library's own threads: refused |
//! | `fork` | managed memory in forked children |
//! | `clone` | `clone`, and raw calls that fork |
//! | `spawn` | `exec`, `posix_spawn`, `system`, `popen` |

pub(crate) mod statistics;
pub(crate) mod shared_areas;
pub(crate) mod own_threads;
pub(crate) mod descriptors;
pub(crate) mod tree_account;
pub(crate) mod tree;
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
