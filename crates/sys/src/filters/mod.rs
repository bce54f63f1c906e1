//! seccomp filters: the guard's, and what lets the engine pass the program's own.

pub mod syscall_table;
pub mod seccomp;
pub mod exemption;
