//! `sigaltstack`: handlers run on the engine's stack, which is larger, never out, and there
//! for every thread. What the program sets is remembered, and told as the kernel would.

use super::by_number::{read, write};
use crate::filters;
use crate::guard::Arguments;
use crate::pins;
use crate::real::c_result;
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
    /// The alternate stack that this thread believes it has.
    static BELIEVED: Cell<stack_t> = const { Cell::new(DISABLED) };
    /// A handler that believes to run there: its context, which its frames lie below.
    static HANDLER: Cell<usize> = const { Cell::new(0) };
}

/// A handler begins, on the alternate stack if it `wants` that and there is one.
///
/// # Safety
/// `context` is the handler's.
pub(super) unsafe fn begin(context: *const c_void, wants: bool) {
    // SAFETY: the caller's promise.
    let interrupted = unsafe { signals::interrupted_stack(context) };
    // What it has interrupted may be there already. Otherwise what is noted may be a
    // handler that was left by a jump.
    if !is_there(interrupted) {
        let is_set = BELIEVED.get().ss_size != 0;
        HANDLER.set(if wants && is_set { context as usize } else { 0 });
    }
}

/// Whether who runs at an address believes to be on the alternate stack.
fn is_there(address: usize) -> bool {
    address < HANDLER.get() && pins::is_on_signal_stack(address)
}

fn answer(arguments: Arguments) -> isize {
    if let Some(refused) = filters::refusal(libc::SYS_sigaltstack, arguments) {
        return refused;
    }
    let [new, old, ..] = arguments;
    let local = 0_u8;
    let is_on = is_there(&raw const local as usize);
    let new = match read(new, DISABLED) {
        Ok(new) => new,
        Err(error) => return error,
    };
    let mut before = BELIEVED.get();
    if let Some(mut new) = new {
        let mode = new.ss_flags & !AUTODISARM;
        if is_on {
            return -(libc::EPERM as isize);
        }
        if !matches!(mode, 0 | libc::SS_DISABLE | libc::SS_ONSTACK) {
            return -(libc::EINVAL as isize);
        }
        if mode == libc::SS_DISABLE {
            new = DISABLED;
        } else if new.ss_size < SMALLEST {
            return -(libc::ENOMEM as isize);
        }
        BELIEVED.set(new);
    }
    before.ss_flags &= AUTODISARM;
    before.ss_flags |= match before.ss_size {
        0 => libc::SS_DISABLE,
        _ if is_on => libc::SS_ONSTACK,
        _ => 0,
    };
    write(old, before)
}

/// What answers for the call by its number.
pub(super) fn room() -> Option<fn(Arguments) -> isize> {
    pins::has_signal_stack().then_some(answer)
}

/// # Safety
/// As `sigaltstack(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaltstack(new: *const stack_t, old: *mut stack_t) -> i32 {
    let arguments = [new as usize, old as usize, 0, 0, 0, 0];
    let result = match room() {
        Some(answer) => answer(arguments),
        // SAFETY: the caller's promise.
        None => unsafe { raw::syscall(libc::SYS_sigaltstack, arguments) },
    };
    c_result(result) as i32
}
