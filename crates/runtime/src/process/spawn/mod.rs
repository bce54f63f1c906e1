//! `exec`, `posix_spawn`, `system`, `popen`.
//!
//! A child that shares our memory but not our handlers (posix_spawn), and the
//! kernel when it reads argv and envp (exec), can bring nothing in. So all
//! that is handed over is copied out of managed memory first, and what the C
//! library finds by itself, the environment, is kept in memory meanwhile.

pub(crate) mod argument_copies;
mod fork_safe_mutex;
mod environment;
pub(crate) mod carried;
mod started_program;
pub(crate) mod exec_call;
mod path_search;
mod exec;
mod posix_spawn;
mod shell;
