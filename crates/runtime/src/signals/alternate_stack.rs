//! The alternate signal stack that the program has set by `sigaltstack`.
//!
//! In the kernel the engine's stack is set instead, and every signal is delivered on it. The frames
//! of the program's handlers are written to the stack that Linux would use.

use crate::base::errno::refused;
use crate::base::signal_stack;
use libc::stack_t;
use softswap_sys::raw;
use std::cell::Cell;
use std::ops::Range;

const DISABLED: stack_t =
    stack_t { ss_sp: std::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };

/// Size in bytes of the smallest stack that the kernel accepts.
const SMALLEST: usize = 2048;
/// Flag that is allowed with any mode: <linux/signal.h>.
const AUTODISARM: i32 = 1 << 31;
/// Bytes below the stack pointer that a function may use without moving it.
const RED_ZONE: usize = 128;

thread_local! {
    static PROGRAM_STACK: Cell<stack_t> = const { Cell::new(DISABLED) };
}

pub(crate) fn in_force() -> stack_t {
    let mut stack = DISABLED;
    // SAFETY: the kernel writes to a local and changes nothing.
    unsafe { raw::syscall(libc::SYS_sigaltstack, [0, &raw mut stack as usize, 0, 0, 0, 0]) };
    stack
}

/// Stores a stack that the program had set before signals were emulated.
pub(crate) fn remember(stack: stack_t) {
    if stack.ss_flags & libc::SS_DISABLE == 0 {
        PROGRAM_STACK.set(stack);
    }
}

fn addresses(stack: &stack_t) -> Range<usize> {
    let start = stack.ss_sp as usize;
    start..start.saturating_add(stack.ss_size)
}

/// Returns true if the kernel would consider a stack pointer to be on the stack.
fn is_on(stack: &stack_t, pointer: usize) -> bool {
    let Range { start, end } = addresses(stack);
    stack.ss_flags & AUTODISARM == 0 && pointer > start && pointer <= end
}

pub(super) struct FrameSpace {
    /// Address below which the stack is free.
    pub(super) top: usize,
    /// Addresses that must contain the frame, if it is on an alternate stack.
    pub(super) within: Option<Range<usize>>,
}

/// The frame is at the top of the alternate stack if `wants_alternate`, one is set, and the thread
/// is not on it; otherwise below `pointer`. If none is set, [`signal_stack::program_half`] is used.
pub(super) fn frame_space(pointer: usize, wants_alternate: bool) -> FrameSpace {
    let own = PROGRAM_STACK.get();
    let stack = signal_stack::program_half().filter(|_| own.ss_size == 0).unwrap_or(own);
    let is_nested = is_on(&stack, pointer);
    let is_entered = wants_alternate && stack.ss_size != 0 && !is_nested;
    let addresses = addresses(&stack);
    let top = if is_entered { addresses.end } else { pointer.wrapping_sub(RED_ZONE) };
    FrameSpace { top, within: (is_nested || is_entered).then_some(addresses) }
}

/// Returns the stack for a handler's context, and applies SS_AUTODISARM.
pub(super) fn save() -> stack_t {
    let stack = PROGRAM_STACK.get();
    if stack.ss_flags & AUTODISARM != 0 {
        PROGRAM_STACK.set(DISABLED);
    }
    stack
}

/// Sets the stack that a handler's context contains. `pointer` is the stack pointer of the context.
pub(super) fn restore(stack: stack_t, pointer: usize) {
    // The kernel ignores errors here, too.
    let _ = exchange(Some(stack), pointer);
}

/// Emulates `sigaltstack(2)` for a thread whose stack pointer is `pointer`.
pub(crate) fn exchange(new: Option<stack_t>, pointer: usize) -> Result<stack_t, isize> {
    let mut before = PROGRAM_STACK.get();
    let is_on = is_on(&before, pointer);
    if let Some(mut new) = new {
        let mode = new.ss_flags & !AUTODISARM;
        if is_on {
            return Err(refused(libc::EPERM));
        }
        if !matches!(mode, 0 | libc::SS_DISABLE | libc::SS_ONSTACK) {
            return Err(refused(libc::EINVAL));
        }
        if mode == libc::SS_DISABLE {
            new = DISABLED;
        } else if new.ss_size < SMALLEST {
            return Err(refused(libc::ENOMEM));
        }
        PROGRAM_STACK.set(new);
    }
    before.ss_flags &= AUTODISARM;
    before.ss_flags |= match before.ss_size {
        0 => libc::SS_DISABLE,
        _ if is_on => libc::SS_ONSTACK,
        _ => 0,
    };
    Ok(before)
}
