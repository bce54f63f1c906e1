//! The alternate signal stack: handlers run on the engine's, which is larger, never out, and
//! there for every thread. What the program sets by `sigaltstack` is remembered, and told as
//! the kernel would.

use crate::base::errno::refused;
use crate::base::signal_stack;
use libc::stack_t;
use softswap_sys::{raw, signals};
use std::cell::Cell;
use std::ffi::c_void;

const DISABLED: stack_t =
    stack_t { ss_sp: std::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };

/// The smallest stack that the kernel takes.
const SMALLEST: usize = 2048;
/// A flag that may come with any mode: <linux/signal.h>.
const AUTODISARM: i32 = 1 << 31;

thread_local! {
    /// The alternate stack that this thread has, as the program knows it.
    static PROGRAMS: Cell<stack_t> = const { Cell::new(DISABLED) };
    /// A handler that runs there, as the program knows it: its context, which its frames lie below.
    static HANDLER: Cell<usize> = const { Cell::new(0) };
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

/// A handler begins, on the alternate stack if it `wants` that and there is one.
///
/// # Safety
/// `context` is the handler's.
pub(super) unsafe fn begin(context: *const c_void, wants: bool) {
    // SAFETY: a context that the kernel made for the running handler.
    let interrupted = unsafe { signals::interrupted_stack(context) };
    // What it has interrupted may be there already. Otherwise what is noted may be a
    // handler that was left by a jump.
    if !is_there(interrupted) {
        let is_set = PROGRAMS.get().ss_size != 0;
        HANDLER.set(if wants && is_set { context as usize } else { 0 });
    }
}

/// Whether an address is on the alternate stack, as the program knows it.
fn is_there(address: usize) -> bool {
    address < HANDLER.get() && signal_stack::contains(address)
}

/// What `sigaltstack(2)` does: the stack there was, and the new one from now on; or the
/// kernel's error.
pub(crate) fn exchange(new: Option<stack_t>) -> Result<stack_t, isize> {
    let local = 0_u8;
    let is_on = is_there(&raw const local as usize);
    let mut before = PROGRAMS.get();
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
