//! `libsoftswap.so`: a swap engine under an unmodified program.
//!
//! Loaded before the C library, it answers for the allocator, the `mmap`
//! family, and the few calls that would hide managed memory from the engine or
//! lose it (signals, threads, fork, exec). Everything else reaches the engine
//! through two signals: SIGBUS when the program touches a page that is out,
//! SIGSYS when a system call is given a pointer to managed memory.
//!
//! | room      | answers for                                                       |
//! |-----------|-------------------------------------------------------------------|
//! | `base`    | what everything else uses: the engine, the C library's functions, raw calls |
//! | `signals` | masks, actions, pending signals; SIGBUS: bring the page in        |
//! | `memory`  | pins, `malloc` and `mmap` and their relatives                      |
//! | `process` | descriptors, threads, fork, exec, asynchronous I/O                |
//! | `guard`   | SIGSYS: bring the buffers of a system call in, re-issue it        |
//! | `bring_up` | the engine, handlers and the guard of this process              |
//! | `waking`  | a process that has none until it needs one                        |
//! | `start`   | what the loader calls: reads the settings, wires the rooms together |
//!
//! A room uses only those above it in this table.
//!
//! This is a binding: nearly every function here is called by C code under
//! C's rules, and its `SAFETY` comments rest on those.

#![allow(unreachable_pub, reason = "exported to C, not to Rust")]

mod base;
mod signals;
mod memory;
mod process;
mod guard;
mod bring_up;
mod waking;
mod start;

/// The engine's own memory must never lie in the window it manages.
#[global_allocator]
static ENGINE_HEAP: softswap_sys::alloc::HeapHandle = softswap_sys::alloc::HeapHandle;
