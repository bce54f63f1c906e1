//! mimalloc's options: how it maps its arenas, and what it does at exit.

use libmimalloc_sys as mi;
use softswap_sys::raw;
use std::ffi::c_long;

const EAGER_COMMIT: mi::mi_option_t = 3;
const ARENA_EAGER_COMMIT: mi::mi_option_t = 4;
const DESTROY_ON_EXIT: mi::mi_option_t = 22;
const ARENA_RESERVE: mi::mi_option_t = 23;
const ARENA_PURGE_MULT: mi::mi_option_t = 24;

/// Arenas of a small process: one segment.
const SMALL_ARENA_KIB: c_long = 32 << 10;
const ARENA_KIB: c_long = 64 << 10;
/// Committed memory of a process of one thread from which arenas are committed as a whole, and
/// what each further thread adds: one that begins then has an arena's half for itself.
const EAGER_BYTES: usize = 16 << 20;
const EAGER_THREAD_BYTES: usize = 128 << 20;
/// Free budget that this needs.
const EAGER_SPARE_BYTES: usize = 256 << 20;

fn set(option: mi::mi_option_t, value: c_long) {
    // SAFETY: an option of this version of mimalloc and a value in its range.
    unsafe { mi::mi_option_set(option, value) };
}

/// Sets mimalloc up before the first allocation. Freed segments and large blocks are returned at
/// once: memory that mimalloc keeps would be written out to free DRAM for memory in use.
///
/// A process that may sleep commits small pieces first, since committed memory counts in the budget
/// and each thread has a segment of 32 MiB. [`note_committed`] changes that.
pub(crate) fn set_up(may_sleep: bool) {
    const AT_ONCE: c_long = 0;
    set(ARENA_PURGE_MULT, AT_ONCE);
    set_options(!may_sleep);
}

/// Updates how mimalloc maps new arenas, after `committed` bytes have been committed. It commits
/// them as a whole, so that the kernel uses huge pages, if `spare` bytes of the budget are free and
/// the threads share the existing arenas. Otherwise arenas that are hardly used would wake the
/// process.
pub(crate) fn note_committed(committed: usize, spare: impl FnOnce() -> usize) {
    let needed = |threads: usize| EAGER_BYTES + EAGER_THREAD_BYTES * threads.saturating_sub(1);
    let is_used = || raw::thread_count().is_some_and(|threads| committed >= needed(threads));
    set_options(spare() >= EAGER_SPARE_BYTES && is_used());
}

fn set_options(is_eager: bool) {
    set(EAGER_COMMIT, c_long::from(is_eager));
    set(ARENA_EAGER_COMMIT, c_long::from(is_eager));
    set(ARENA_RESERVE, if is_eager { ARENA_KIB } else { SMALL_ARENA_KIB });
}

/// Keeps mimalloc from its forced collection at exit. That walks every list of free blocks, so it
/// faults in all that is swapped out, and never ends if the program has written past a block.
pub(crate) fn skip_collection_at_exit() {
    // By this value mimalloc leaves its exit to an explicit call of `mi_process_done`.
    const BY_CALL_ONLY: c_long = 2;
    set(DESTROY_ON_EXIT, BY_CALL_ONLY);
}
