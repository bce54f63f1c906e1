//! `sigaction` and the functions based on it.

use super::program_actions::{PROGRAM_ACTIONS, remembered};
use super::sets::{INTERNAL, bits, engine_signals, is_for_programs, set_bits, set_of};
use super::virtual_mask;
use super::virtual_mask::is_borrowing;
use super::{handler_entry as entry, handler_frame, pending};
use crate::base::errno::{c_result, refused};
use crate::base::guarded_call::closed;
use crate::base::{filter_verdict, instance};
use libc::sigaction as CAction;
use softswap_sys::signals::{self, Action, Mask, SA_RESTORER};
use std::sync::atomic::{AtomicU64, Ordering};

fn is_function(handler: usize) -> bool {
    !matches!(handler, libc::SIG_DFL | libc::SIG_IGN)
}

/// All functions that change an action call this. `Err` is an error number.
///
/// # Safety
/// The handler is a function, as `sigaction(2)` requires.
pub(crate) unsafe fn change(signal: i32, new: Option<Action>) -> Result<Action, i32> {
    if let Some(refused) =
        filter_verdict::refusal(libc::SYS_rt_sigaction, [signal as usize, 0, 0, 0, 0, 0])
    {
        return Err(-refused as i32);
    }
    if let Some(remembered) = remembered(signal) {
        // The child of a `vfork` has its own handlers, but would store them in its parent's memory.
        let new = new.filter(|_| !is_borrowing());
        let new = new.map(|new| Action { flags: new.flags | SA_RESTORER, ..new });
        let before = remembered.change(new);
        if new.is_some_and(|new| new.handler == libc::SIG_IGN) {
            pending::forget(signal);
        }
        return Ok(before);
    }
    let error_number = |error: std::io::Error| error.raw_os_error().unwrap_or(libc::EINVAL);
    let program_action =
        PROGRAM_ACTIONS.get(signal as usize).filter(|_| instance::emulates_signals());
    let Some(program_action) = program_action else {
        // A handler that is running when the process wakes must return to the runtime's code.
        let new = new.map(|new| Action { restorer: handler_frame::return_address(), ..new });
        // SAFETY: `new` has the program's handler for this signal, or none.
        return unsafe { signals::change_action(signal, new.as_ref()) }.map_err(error_number);
    };
    let before = program_action.get();
    let installed = new.map(|new| {
        if !is_function(new.handler) || is_borrowing() {
            return new;
        }
        program_action.set(&new);
        // A frame cannot be written to a stack that is swapped out (a coroutine's, for example).
        let flags = new.flags | (libc::SA_ONSTACK | libc::SA_SIGINFO) as u64;
        let restorer = handler_frame::return_address();
        Action { restorer, ..Action::new(entry::address(), flags, closed()) }
    });
    // SAFETY: the handler is the runtime's entry, which starts the program's handler.
    match unsafe { signals::change_action(signal, installed.as_ref()) } {
        Ok(old) if old.handler == entry::address() => Ok(before),
        // The kernel has reset the action when it called the handler.
        Ok(old) if old.flags & before.flags & libc::SA_RESETHAND as u32 as u64 != 0 => {
            Ok(Action { handler: old.handler, ..before })
        }
        Ok(old) => Ok(old),
        Err(error) => {
            program_action.set(&before);
            Err(error_number(error))
        }
    }
}

