//! The alternate signal stack as the program has set it by `sigaltstack`. The kernel has the
//! engine's, on which every signal arrives; the frames of the program's handlers are put where
//! they would be without the engine.

use crate::base::errno::refused;
use crate::base::signal_stack;
use libc::stack_t;
use softswap_sys::raw;
use std::cell::Cell;
use std::ops::Range;

const DISABLED: stack_t =
    stack_t { ss_sp: std::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };

/// The smallest stack that the kernel takes.
const SMALLEST: usize = 2048;
/// A flag that may come with any mode: <linux/signal.h>.
const AUTODISARM: i32 = 1 << 31;
/// Bytes below the stack pointer that a function may use.
const RED_ZONE: usize = 128;

thread_local! {
    /// The alternate stack that this thread has, as the program knows it.
    static PROGRAMS: Cell<stack_t> = const { Cell::new(DISABLED) };
}

/// The alternate stack that the kernel knows.
pub(crate) fn in_force() -> stack_t {
    let mut stack = DISABLED;
    // SAFETY: the kernel writes to a local, and changes nothing.
    unsafe { raw::syscall(libc::SYS_sigaltstack, [0, &raw mut stack as usize, 0, 0, 0, 0]) };
    stack
}

/// The program had set this stack before signals were emulated.
pub(crate) fn remember(stack: stack_t) {
    if stack.ss_flags & libc::SS_DISABLE == 0 {
        PROGRAMS.set(stack);
    }
}

fn addresses(stack: &stack_t) -> Range<usize> {
    let start = stack.ss_sp as usize;
    start..start.saturating_add(stack.ss_size)
}

/// Returns true if a stack pointer is on the stack, as the kernel sees it.
fn is_on(stack: &stack_t, pointer: usize) -> bool {
    let Range { start, end } = addresses(stack);
    stack.ss_flags & AUTODISARM == 0 && pointer > start && pointer <= end
}

/// Where a handler's frame goes.
pub(super) struct Place {
    /// The address below which the stack is free.
    pub(super) top: usize,
    /// The frame must be within these addresses.
    pub(super) within: Option<Range<usize>>,
}

/// Returns the place for the frame of a handler that interrupts a thread at `pointer`, on the
/// alternate stack if it `wants` that and there is one.
pub(super) fn place(pointer: usize, wants: bool) -> Place {
    let own = PROGRAMS.get();
    let stack = signal_stack::lent().filter(|_| own.ss_size == 0).unwrap_or(own);
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

/// Puts the stack of a context in force whose stack pointer is `pointer`.
pub(super) fn restore(stack: stack_t, pointer: usize) {
    // The kernel ignores errors here.
    let _ = exchange(Some(stack), pointer);
}

/// Sets the stack, if there is a new one, for a thread at `pointer`, as `sigaltstack(2)`. Returns
/// the stack before, or the kernel's error.
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
