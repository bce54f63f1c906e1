//! Objects with system-call instructions of their own: wasmtime and other users of rustix.
//!
//! A seccomp filter traps these calls by the address of the instruction. It is installed once such
//! an object is found, at the start or after `dlopen`, also in a sleeping process.
//!
//! Memory is not managed if an object maps it in its constructors, or if an executable at a fixed
//! address maps it.

use crate::base::instance;
use crate::base::issue_call::is_our_own;
use softswap_sys::alloc::while_blocked;
use softswap_sys::inline_calls::Objects;
use softswap_sys::seccomp::{self, MAX_CALLERS};
use softswap_sys::{exemption, raw};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

static OBJECTS: Mutex<Objects> = Mutex::new(Objects::new());
/// Addresses of the instructions that this module's filters trap.
static TRAPPED: Mutex<Vec<usize>> = Mutex::new(Vec::new());
/// Number of filters that this module has installed, without inherited ones.
static FILTERS: AtomicUsize = AtomicUsize::new(0);
/// Limit with inherited filters. Each filter slows every system call, and the kernel limits their
/// number: the program's and the guard's filters must fit.
const MAX_FILTERS: usize = 8;

pub(crate) fn filters() -> usize {
    FILTERS.load(Ordering::Relaxed)
}

pub(crate) fn skip_loaded() {
    while_blocked(|| OBJECTS.lock().unwrap_or_else(PoisonError::into_inner).skip());
}

pub(crate) fn trap_new_objects() {
    let found = while_blocked(|| OBJECTS.lock().unwrap_or_else(PoisonError::into_inner).find());
    for callers in found {
        if callers.first().is_some_and(|caller| !is_our_own(*caller)) {
            trap(&callers);
        }
    }
}

/// A library may be loaded again at the same address, so an earlier filter may trap it already.
fn trap(callers: &[usize]) {
    let mut trapped = TRAPPED.lock().unwrap_or_else(PoisonError::into_inner);
    if callers.iter().all(|caller| trapped.contains(caller)) {
        return;
    }
    instance::prepare_for_threads();
    if !instance::emulates_signals() {
        return;
    }
    // The program's own filter would judge this call of `seccomp`.
    let is_possible = !exemption::is_in_force()
        && callers.len() <= MAX_CALLERS
        && installed_filters() < MAX_FILTERS;
    if !is_possible || seccomp::install(&seccomp::build_for_callers(callers)).is_err() {
        static IS_REPORTED: AtomicBool = AtomicBool::new(false);
        if !IS_REPORTED.swap(true, Ordering::Relaxed) {
            raw::write_stderr(
                b"softswap: a library issues system calls without the C library, and no seccomp \
                  filter can be installed to trap them; memory that it maps is not managed and does \
                  not count in the budget, and some calls may fail with EFAULT \
                  (share/doc/softswap/limits.md)\n",
            );
        }
        return;
    }
    while_blocked(|| trapped.extend(callers));
    FILTERS.fetch_add(1, Ordering::Relaxed);
}

/// Returns the number of filters in force for this thread; 0 before Linux 5.9.
pub(crate) fn installed_filters() -> usize {
    const LINE: &str = "Seccomp_filters:";
    let status = while_blocked(|| std::fs::read_to_string("/proc/thread-self/status"));
    let status = status.unwrap_or_default();
    let count = status.lines().find_map(|line| line.strip_prefix(LINE)?.trim().parse().ok());
    count.unwrap_or(0)
}
