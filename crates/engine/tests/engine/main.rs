//! Tests of the engine through its public interface, in one executable.

mod common;

mod admission;
mod areas;
mod buffers;
mod codec;
mod contents;
mod failures;
mod mappings;
mod memory_limit;
mod pinning;
mod pool;
mod readahead;
mod settings;
mod standby;
mod swap_cache;
mod swap_cache_in_pool;
mod threads;
