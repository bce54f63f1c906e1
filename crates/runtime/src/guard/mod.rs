//! The system-call guard.
//!
//! To add a system call with pointers, use this table, and add a case in `tests/abi`, which
//! compares the call with Linux. A *nested* pointer is in memory to which an argument points.
//! `sys::pointer_table` and `sys::nested_pointer_table` are in `crates/sys/src/filters`.
//!
//! | memory that the kernel accesses | where to add it |
//! |---|---|
//! | pointers in the arguments: structures, arrays, strings | an entry of `sys::pointer_table`: the filter checks them, and `pinned_call` pins their targets |
//! | such a pointer to an array that the kernel fills, possibly a long one | also `transfers::output_array` |
//! | nested pointers to buffers (`iovec`, `msghdr`) | `transfers::dispatch`, and a function in `transfers::interposed`, because the filter sees only the outer pointer |
//! | other nested pointers in a structure | `sys::pointer_table` for the outer pointer, and `sys::nested_pointer_table`; if the structure can be on a stack, also the C library's function in `pin_nested`, and a line in `pinned_call::answer_for` for calls by number |
//! | a signal mask in force while the call waits | `stripped_mask` |
//! | a handler, a mask or an alternate stack | `signal_calls` |
//! | memory itself (`mmap` and related calls) | [`crate::memory::mappings`] |
//! | rights of a thread (credentials, namespaces) | `credentials` |
//! | memory that is accessed after the call has returned | `kernel_async_io`: refused; for `ioctl`: [`crate::process::named_memory`] |
//! | arrays of strings, for `exec` | [`crate::process::spawn`] |
//!
//! `sigsys` receives trapped calls, `raw_syscall` calls through the C library's `syscall` function.
//! A module that handles calls by number is registered in both. A call that needs only the first row
//! is complete with its entry in `sys::pointer_table`.

pub(crate) mod transfers;
mod jumps;
mod stripped_mask;
pub(crate) mod signal_calls;
mod pin_nested;
mod pinned_call;
mod filter_install;
mod credentials;
mod kernel_async_io;
pub(crate) mod advertised_memory;
pub(crate) mod sigsys;
mod raw_syscall;
