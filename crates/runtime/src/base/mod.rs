//! Foundations of the other modules: the engine of this process, the C library's own functions, raw
//! system calls, and access to the program's memory with the kernel's checks.
//!
//! | file | contents |
//! |---|---|
//! | `instance` | the engine of this process, and the test for managed addresses |
//! | `errno` | results in the conventions of the kernel and of C |
//! | `cancellation` | sections without thread cancellation |
//! | `real` | the C library's versions of interposed functions |
//! | `issue_call` | system calls of the program and of the engine |
//! | `filter_verdict` | decision of the program's seccomp filter about a call |
//! | `uaccess` | copies from and to the program's memory; bad pointers are errors |
//! | `resident` | ranges that stay resident for a while |
//! | `signal_stack` | this thread's signal stack |
//! | `guarded_call` | the trapped system call that this thread handles |
//! | `python_frames` | functions of Python programs on the stack of a sampled fault |
//! | `fault_samples` | faults sampled for `softswap record` |
//! | `large_blocks` | large blocks of the program and the callers that allocated them |

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
