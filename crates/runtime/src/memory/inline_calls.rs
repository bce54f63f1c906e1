//! Memory that an object maps by system-call instructions of its own (rustix, in wasmtime).
//!
//! A filter traps these calls by where they are made, and they are answered as if they had come
//! through the C library. It is installed when such an object is found, at the start or by
//! `dlopen`, in a process that sleeps, too. All others have no filter for this.
//!
//! What such an object maps while it is loaded is not managed, nor what an executable at a fixed
//! address maps.

use crate::base::instance;
use crate::base::issue_call::is_our_own;
use softswap_sys::alloc::while_blocked;
use softswap_sys::inline_calls::Objects;
use softswap_sys::seccomp;
use softswap_sys::{exemption, raw};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

static OBJECTS: Mutex<Objects> = Mutex::new(Objects::new());
/// Filters of this file's that are in force.
static FILTERS: AtomicUsize = AtomicUsize::new(0);

/// How many filters there are beside the guard's that are not the program's.
pub(crate) fn filters() -> usize {
    FILTERS.load(Ordering::Relaxed)
}

/// What is loaded now is left alone.
pub(crate) fn skip_loaded() {
    while_blocked(|| OBJECTS.lock().unwrap_or_else(PoisonError::into_inner).skip());
}

/// Looks at what has been loaded since this was called before.
pub(crate) fn look() {
    let found = while_blocked(|| OBJECTS.lock().unwrap_or_else(PoisonError::into_inner).find());
    let code: Vec<_> = found.into_iter().filter(|code| !is_our_own(code.start)).collect();
    if !code.is_empty() {
        trap(&code);
    }
}

/// Not under a filter of the program's: it would judge the call that installs this one.
fn trap(code: &[Range<usize>]) {
    instance::prepare_for_threads();
    if !instance::emulates_signals() || exemption::is_in_force() {
        return;
    }
    if seccomp::install(&seccomp::build_for_callers(code)).is_err() {
        raw::write_stderr(
            b"softswap: a library maps memory by itself, and the filter that would show this is \
              refused: that memory is not managed\n",
        );
        return;
    }
    FILTERS.fetch_add(1, Ordering::Relaxed);
}