pub(super) fn adopt() {
    for signal in signals::SIGNALS {
        if INTERNAL & signals::bit(signal) == 0
            && engine_signals() & signals::bit(signal) == 0
            && let Ok(action) = signals::action_of(signal)
            && is_function(action.handler)
        {
            // SAFETY: `action` has the program's own handler.
            let _ = unsafe { change(signal, Some(action)) };
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaction(signal: i32, new: *const CAction, old: *mut CAction) -> i32 {
    if !is_for_programs(signal) {
        return c_result(refused(libc::EINVAL)) as i32;
    }
    // The kernel must not access these pointers, because they may be managed.
    // SAFETY: the caller's pointers are valid or null.
    let wanted = unsafe { new.as_ref() }.map(|new| {
        let flags = u64::from(new.sa_flags as u32);
        // SAFETY: `sa_mask` is a valid set.
        Action::new(new.sa_sigaction, flags, unsafe { bits(&raw const new.sa_mask) })
    });
    // SAFETY: the program is responsible for its own handler.
    match unsafe { change(signal, wanted) } {
        Ok(before) => {
            // SAFETY: `old` is null or points to a writable object of the program.
            if let Some(old) = unsafe { old.as_mut() } {
                old.sa_sigaction = before.handler;
                old.sa_flags = before.flags as i32;
                old.sa_mask = set_of(0);
                set_bits(&mut old.sa_mask, before.mask);
            }
            0
        }
        Err(error) => c_result(refused(error)) as i32,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __sigaction(signal: i32, new: *const CAction, old: *mut CAction) -> i32 {
    // SAFETY: another name of this function; the arguments are the program's.
    unsafe { sigaction(signal, new, old) }
}

/// Installs a handler. Returns the previous one, or `SIG_ERR`. Safety: as `signal(2)`.
unsafe fn install(signal: i32, handler: usize, flags: i32, mask: Mask) -> usize {
    if handler == libc::SIG_ERR || !is_for_programs(signal) {
        return c_result(refused(libc::EINVAL)) as usize;
    }
    let action = Action::new(handler, u64::from(flags as u32), mask);
    // SAFETY: the program is responsible for its own handler.
    match unsafe { change(signal, Some(action)) } {
        Ok(before) => before.handler,
        Err(error) => c_result(refused(error)) as usize,
    }
}

/// Signals whose handlers interrupt system calls, as set by `siginterrupt`.
static INTERRUPTING: AtomicU64 = AtomicU64::new(0);

/// # Safety
/// The rules of `signal(2)` apply, with glibc's BSD semantics.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn signal(number: i32, handler: usize) -> usize {
    let own = if is_for_programs(number) { signals::bit(number) } else { 0 };
    let interrupts = INTERRUPTING.load(Ordering::Relaxed) & own != 0;
    // SAFETY: the program is responsible for its own handler.
    unsafe { install(number, handler, if interrupts { 0 } else { libc::SA_RESTART }, own) }
}

macro_rules! also_named {
    ($of:ident: $($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(number: i32, handler: usize) -> usize {
            // SAFETY: another name of this function; the arguments are the program's.
            unsafe { $of(number, handler) }
        }
    )*};
}

also_named!(signal: bsd_signal ssignal);
also_named!(sysv_signal: __sysv_signal);

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sysv_signal(number: i32, handler: usize) -> usize {
    // SAFETY: the program is responsible for its own handler.
    unsafe { install(number, handler, libc::SA_RESETHAND | libc::SA_NODEFER, 0) }
}

const HOLD: usize = 2;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigset(number: i32, disposition: usize) -> usize {
    if !is_for_programs(number) {
        return c_result(refused(libc::EINVAL)) as usize;
    }
    let own = signals::bit(number);
    let holds = disposition == HOLD;
    let action = (!holds).then(|| Action::new(disposition, 0, 0));
    // SAFETY: the program is responsible for its own handler.
    let before = match unsafe { change(number, action) } {
        Ok(before) => before,
        Err(error) => return c_result(refused(error)) as usize,
    };
    let how = if holds { libc::SIG_BLOCK } else { libc::SIG_UNBLOCK };
    match virtual_mask::change_mask(how, Some(own)) {
        Ok(mask) if mask & own != 0 => HOLD,
        Ok(_) => before.handler,
        Err(error) => c_result(refused(error)) as usize,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigignore(number: i32) -> i32 {
    // SAFETY: no handler is installed.
    if unsafe { install(number, libc::SIG_IGN, 0, 0) } == libc::SIG_ERR { -1 } else { 0 }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn siginterrupt(number: i32, interrupts: i32) -> i32 {
    if !is_for_programs(number) {
        return c_result(refused(libc::EINVAL)) as i32;
    }
    // SAFETY: the first call changes nothing; the second installs the program's own handler.
    let result = unsafe { change(number, None) }.and_then(|mut action| {
        let restart = libc::SA_RESTART as u64;
        if interrupts == 0 {
            INTERRUPTING.fetch_and(!signals::bit(number), Ordering::Relaxed);
            action.flags |= restart;
        } else {
            INTERRUPTING.fetch_or(signals::bit(number), Ordering::Relaxed);
            action.flags &= !restart;
        }
        // SAFETY: `action` has the program's own handler.
        unsafe { change(number, Some(action)) }
    });
    result.map_or_else(|error| c_result(refused(error)) as i32, |_| 0)
}
