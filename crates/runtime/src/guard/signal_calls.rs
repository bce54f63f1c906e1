//! Signal calls issued by number: through `syscall`, or trapped for pointers to managed memory.

use super::stripped_mask::StrippedMask;
use crate::base::errno::{c_result, refused};
use crate::base::issue_call::{Answer, Arguments, pass_on};
use crate::base::{filter_verdict, instance, signal_stack, uaccess};
use crate::signals::virtual_mask::{change_interrupted, change_mask};
use crate::signals::{alternate_stack, sigaction, virtual_mask};
use libc::stack_t;
use softswap_sys::signals::{self, Action, Context, Mask};
use softswap_sys::{AnyBits, raw};

const FAULT: isize = refused(libc::EFAULT);
const INVALID: isize = refused(libc::EINVAL);

/// Reads a value at a pointer of the program; `None` for a null pointer.
fn read<T: AnyBits>(address: usize) -> Result<Option<T>, isize> {
    if address == 0 {
        return Ok(None);
    }
    uaccess::get_user(address).map(Some).ok_or(FAULT)
}

fn write<T: Copy>(address: usize, value: T) -> isize {
    if address == 0 || uaccess::put_user(address, value) { 0 } else { FAULT }
}

fn or_error<T>(result: Result<T, isize>, then: impl FnOnce(T) -> isize) -> isize {
    result.map_or_else(|error| error, then)
}

fn rt_sigaction([signal, new, old, len, ..]: Arguments) -> isize {
    if len != size_of::<Mask>() {
        return INVALID;
    }
    or_error(read::<Action>(new), |new| {
        // SAFETY: the program is responsible for its own handler.
        let changed = unsafe { sigaction::change(signal as i32, new) };
        or_error(changed.map_err(refused), |before| write(old, before))
    })
}

fn rt_sigprocmask([how, set, old, len, ..]: Arguments, interrupted: Option<Context<'_>>) -> isize {
    if len != size_of::<Mask>() {
        return INVALID;
    }
    or_error(read::<Mask>(set), |set| {
        let changed = match interrupted {
            Some(context) => change_interrupted(context, how as i32, set),
            None => change_mask(how as i32, set),
        };
        or_error(changed.map_err(refused), |before: Mask| write(old, before))
    })
}

fn rt_sigpending([set, len, ..]: Arguments) -> isize {
    let pending = signals::pending() | virtual_mask::held();
    match len {
        8 => write(set, pending),
        _ => INVALID,
    }
}

fn sigaltstack_by_number(arguments: Arguments) -> isize {
    let local = 0_u8;
    sigaltstack_at(arguments, &raw const local as usize)
}

/// `sigaltstack(2)`, called by a thread whose stack pointer is `pointer`.
fn sigaltstack_at(arguments: Arguments, pointer: usize) -> isize {
    if let Some(refused) = filter_verdict::refusal(libc::SYS_sigaltstack, arguments) {
        return refused;
    }
    let [new, old, ..] = arguments;
    or_error(read::<stack_t>(new), |new| {
        or_error(alternate_stack::exchange(new, pointer), |before| write(old, before))
    })
}

fn answer_for_stack() -> Option<Answer> {
    signal_stack::exists().then_some(sigaltstack_by_number)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaltstack(new: *const stack_t, old: *mut stack_t) -> i32 {
    let arguments = [new as usize, old as usize, 0, 0, 0, 0];
    let result = match answer_for_stack() {
        Some(answer) => answer(arguments),
        // SAFETY: the kernel accesses the program's pointers, or rejects them.
        None => unsafe { raw::syscall(libc::SYS_sigaltstack, arguments) },
    };
    c_result(result) as i32
}

fn with_stripped(number: i64, mut arguments: Arguments) -> isize {
    let mut stripped = StrippedMask::new();
    stripped.substitute(number, &mut arguments);
    pass_on(number, arguments)
}

macro_rules! waiting {
    ($($name:ident)*) => {$(
        #[allow(non_snake_case, reason = "the call's name")]
        mod $name {
            pub(super) fn handle(arguments: crate::base::issue_call::Arguments) -> isize {
                super::with_stripped(libc::$name, arguments)
            }
        }
    )*};
}

waiting! { SYS_rt_sigsuspend SYS_ppoll SYS_pselect6 SYS_epoll_pwait SYS_epoll_pwait2 }

pub(crate) fn answer_for(number: i64) -> Option<Answer> {
    // Also while asleep: the handler must return to the runtime's code if the process wakes.
    if number == libc::SYS_rt_sigaction && instance::is_asleep() {
        return Some(rt_sigaction);
    }
    if !instance::emulates_signals() {
        return None;
    }
    Some(match number {
        libc::SYS_rt_sigaction => rt_sigaction,
        libc::SYS_rt_sigprocmask => |arguments| rt_sigprocmask(arguments, None),
        libc::SYS_rt_sigpending => rt_sigpending,
        libc::SYS_rt_sigsuspend => SYS_rt_sigsuspend::handle,
        libc::SYS_ppoll => SYS_ppoll::handle,
        libc::SYS_pselect6 => SYS_pselect6::handle,
        libc::SYS_epoll_pwait => SYS_epoll_pwait::handle,
        libc::SYS_epoll_pwait2 => SYS_epoll_pwait2::handle,
        libc::SYS_sigaltstack => return answer_for_stack(),
        _ => return None,
    })
}

/// A new mask is stored in `context`, from which the return of the SIGSYS handler restores it.
pub(crate) fn answer_trapped(
    number: i64,
    arguments: Arguments,
    context: Context<'_>,
) -> Option<isize> {
    Some(match number {
        libc::SYS_rt_sigaction => rt_sigaction(arguments),
        libc::SYS_rt_sigpending => rt_sigpending(arguments),
        libc::SYS_rt_sigprocmask => rt_sigprocmask(arguments, Some(context)),
        libc::SYS_sigaltstack if signal_stack::exists() => {
            sigaltstack_at(arguments, context.stack())
        }
        _ => return None,
    })
}
