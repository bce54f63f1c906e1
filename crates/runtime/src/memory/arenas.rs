//! mimalloc's options: how it maps its arenas, and what it does at exit.

use libmimalloc_sys as mi;
use softswap_sys::raw;
use std::ffi::c_long;

const EAGER_COMMIT: mi::mi_option_t = 3;
const ARENA_EAGER_COMMIT: mi::mi_option_t = 4;
const DESTROY_ON_EXIT: mi::mi_option_t = 22;
const ARENA_RESERVE: mi::mi_option_t = 23;
const ARENA_PURGE_MULT: mi::mi_option_t = 24;

/// Arena size if arenas are committed in small pieces: one mimalloc segment.
const SMALL_ARENA_KIB: c_long = 32 << 10;
const ARENA_KIB: c_long = 64 << 10;
/// Committed bytes at which a process of one thread starts to commit new arenas as a whole.
const EAGER_BYTES: usize = 16 << 20;
/// Addition to [`EAGER_BYTES`] for each further thread, which takes a segment, half an arena.
const EAGER_THREAD_BYTES: usize = 128 << 20;
/// Free bytes of the budget below which arenas are committed in small pieces.
const EAGER_SPARE_BYTES: usize = 256 << 20;

fn set(option: mi::mi_option_t, value: c_long) {
    // SAFETY: this version of mimalloc has the option, and the value is in its range.
    unsafe { mi::mi_option_set(option, value) };
}

/// Number of mimalloc's options, `_mi_option_last`.
const OPTIONS: mi::mi_option_t = 38;

unsafe extern "C" {
    /// Returns an option's value without reading the environment.
    fn _mi_option_get_fast(option: mi::mi_option_t) -> c_long;
}

/// Keeps all options at their defaults. Otherwise mimalloc would read variables such as
/// `MIMALLOC_VERBOSE`, which are meant for a mimalloc of the program.
pub(crate) extern "C" fn ignore_variables() {
    for option in 0..OPTIONS {
        // SAFETY: this version of mimalloc has the option.
        set(option, unsafe { _mi_option_get_fast(option) });
    }
}

/// mimalloc returns freed segments and large blocks immediately. If it kept them, the engine would
/// write back memory that is not in use.
///
/// A process that may sleep first commits small pieces: committed memory counts in the budget, and
/// each thread has a segment of 32 MiB. [`note_committed`] changes that.
pub(crate) fn set_up(may_sleep: bool) {
    const AT_ONCE: c_long = 0;
    set(ARENA_PURGE_MULT, AT_ONCE);
    set_options(!may_sleep);
}

/// Makes mimalloc commit new arenas as a whole, for huge pages, if enough is committed for the
/// number of threads and enough of the budget is free (`spare` returns the bytes). Otherwise hardly
/// used arenas would wake the process.
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

/// The collection at exit would walk every list of free blocks: it faults in their evicted pages,
/// and never ends if the program has overwritten a list.
pub(crate) fn skip_collection_at_exit() {
    // With this value mimalloc cleans up only in an explicit call of `mi_process_done`.
    const BY_CALL_ONLY: c_long = 2;
    set(DESTROY_ON_EXIT, BY_CALL_ONLY);
}
