//! Safe interfaces to the kernel for the engine.
//!
//! The engine forbids unsafe code, so this crate calls the kernel and handles raw memory. Safe code
//! cannot misuse its interfaces; functions whose soundness depends on the caller are `unsafe`.
//!
//! A module uses only earlier ones of this list, and a file only those that its folder's `mod.rs`
//! declares before it. All files are re-exported, for example as `softswap_sys::futex`.
//!
//! | module | content |
//! |---|---|
//! | `base` | pages, system calls, waits, signals, descriptors |
//! | `own_memory` | the engine's heap, buffers, secrets and shared counters |
//! | `managed` | the window, its faults and addresses |
//! | `filters` | the pointers of system calls, and seccomp filters |
//! | `storage` | swap files and devices, and io_uring |
//! | `process` | threads, children, other processes, loaded libraries |
//! | `codec` | compression, and comparison by wide registers |
//! | [`probe`] | tests the features of a machine |
//!
//! No Rust reference points into the window: its pages are evicted, so they are named by number.
//! Code that may run in a signal handler (faults, eviction, the reissued call) does not allocate.

mod base;
mod own_memory;
mod managed;
mod filters;
mod storage;
mod process;
mod codec;
pub mod probe;
/// Included by path, because `softswap-testkit` depends on this crate.
#[cfg(test)]
#[path = "../../testkit/src/waiting.rs"]
pub mod waiting;

pub use base::{
    bitmap, descriptor, engine_stack, futex, locked, memory, own_descriptors, primitive, raw,
    signal_frame, signals, waiting_call,
};
pub(crate) use base::{chained, page, program_filter, registered_file};
pub use codec::{lz4, simd, zstd};
pub use filters::{exemption, guarded_calls, nested_pointer_table, pointer_lookup, seccomp};
pub(crate) use filters::{pointee, pointer_table};
pub(crate) use managed::self_memory;
pub use managed::{aslr, attach_count, committed, faults, proc_maps, touches, uffd, window};
pub use own_memory::{alloc, secret, segment, shared};
pub use process::{
    child, code, control_socket, inline_calls, linked, load, memory_limits, own_threads, pinners,
    process_identity, process_image, program_file, threads,
};
pub use storage::{
    block_map, exclusive_file, fiemap, file, file_layout, holders, open_mark, raw_device, raw_mark,
    ring,
};

pub use base::any_bits::AnyBits;
pub use page::{PAGE_SIZE, Page};
