//! seccomp filters: the guard's, and the exemption from the program's own.

pub(crate) mod pointee;
pub(crate) mod pointer_table;
pub mod nested_pointer_table;
pub mod pointer_lookup;
pub mod seccomp;
pub mod guarded_calls;
pub mod exemption;
