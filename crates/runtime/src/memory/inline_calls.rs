//! Memory that an object maps by system-call instructions of its own (rustix, in wasmtime).
//!
//! A seccomp filter traps these calls by the address of the instruction, and the runtime handles
//! them like calls through the C library. The filter is installed once such an object is found, at
//! the start or after `dlopen`, also in a sleeping process. Other processes have no such filter.
//!
//! Memory that an object maps in its constructors, or that an executable at a fixed address maps,
//! is not managed.

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
/// Number of filters that this file has installed.
static FILTERS: AtomicUsize = AtomicUsize::new(0);

/// Returns the number of filters that this file has installed.
pub(crate) fn filters() -> usize {
    FILTERS.load(Ordering::Relaxed)
}

/// Marks the loaded objects as searched.
pub(crate) fn skip_loaded() {
    while_blocked(|| OBJECTS.lock().unwrap_or_else(PoisonError::into_inner).skip());
}

/// Searches the objects that have been loaded since the last call, and traps their calls.
pub(crate) fn look() {
    let found = while_blocked(|| OBJECTS.lock().unwrap_or_else(PoisonError::into_inner).find());
    let code: Vec<_> = found.into_iter().filter(|code| !is_our_own(code.start)).collect();
    if !code.is_empty() {
        trap(&code);
    }
}

/// Installs nothing under a filter of the program's, which would see the installing call.
fn trap(code: &[Range<usize>]) {
    instance::prepare_for_threads();
    if !instance::emulates_signals() || exemption::is_in_force() {
        return;
    }
    if seccomp::install(&seccomp::build_for_callers(code)).is_err() {
        raw::write_stderr(
            b"softswap: a library maps memory by system-call instructions, and the kernel refuses the \
              filter that traps them: this memory is not managed\n",
        );
        return;
    }
    FILTERS.fetch_add(1, Ordering::Relaxed);
}
