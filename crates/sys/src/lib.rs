//! Safe interfaces to the kernel for the engine.
//!
//! The engine forbids unsafe code. So this crate contains all code that calls the kernel or handles
//! raw memory, behind interfaces that safe code cannot misuse. Functions whose soundness depends on
//! the caller are `unsafe` and document their conditions.
//!
//! Each module is a folder. A module, and a file in it, uses only earlier ones of this list; all
//! files are re-exported, for example as `softswap_sys::futex`.
//!
//! | module       | file                  | content                                        |
//! |--------------|-----------------------|------------------------------------------------|
//! | `base`       | `page`                | a page, and its size                           |
//! |              | `program_filter`      | records a filter of the program's own          |
//! |              | [`raw`]               | system calls that filters allow                |
//! |              | [`memory`]            | `mmap` and `madvise` of the engine's own pages |
//! |              | [`futex`]             | waits on a word; a lock                        |
//! |              | [`primitive`]         | atomics, locks and waits, or loom's models     |
//! |              | [`signals`]           | handlers, signal stacks, masks, details        |
//! |              | `chained`             | a handler in front of the program's own        |
//! |              | [`locked`]            | a value behind that lock, signals blocked      |
//! |              | [`own_descriptors`]   | the set of the engine's descriptors            |
//! |              | [`descriptor`]        | their numbers                                  |
//! |              | `registered_file`     | a file kept open without a descriptor          |
//! | `own_memory` | [`alloc`]             | the engine's heap                              |
//! |              | [`segment`]           | buffers in runs of pages                       |
//! |              | [`secret`]            | secret keys                                    |
//! |              | [`shared`]            | counters shared with `softswap run`            |
//! | `managed`    | [`aslr`]              | addresses of the window and the gate (ASLR)    |
//! |              | [`uffd`]              | userfaultfd                                    |
//! |              | `self_memory`         | `/proc/self/mem`                               |
//! |              | [`faults`]            | the fault mechanisms                           |
//! |              | [`committed`]         | committed memory while there is no engine      |
//! |              | [`proc_maps`]             | mappings and pages in a range, by /proc        |
//! |              | [`window`]            | managed memory: installs and evicts pages      |
//! |              | [`touches`]           | resolvers of the faults of each window         |
//! |              | [`attach_count`]      | detects live forked children                   |
//! | `filters`    | `pointee`             | the memory behind a pointer argument           |
//! |              | `pointer_table`        | every call of Linux 6.18, and its pointers     |
//! |              | [`nested_pointers`]   | pointers in structures                         |
//! |              | [`pointer_lookup`] | look-ups of the pointers of a call             |
//! |              | [`seccomp`]           | the guard's filter                             |
//! |              | [`guarded_calls`]     | calls in a program that uses pools             |
//! |              | [`exemption`]         | the engine's calls under the program's filter  |
//! | `storage`    | [`file`](mod@file)    | the swap file                                  |
//! |              | [`ring`]              | io_uring                                       |
//! |              | [`fiemap`]            | locations of a file on its device              |
//! |              | [`block_map`]         | pages of a file to blocks of its device        |
//! |              | [`raw_device`]        | the block device below a file                  |
//! |              | [`raw_mark`]          | a file whose blocks are written below it       |
//! |              | [`file_layout`]       | checks a file for storage for every page       |
//! |              | [`holders`]           | users of a file or device                      |
//! |              | [`open_mark`]         | detects that a process holds a file open       |
//! |              | [`exclusive_file`]    | a named file or device, claimed exclusively    |
//! | `process`    | [`load`]              | number of runnable threads                     |
//! |              | [`threads`]           | interrupts a thread, waits for its exit        |
//! |              | [`process_identity`]  | identity and liveness of a process             |
//! |              | [`own_threads`]       | the engine's threads in a program that forks   |
//! |              | [`child`]             | supervision of a child process                 |
//! |              | [`pinners`]           | mappings through which memory may be pinned    |
//! |              | [`control_socket`]    | the socket for `stat` and `ctl`                |
//! |              | [`linked`]            | words through which libraries call others      |
//! |              | [`inline_calls`]      | objects with system-call instructions          |
//! |              | [`program_file`]      | detects the sanitizer of a program             |
//! |              | [`code`]              | jumps written into loaded code                 |
//! | `codec`      | [`simd`]              | compares a page with wide registers            |
//! |              | [`lz4`], [`zstd`]     | the C libraries                                |
//! |              | [`probe`]             | tests the features of a machine                |
//!
//! Two rules hold throughout. No Rust reference points into the window: its pages are evicted and
//! faulted in, so they are named by number. And code that may run in a signal handler (faults,
//! eviction, the reissued call) does not allocate.

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
pub use filters::{exemption, guarded_calls, nested_pointers, pointer_lookup, seccomp};
pub(crate) use filters::{pointee, pointer_table};
pub(crate) use managed::self_memory;
pub use managed::{aslr, attach_count, committed, faults, proc_maps, touches, uffd, window};
pub use own_memory::{alloc, secret, segment, shared};
pub use process::{
    child, code, control_socket, inline_calls, linked, load, own_threads, pinners,
    process_identity, process_image, program_file, threads,
};
pub use storage::{
    block_map, exclusive_file, fiemap, file, file_layout, holders, open_mark, raw_device, raw_mark,
    ring,
};

pub use base::any_bits::AnyBits;
pub use page::{PAGE_SIZE, Page};
