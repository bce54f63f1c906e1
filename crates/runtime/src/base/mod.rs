//! Foundations of the other modules: the engine of this process, the C library's own functions, raw
//! system calls, and access to the program's memory under the kernel's rules.
//!
//! | file             | what it has                                                  |
//! |------------------|--------------------------------------------------------------|
//! | `instance`       | the one engine of this process, and which addresses are its  |
//! | `errno`          | results as the kernel and as C have them                     |
//! | `cancellation`   | where a thread is not cancelled                              |
//! | `real`           | the C library's versions of what is interposed               |
//! | `system_calls`   | system calls of the program's, and of the engine's           |
//! | `filter_verdict` | what a seccomp filter of the program's says to a call        |
//! | `resident`       | ranges that stay in memory for a while                       |
//! | `signal_stack`   | where this thread's signal stack is                          |
//! | `guarded_call`   | the caught system call that this thread is in                |
//! | `uaccess`        | memory of the program's: copied, or found to be a bad pointer |
//! | `python_frames`  | functions of Python programs on the stack of a sampled fault |
//! | `fault_samples`  | faults that are noted for `softswap record`                  |
//! | `large_blocks`   | which large blocks the program has, and who asked for them   |

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
