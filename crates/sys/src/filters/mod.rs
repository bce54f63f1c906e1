//! seccomp filters: the guard's, and what lets the engine pass the program's own.

pub mod pointer_arguments;
pub mod seccomp;
pub mod guarded_calls;
pub mod exemption;
