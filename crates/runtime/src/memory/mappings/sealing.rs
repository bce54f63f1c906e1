//! `mseal`: calls that unmap, move, protect or empty a sealed range fail with EPERM.
//!
//! The runtime never lets the kernel seal managed memory, because the kernel would then refuse the
//! engine's evictions, too. Instead the engine stores the seals ([`Engine::seal`]).

use crate::base::errno::{refused, result_of};
use crate::base::instance;
use crate::base::issue_call::{Arguments, answered_by, issue};
use softswap_engine::api::engine::Engine;
use softswap_engine::memory::address_space::Kind;
use softswap_sys::{PAGE_SIZE, signals};
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

/// Set once a range in the window is sealed. Children inherit the flag with the seals.
static ANY_SEALED: AtomicBool = AtomicBool::new(false);

/// Returns true for advice that changes the content of memory, here or in a child.
pub(super) fn discards(advice: i32) -> bool {
    matches!(
        advice,
        libc::MADV_DONTNEED
            | libc::MADV_FREE
            | libc::MADV_REMOVE
            | libc::MADV_DONTFORK
            | libc::MADV_WIPEONFORK
            | libc::MADV_DONTNEED_LOCKED
    )
}

/// First page that is sealed against [`discards`]: a sealed page that is not writable.
pub(super) fn first_kept(engine: &Engine, address: usize, len: usize) -> Option<usize> {
    let is_sound = ANY_SEALED.load(Ordering::Relaxed) && address.is_multiple_of(PAGE_SIZE);
    if is_sound && len > 0 { engine.first_kept(address, len) } else { None }
}

/// Seals a range of the window, after Linux's checks in Linux's order.
pub(super) fn seal(engine: &Engine, address: usize, len: usize, flags: usize) -> isize {
    // The kernel may lack the call.
    let known = issue(libc::SYS_mseal, [0, 0, flags, 0, 0, 0]);
    if known < 0 {
        return known;
    }
    let whole = len.wrapping_add(PAGE_SIZE - 1) & !(PAGE_SIZE - 1);
    let is_sound = address.is_multiple_of(PAGE_SIZE) && (whole > 0 || len == 0);
    if !is_sound || address.checked_add(whole).is_none() {
        return refused(libc::EINVAL);
    }
    let parts = signals::with_all_blocked(|| engine.segments(address, whole));
    let covered: usize = parts.iter().map(|(_, len, _)| len).sum();
    if covered < whole || parts.iter().any(|(.., kind)| *kind == Kind::Hole) {
        return refused(libc::ENOMEM);
    }
    for (start, len, kind) in parts {
        let result = match kind {
            Kind::Managed => result_of(signals::with_all_blocked(|| engine.seal(start, len))),
            _ => issue(libc::SYS_mseal, [start, len, 0, 0, 0, 0]),
        };
        if result < 0 {
            return result;
        }
        ANY_SEALED.store(true, Ordering::Relaxed);
    }
    0
}

/// Seals a range inside or outside the window, for calls through the C library.
pub(super) fn seal_any(arguments: Arguments) -> isize {
    let [address, len, flags, ..] = arguments;
    if instance::is_in_window(address) {
        instance::awake();
    }
    match instance::engine() {
        Some(engine) if engine.contains(address) => seal(engine, address, len, flags),
        // An engine that starts later could not evict memory that the kernel has sealed.
        None if instance::is_in_window(address) && instance::may_wake() => refused(libc::ENOSYS),
        _ => issue(libc::SYS_mseal, arguments),
    }
}

answered_by! {
    mseal(address: *mut c_void, len: usize, flags: libc::c_ulong) -> i32: seal_any;
}
