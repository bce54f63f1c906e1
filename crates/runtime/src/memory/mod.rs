//! The program's memory: pins for calls, `malloc`, `mmap` and related functions.

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
