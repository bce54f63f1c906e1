//! The process: its descriptors, its threads and the engine's, its children, and what it starts.
//!
//! | file              | answers for                                                 |
//! |-------------------|-------------------------------------------------------------|
//! | `statistics`      | the page of statistics, and to which process it belongs     |
//! | `shared_areas`    | named swap areas that the tree of processes shares          |
//! | `own_threads`     | which threads are the engine's                              |
//! | `descriptors`     | the engine's descriptors, to the program: there are none    |
//! | `tree`            | the part of a budget that the tree of processes shares      |
//! | `tree_asleep`     | the same, of a process that sleeps                          |
//! | `control_thread`  | `softswap stat` and `softswap ctl`; `_exit`                 |
//! | `file_turns`      | turns of long writes to one file                            |
//! | `forked_children` | children that read this process's slots                     |
//! | `thread_end`      | memory that the kernel accesses by itself for a thread      |
//! | `named_memory`    | memory that an `ioctl` names and the kernel uses later      |
//! | `calls_under_way` | calls that began before the process woke                    |
//! | `program_threads` | `pthread_create`: a signal stack for every thread           |
//! | `engine_threads`  | the engine's own: ended before what no thread of ours may miss |
//! | `aio`             | POSIX asynchronous I/O, in threads like the program's       |
//! | `unsupported`     | calls that need the C library's own threads: refused        |
//! | `fork`            | what a forked child needs to see its data                   |
//! | `clone`           | `clone`, and raw calls that fork                            |
//! | `spawn`           | `exec`, `posix_spawn`, `system`, `popen`                    |

pub(crate) mod statistics;
pub(crate) mod shared_areas;
pub(crate) mod own_threads;
pub(crate) mod descriptors;
mod tree_account;
pub(crate) mod tree;
pub(crate) mod tree_asleep;
pub(crate) mod control_thread;
pub(crate) mod file_turns;
pub(crate) mod forked_children;
pub(crate) mod thread_end;
pub(crate) mod named_memory;
pub(crate) mod calls_under_way;
pub(crate) mod program_threads;
pub(crate) mod engine_threads;
pub(crate) mod aio;
mod unsupported;
pub(crate) mod fork;
pub(crate) mod clone;
pub(crate) mod spawn;
