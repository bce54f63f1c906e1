//! seccomp filters: the guard's, and the exemption from the program's own.

pub(crate) mod pointee;
pub(crate) mod system_calls;
pub mod nested_pointers;
pub mod pointer_arguments;
pub mod seccomp;
pub mod guarded_calls;
pub mod exemption;
