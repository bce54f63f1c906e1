//! The mask that a call puts in force while it waits (`sigsuspend`, `ppoll`).
//!
//! A handler that such a call is interrupted by runs with that mask and its own, but its context
//! has the thread's. The kernel blocks all signals when it delivers one to the runtime, so the
//! mask that the call has put in force is noted here.

use softswap_sys::signals::{self, Mask};
use std::cell::Cell;
use std::ffi::c_void;

thread_local! {
    /// The mask, and an address on the stack below which the call is made.
    static NOTED: Cell<Option<(Mask, usize)>> = const { Cell::new(None) };
}

/// The frame of the call is within this many bytes above [`note`]'s.
const NOTE_BYTES: usize = 4 << 10;
/// The call is made within this many bytes of the note.
const CALL_BYTES: usize = 64 << 10;

/// A call that this thread is about to make puts `mask` in force.
pub(crate) fn note(mask: Mask) {
    let local = 0_u8;
    NOTED.set(Some((mask, &raw const local as usize + NOTE_BYTES)));
}

/// The call has returned.
pub(crate) fn forget() {
    NOTED.set(None);
}

/// Takes the mask that is in force if `context` is that of a call which was interrupted.
///
/// # Safety
/// `context` is what the running handler was given.
pub(super) unsafe fn take(context: *const c_void) -> Option<Mask> {
    const INTERRUPTED: i64 = -(libc::EINTR as i64);
    let (mask, above) = NOTED.take()?;
    // SAFETY: a handler's context is a `ucontext_t`.
    let registers = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    // SAFETY: the same context.
    let stack = unsafe { signals::interrupted_stack(context) };
    let is_near = stack < above && above - stack < CALL_BYTES;
    (is_near && registers[libc::REG_RAX as usize] == INTERRUPTED).then_some(mask)
}
