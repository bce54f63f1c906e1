//! The kernel's interfaces, made safe for the engine.
//!
//! The engine forbids unsafe code, so whatever talks to the kernel or handles
//! raw memory is here, behind interfaces that cannot be misused from safe
//! code. Those whose soundness the caller must vouch for are `unsafe`, and
//! say what they ask for.
//!
//! Each room is a folder. A room, and a file in it, uses only what comes before it here;
//! all files are re-exported, so that `softswap_sys::futex` is one.
//!
//! | room         | file                  | what is in it                                  |
//! |--------------|-----------------------|------------------------------------------------|
//! | `base`       | `page`                | a page, and its size                           |
//! |              | `program_filter`      | whether the program has a filter of its own    |
//! |              | [`raw`]               | system calls that filters let through          |
//! |              | [`memory`]            | `mmap` and `madvise` of the engine's own pages |
//! |              | [`futex`]             | waiting on a word; a lock                      |
//! |              | [`primitive`]         | atomics, locks and waits, or loom's models     |
//! |              | [`signals`]           | handlers, signal stacks, masks, details        |
//! |              | `chained`             | a handler in front of the program's own        |
//! |              | [`locked`]            | a value behind that lock, signals blocked      |
//! |              | [`own_descriptors`]   | the descriptors that are the engine's          |
//! |              | [`descriptor`]        | where their numbers lie                        |
//! |              | `registered_file`     | a file kept open by no descriptor              |
//! | `own_memory` | [`alloc`]             | the engine's heap                              |
//! |              | [`segment`]           | buffers in runs of pages                       |
//! |              | [`secret`]            | a key that nobody else sees                    |
//! |              | [`shared`]            | counters shared with `softswap run`            |
//! | `managed`    | [`aslr`]              | where the window and the gate lie (ASLR)       |
//! |              | [`uffd`]              | userfaultfd                                    |
//! |              | `self_memory`         | `/proc/self/mem`                               |
//! |              | [`faults`]            | the ways to take faults                        |
//! |              | [`committed`]         | what is committed while there is no engine     |
//! |              | [`found`]             | what lies in a range, as /proc tells           |
//! |              | [`window`]            | managed memory: pages in, pages out            |
//! |              | [`touches`]           | who brings in the pages of which window        |
//! |              | [`attach_count`]      | whether forked children are there yet          |
//! | `filters`    | `pointee`             | what a pointer argument points to              |
//! |              | `system_calls`        | every call of Linux 6.18, and its pointers     |
//! |              | [`nested_pointers`]   | pointers in structures                         |
//! |              | [`pointer_arguments`]     | which arguments of which calls are pointers    |
//! |              | [`seccomp`]           | the guard's filter                             |
//! |              | [`guarded_calls`]     | calls in a program that has asked for pools    |
//! |              | [`exemption`]         | passing a filter of the program's own          |
//! | `storage`    | [`file`](mod@file)    | the swap file                                  |
//! |              | [`ring`]              | io_uring                                       |
//! |              | [`fiemap`]            | where a file lies on its device                |
//! |              | [`file_layout`]       | whether every page of a file has room          |
//! |              | [`holders`]           | who uses a file or device                      |
//! |              | [`open_mark`]         | whether another process has a file still open  |
//! |              | [`exclusive_file`]    | a named file or device of one's own            |
//! | `process`    | [`load`]              | how many threads want to run                   |
//! |              | [`threads`]           | interrupting a thread, waiting for its end     |
//! |              | [`process_identity`]  | which process, and whether it is alive         |
//! |              | [`own_threads`]       | threads of the engine's in a program that forks |
//! |              | [`child`]             | standing in for a child process                |
//! |              | [`pinners`]           | mappings by which memory may stay pinned       |
//! |              | [`control_socket`]    | the socket for `stat` and `ctl`                |
//! |              | [`linked`]            | words through which libraries call others      |
//! |              | [`inline_calls`]      | objects that call the kernel by themselves     |
//! |              | [`program_file`]      | which sanitizer a program is built with        |
//! |              | [`code`]              | jumps put into loaded code                     |
//! | `codec`      | [`simd`]              | comparing a page with wide registers           |
//! |              | [`lz4`], [`zstd`]     | the C libraries                                |
//! |              | [`probe`]             | trying out what a machine allows               |
//!
//! Two rules hold throughout. No Rust reference points into the window: its
//! pages come and go, so they are named by number. And what may run in a
//! signal handler (faults, page-out, the re-issued call) does not allocate.
#![warn(missing_docs)]

mod base;
mod own_memory;
mod managed;
mod filters;
mod storage;
mod process;
mod codec;
pub mod probe;

pub(crate) use base::{chained, page, program_filter, registered_file};
pub use base::{
    descriptor, engine_stack, futex, locked, memory, own_descriptors, primitive, raw, signal_frame,
    signals, waiting_call,
};
pub use codec::{lz4, simd, zstd};
pub use filters::{exemption, guarded_calls, nested_pointers, pointer_arguments, seccomp};
pub(crate) use filters::{pointee, system_calls};
pub(crate) use managed::self_memory;
pub use managed::{aslr, attach_count, committed, faults, found, touches, uffd, window};
pub use own_memory::{alloc, secret, segment, shared};
pub use process::{
    child, code, control_socket, inline_calls, linked, load, own_threads, pinners,
    process_identity, process_image, program_file, threads,
};
pub use storage::{exclusive_file, fiemap, file, file_layout, holders, open_mark, ring};

pub use page::{PAGE_SIZE, Page};
