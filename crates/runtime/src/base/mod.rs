//! Foundations of the other modules: the engine of this process, the C library's own functions, raw
//! system calls, and access to the program's memory with the kernel's checks.

pub(crate) mod errno;
pub(crate) mod cancellation;
pub(crate) mod instance;
pub(crate) mod real;
pub(crate) mod resident;
pub(crate) mod signal_stack;
pub(crate) mod issue_call;
pub(crate) mod guarded_call;
pub(crate) mod uaccess;
pub(crate) mod python_frames;
pub(crate) mod fault_samples;
pub(crate) mod large_blocks;
pub(crate) mod filter_verdict;
