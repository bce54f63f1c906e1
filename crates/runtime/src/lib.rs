//! `libsoftswap.so`: runs the swap engine inside an unmodified program.
//!
//! The library is loaded before the C library. It replaces the allocator, the `mmap` family, and
//! the calls that could hide managed memory from the engine or lose it (signals, threads, fork,
//! exec). Everything else reaches the engine through two signals: SIGBUS if the program touches an
//! absent page, SIGSYS if a system call receives a pointer to managed memory.
//!
//! | module | contents |
//! |---|---|
//! | `base` | the engine instance, the C library's functions, raw system calls |
//! | `signals` | signal masks, actions, pending signals; SIGBUS handler, which faults pages in |
//! | `memory` | pins; `malloc`, `mmap` and related functions |
//! | `process` | descriptors, threads, fork, exec, POSIX asynchronous I/O |
//! | `guard` | the SIGSYS handler: faults in the buffers of a system call and issues it |
//! | `bring_up` | starts the engine, the handlers and the guard of this process |
//! | `waking` | starts the engine of a sleeping process when it needs one |
//! | `start` | entry point from the loader: reads the settings, initializes the modules |
//!
//! A module uses only those above it in this table.
//!
//! The contract of an exported `unsafe` function, and of an internal one that it calls with the same
//! arguments, is that of the C library's function of the same name. The `SAFETY` comments rely on it.

#![allow(unreachable_pub, reason = "exported to C, not to Rust")]

mod base;
mod signals;
mod memory;
mod process;
mod guard;
mod bring_up;
mod waking;
mod start;

/// Allocator of the runtime and the engine, which never uses the managed window.
#[global_allocator]
static ENGINE_HEAP: softswap_sys::alloc::HeapHandle = softswap_sys::alloc::HeapHandle;
