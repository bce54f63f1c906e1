//! The mask that a call installs while it waits (`sigsuspend`, `ppoll`).
//!
//! A handler that interrupts such a call runs with the call's mask and its own, but its context
//! contains the thread's mask. The kernel blocks all signals when it delivers one to the runtime's
//! entry, so the call's mask would be lost. Therefore it is recorded here.

use crate::base::errno::refused;
use softswap_sys::signals::{Context, Mask};
use std::cell::Cell;

thread_local! {
    /// The mask, and a stack address below which the call's frame is.
    static RECORDED: Cell<Option<(Mask, usize)>> = const { Cell::new(None) };
}

/// Maximum distance of the call's frame above [`record`]'s, in bytes.
const FRAME_BYTES: usize = 4 << 10;
/// Maximum distance of the call below the recorded address, in bytes.
const CALL_BYTES: usize = 64 << 10;

pub(crate) fn record(mask: Mask) {
    let local = 0_u8;
    RECORDED.set(Some((mask, &raw const local as usize + FRAME_BYTES)));
}

pub(crate) fn forget() {
    RECORDED.set(None);
}

pub(super) fn take(context: Context<'_>) -> Option<Mask> {
    let (mask, above) = RECORDED.take()?;
    let stack = context.stack();
    let is_near = stack < above && above - stack < CALL_BYTES;
    let was_interrupted = context.register(libc::REG_RAX) as isize == refused(libc::EINTR);
    (is_near && was_interrupted).then_some(mask)
}
