//! The alternate signal stack that the program has set by `sigaltstack`. The kernel has the
//! engine's stack instead, on which every signal is delivered. The frames of the program's handlers
//! are written to the stack that Linux would use.

use crate::base::errno::refused;
use crate::base::signal_stack;
use libc::stack_t;
use softswap_sys::raw;
use std::cell::Cell;
use std::ops::Range;

const DISABLED: stack_t =
    stack_t { ss_sp: std::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };

/// Smallest stack that the kernel accepts.
const SMALLEST: usize = 2048;
/// Flag that is allowed with any mode: <linux/signal.h>.
const AUTODISARM: i32 = 1 << 31;
/// Bytes below the stack pointer that a function may use.
const RED_ZONE: usize = 128;

thread_local! {
    /// This thread's alternate stack, as the program knows it.
    static PROGRAMS: Cell<stack_t> = const { Cell::new(DISABLED) };
}

/// Returns the alternate stack that the kernel has.
pub(crate) fn in_force() -> stack_t {
    let mut stack = DISABLED;
    // SAFETY: the kernel writes to a local and changes nothing.
    unsafe { raw::syscall(libc::SYS_sigaltstack, [0, &raw mut stack as usize, 0, 0, 0, 0]) };
    stack
}

/// Stores a stack that the program had set before signals were emulated.
pub(crate) fn remember(stack: stack_t) {
    if stack.ss_flags & libc::SS_DISABLE == 0 {
        PROGRAMS.set(stack);
    }
}

fn addresses(stack: &stack_t) -> Range<usize> {
    let start = stack.ss_sp as usize;
    start..start.saturating_add(stack.ss_size)
}

/// Returns true if a stack pointer is on the stack, by the kernel's rules.
fn is_on(stack: &stack_t, pointer: usize) -> bool {
    let Range { start, end } = addresses(stack);
    stack.ss_flags & AUTODISARM == 0 && pointer > start && pointer <= end
}

/// Stack space for a handler's frame.
pub(super) struct Place {
    /// Address below which the stack is free.
    pub(super) top: usize,
    /// Addresses that the frame must not exceed.
    pub(super) within: Option<Range<usize>>,
}

/// Returns the space for the frame of a handler that interrupts a thread at `pointer`: on the
/// alternate stack if `wants` is true and the program has set one.
pub(super) fn place(pointer: usize, wants: bool) -> Place {
    let own = PROGRAMS.get();
    let stack = signal_stack::program_half().filter(|_| own.ss_size == 0).unwrap_or(own);
    let is_nested = is_on(&stack, pointer);
    let is_entered = wants && stack.ss_size != 0 && !is_nested;
    let addresses = addresses(&stack);
    let top = if is_entered { addresses.end } else { pointer.wrapping_sub(RED_ZONE) };
    Place { top, within: (is_nested || is_entered).then_some(addresses) }
}

/// Returns the stack for a handler's context, and disables it if the program has set SS_AUTODISARM.
pub(super) fn save() -> stack_t {
    let stack = PROGRAMS.get();
    if stack.ss_flags & AUTODISARM != 0 {
        PROGRAMS.set(DISABLED);
    }
    stack
}

/// Restores the stack of a context whose stack pointer is `pointer`.
pub(super) fn restore(stack: stack_t, pointer: usize) {
    // The kernel ignores errors here, too.
    let _ = exchange(Some(stack), pointer);
}

/// Sets the stack, if `new` is given, for a thread at `pointer`, as `sigaltstack(2)`. Returns the
/// previous stack, or the kernel's error.
pub(crate) fn exchange(new: Option<stack_t>, pointer: usize) -> Result<stack_t, isize> {
    let mut before = PROGRAMS.get();
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
        PROGRAMS.set(new);
    }
    before.ss_flags &= AUTODISARM;
    before.ss_flags |= match before.ss_size {
        0 => libc::SS_DISABLE,
        _ if is_on => libc::SS_ONSTACK,
        _ => 0,
    };
    Ok(before)
}
