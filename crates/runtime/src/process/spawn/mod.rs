//! `exec`, `posix_spawn`, `system`, `popen`.
//!
//! No page can be faulted in by a child that shares the parent's memory but not its handlers
//! (posix_spawn), nor while the kernel reads argv and envp (exec). So all arguments are first
//! copied out of managed memory.

pub(crate) mod argument_copies;
mod fork_safe_mutex;
mod environment;
pub(crate) mod carried;
mod started_program;
pub(crate) mod exec_call;
mod path_search;
mod exec;
mod file_actions;
mod posix_spawn;
mod shell;
