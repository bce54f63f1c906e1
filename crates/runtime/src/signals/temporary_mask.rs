//! The mask that a call installs while it waits (`sigsuspend`, `ppoll`).
//!
//! A handler that interrupts such a call runs with the call's mask and its own, but its context
//! contains the thread's mask. The kernel blocks all signals when it delivers one to the runtime's
//! entry, so the call's mask would be lost. Therefore it is recorded here.

use softswap_sys::signals::{self, Mask};
use std::cell::Cell;
use std::ffi::c_void;

thread_local! {
    /// The mask, and a stack address below which the call's frame is.
    static RECORDED: Cell<Option<(Mask, usize)>> = const { Cell::new(None) };
}

/// Maximum distance of the call's frame above [`record`]'s, in bytes.
const FRAME_BYTES: usize = 4 << 10;
/// Maximum distance of the call below the recorded address, in bytes.
const CALL_BYTES: usize = 64 << 10;

/// Records the mask of a call that this thread is about to issue.
pub(crate) fn record(mask: Mask) {
    let local = 0_u8;
    RECORDED.set(Some((mask, &raw const local as usize + FRAME_BYTES)));
}

pub(crate) fn forget() {
    RECORDED.set(None);
}

/// Takes the recorded mask if `context` is that of the interrupted call.
///
/// # Safety
/// `context` is the context of the running handler.
pub(super) unsafe fn take(context: *const c_void) -> Option<Mask> {
    const INTERRUPTED: i64 = -(libc::EINTR as i64);
    let (mask, above) = RECORDED.take()?;
    // SAFETY: `context` is that of the running handler, a `ucontext_t`.
    let registers = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    // SAFETY: `context` is that of the running handler.
    let stack = unsafe { signals::interrupted_stack(context) };
    let is_near = stack < above && above - stack < CALL_BYTES;
    (is_near && registers[libc::REG_RAX as usize] == INTERRUPTED).then_some(mask)
}
