//! The program's memory: pins for calls, `malloc`, `mmap` and related functions.
//!
//! | file | contents |
//! |---|---|
//! | `pins` | memory that guarded calls keep resident, and its release |
//! | `libc_memory` | memory that the C library and the loader keep for themselves |
//! | `stdio_buffers` | buffers of the C library's streams |
//! | `hint_retries` | programs that require addresses outside the window |
//! | `sleep_gate` | operations that must finish before a sleeping process wakes |
//! | `arenas` | mimalloc's options |
//! | `asleep` | memory calls of a process without an engine |
//! | `growing` | large blocks that `realloc` grows in place |
//! | `heap` | `malloc` and related functions |
//! | `libc_malloc_patch` | patches the C library's allocator to jump to the runtime's |
//! | `inline_calls` | objects that map memory by their own system-call instructions |
//! | `dlopen` | `dlopen`: drops `RTLD_DEEPBIND`, searches new libraries |
//! | `other_malloc` | programs with their own `malloc` |
//! | `mappings` | `mmap` and related calls, `brk` |

pub(crate) mod pins;
pub(crate) mod libc_memory;
pub(crate) mod stdio_buffers;
pub(crate) mod hint_retries;
pub(crate) mod sleep_gate;
pub(crate) mod arenas;
pub(crate) mod asleep;
pub(crate) mod growing;
pub(crate) mod heap;
pub(crate) mod libc_malloc_patch;
pub(crate) mod inline_calls;
pub(crate) mod dlopen;
pub(crate) mod other_malloc;
pub(crate) mod mappings;
