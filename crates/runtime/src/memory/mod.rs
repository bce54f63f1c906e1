//! The program's memory: pins for calls, `malloc`, `mmap` and related functions.
//!
//! | file            | answers for                                                   |
//! |-----------------|---------------------------------------------------------------|
//! | `pins`          | what guarded calls keep in memory, and when that ends         |
//! | `libc_memory`   | what the C library and the loader keep for themselves         |
//! | `stdio_buffers` | the buffers of the C library's streams                        |
//! | `insistence`    | programs that name a place for their memory                   |
//! | `sleep_gate`    | what must not be under way when a sleeping process wakes      |
//! | `arenas`        | mimalloc's options                                            |
//! | `asleep`        | the calls of a process that has no engine yet                 |
//! | `growing`       | large blocks that `realloc` lets grow where they are          |
//! | `heap`          | `malloc` and its relatives                                    |
//! | `redirect`      | the C library's own allocator leads to ours                   |
//! | `inline_calls`  | objects that map memory by instructions of their own          |
//! | `dlopen`        | `dlopen`: without `RTLD_DEEPBIND`, and what it loads          |
//! | `other_malloc`  | the same, where the executable has a malloc of its own        |
//! | `mappings`      | `mmap` and its relatives, `brk`                               |

pub(crate) mod pins;
pub(crate) mod libc_memory;
pub(crate) mod stdio_buffers;
pub(crate) mod insistence;
pub(crate) mod sleep_gate;
pub(crate) mod arenas;
pub(crate) mod asleep;
pub(crate) mod growing;
pub(crate) mod heap;
pub(crate) mod redirect;
pub(crate) mod inline_calls;
pub(crate) mod dlopen;
pub(crate) mod other_malloc;
pub(crate) mod mappings;
