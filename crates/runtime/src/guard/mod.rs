//! The system-call guard. To add a system call with hidden pointers (pointers behind pointers)
//! see this table of rules; a case in `tests/abi` then compares it with Linux.
//!
//! | what the kernel follows in the call                        | where it is added                 |
//! |-------------------------------------------------------------|-----------------------------------|
//! | pointers in its arguments: structures, arrays, strings       | a line of `sys::pointer_arguments`: the filter looks at them, and `pinned_call` pins what they point to |
//! | one of them is an array that the kernel fills, perhaps a long one | also `transfers::output_array` |
//! | buffers behind a pointer (`iovec`, `msghdr`)                | `transfers::dispatch`, and a function in `transfers::interposed`, because the filter sees only the outer pointer |
//! | pointers in a structure                                    | `sys::nested_pointers`; the C library's function, if the structure can be on a stack, in `nested_pointers` |
//! | a mask that is in force while it waits                      | `stripped_mask`                   |
//! | a handler, a mask or an alternate stack                      | `signal_calls`                    |
//! | memory itself (`mmap` and its relatives)                    | [`crate::memory::mappings`]       |
//! | what a thread may do (credentials, name spaces)             | `credentials`                     |
//! | memory that is used after the call has returned             | `kernel_async_io`: refused; of an `ioctl`: [`crate::process::named_memory`] |
//! | strings of strings, for `exec`                              | [`crate::process::spawn`]         |
//!
//! A caught call comes to `sigsys`, and a call through the C library's `syscall` function to
//! `raw_syscall`: a file that answers calls by their numbers is named in both. What is listed
//! in `sys::pointer_arguments` needs nothing more, unless it is `Vectors` or a message.
//!
//! | file              | what it has                                                     |
//! |-------------------|-----------------------------------------------------------------|
//! | `transfers`       | calls that move data: `read`, `writev`, `sendmsg` and so on      |
//! | `jumps`           | jumps out of guarded calls, and the masks that are kept with them |
//! | `stripped_mask`   | masks of calls that wait, without the engine's signals          |
//! | `signal_calls`    | calls about signals, by their numbers                            |
//! | `nested_pointers` | pointers in structures of `ioctl`, `setsockopt`, `bpf` and others |
//! | `pinned_call`     | any call of `sys::pointer_arguments`: pin, issue, unpin              |
//! | `filter_install`  | the program's own seccomp filters                                |
//! | `credentials`     | `capset`, `prctl`, `unshare` and others that concern threads     |
//! | `kernel_async_io` | io_uring and the kernel's asynchronous I/O: refused              |
//! | `raw_mappings`    | `mmap` by instructions of the program's own                     |
//! | `sigsys`          | SIGSYS: bring the buffers in, re-issue the call                  |
//! | `raw_syscall`     | `syscall`: raw calls made through the C library                  |

pub(crate) mod transfers;
mod jumps;
mod stripped_mask;
pub(crate) mod signal_calls;
mod nested_pointers;
mod pinned_call;
mod filter_install;
mod credentials;
mod kernel_async_io;
pub(crate) mod raw_mappings;
pub(crate) mod sigsys;
mod raw_syscall;
