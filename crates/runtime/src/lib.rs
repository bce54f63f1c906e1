//! `libsoftswap.so`: a swap engine under an unmodified program.
//!
//! Loaded before the C library, it answers for the allocator, the `mmap`
//! family, and the few calls that would hide managed memory from the engine or
//! lose it (signals, threads, fork, exec). Everything else reaches the engine
//! through two signals: SIGBUS when the program touches a page that is out,
//! SIGSYS when a system call is given a pointer to managed memory.
//!
//! | room        | answers for                                                |
//! |-------------|------------------------------------------------------------|
//! | `start`     | reading the settings, building the engine, the thread       |
//! | `faults`    | SIGBUS: bring the page in, or stop the toucher              |
//! | `guard`     | SIGSYS: bring the buffers in, re-issue the call             |
//! | `heap`      | `malloc` and its relatives                                  |
//! | `library`   | what the C library and the loader keep for themselves      |
//! | `other_malloc` | the same, where the executable has a malloc of its own    |
//! | `redirect`  | the C library's own allocator leads to ours                 |
//! | `growing`   | large blocks that `realloc` lets grow where they are         |
//! | `mappings`  | `mmap` and its relatives, `brk`                             |
//! | `transfers` | calls that move data: `read`, `writev`, `sendmsg` and so on  |
//! | `later`     | io_uring and the kernel's asynchronous I/O: refused         |
//! | `asynchronous` | POSIX asynchronous I/O, in threads like the program's     |
//! | `pins`      | what guarded calls keep in memory, and when that ends       |
//! | `masks`     | `sigaction`, `sigprocmask` and their relatives              |
//! | `threads`   | `pthread_create`: a signal stack for every thread           |
//! | `thread_end` | what the kernel reads and writes when a thread ends       |
//! | `own_threads` | the engine's own: ended before what no thread of ours may miss |
//! | `credentials` | `capset`, `prctl`, `unshare` and others that concern threads |
//! | `filters`   | the program's own seccomp filters                           |
//! | `fork`      | what a forked child needs to see its data                   |
//! | `descriptors` | the engine's descriptors, to the program: there are none |
//! | `control`   | `softswap stat` and `softswap ctl`; `_exit`                 |
//! | `spawn`     | `exec`, `posix_spawn`, `system`, `popen`                    |
//! | `raw_calls` | `syscall`: raw calls made through the C library      |
//! | `unsupported` | calls that need the C library's own threads: refused    |
//!
//! This is a binding: nearly every function here is called by C code under
//! C's rules, and its `SAFETY` comments rest on those.

#![allow(unreachable_pub, reason = "exported to C, not to Rust")]

mod asynchronous;
mod control;
mod credentials;
mod descriptors;
mod faults;
mod filters;
mod fork;
mod growing;
mod guard;
mod heap;
mod heirs;
mod later;
mod library;
mod mappings;
mod masks;
mod other_malloc;
mod own_threads;
mod pinned;
mod pins;
mod raw_calls;
mod reading;
mod real;
mod redirect;
mod spawn;
mod start;
mod streams;
mod thread_end;
mod threads;
mod transfers;
mod unsupported;

/// The engine's own memory must never lie in the window it manages.
#[global_allocator]
static ENGINE_HEAP: softswap_sys::alloc::HeapHandle = softswap_sys::alloc::HeapHandle;
