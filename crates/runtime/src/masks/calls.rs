//! `sigprocmask` and all that is made of it.

use super::actions::{ON_SIGBUS, ON_SIGSYS};
use super::belief::{self, believed, change_mask};
use super::{INTERNAL, bits, set_bits};
use crate::real::c_result;
use crate::start;
use libc::sigset_t;
use softswap_sys::signals::{self, Action, Mask, SIGBUS, SIGSYS};

/// Calls exec while the kernel blocks, and ignores, what the program believes: what is
/// started finds it as it would without the engine. Returns only where exec has failed.
/// Meanwhile no page can be brought in: `exec` touches none, on a stack that is in memory.
/// A signal is ignored by all threads, so that is for a process which was forked off.
pub(crate) fn as_believed<R>(exec: impl FnOnce() -> R) -> R {
    let local = 0_u8;
    if start::engine().is_none() || start::is_managed(&raw const local as usize) {
        return exec();
    }
    let believed = believed();
    let is_forked = belief::is_forked();
    let ours = [(SIGBUS, &ON_SIGBUS), (SIGSYS, &ON_SIGSYS)]
        .map(|(signal, remembered)| (signal, is_forked && remembered.is_ignored()));
    if believed == 0 && !ours.iter().any(|(_, ignored)| *ignored) {
        return exec();
    }
    let mask = signals::current_mask();
    signals::set_mask(mask | believed);
    // Now it waits in the kernel. The child of a `vfork` has nothing of its parent's.
    if !belief::is_borrowing() {
        belief::release(believed);
    }
    let ignore = Action::new(libc::SIG_IGN, 0, 0);
    let before = ours.map(|(signal, ignored)| {
        // SAFETY: no handler is installed.
        if ignored { unsafe { signals::change_action(signal, Some(&ignore)) }.ok() } else { None }
    });
    let result = exec();
    for ((signal, _), before) in ours.iter().zip(&before) {
        if let Some(before) = before {
            // SAFETY: what was in force: the engine's.
            let _ = unsafe { signals::change_action(*signal, Some(before)) };
        }
    }
    signals::set_mask(mask);
    result
}

/// The mask as the program knows it, where that is not the kernel's.
pub(crate) fn mask_to_pass_on() -> Option<sigset_t> {
    let believed = believed();
    (believed != 0).then(|| super::set_of(signals::current_mask() | believed))
}

/// # Safety
/// As `pthread_sigmask(3)`, whose errors it returns.
unsafe fn change(how: i32, set: *const sigset_t, old: *mut sigset_t) -> Result<(), i32> {
    // SAFETY: the caller's pointer is valid or null.
    let set = unsafe { set.as_ref() }.map(|set| unsafe { bits(set) } & !INTERNAL);
    let before = change_mask(how, set)?;
    // SAFETY: likewise.
    if let Some(old) = unsafe { old.as_mut() } {
        set_bits(old, before);
    }
    Ok(())
}

fn c_outcome(result: Result<(), i32>) -> i32 {
    result.map_or_else(|error| c_result(-(error as isize)) as i32, |()| 0)
}

/// # Safety
/// As `pthread_sigmask(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_sigmask(
    how: i32,
    set: *const sigset_t,
    old: *mut sigset_t,
) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { change(how, set, old) }.err().unwrap_or(0)
}

/// # Safety
/// As `sigprocmask(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigprocmask(how: i32, set: *const sigset_t, old: *mut sigset_t) -> i32 {
    // SAFETY: the caller's promise.
    c_outcome(unsafe { change(how, set, old) })
}

/// The low half of the mask there was, as old programs see it.
fn low_half(result: Result<Mask, i32>) -> i32 {
    result.map_or_else(|error| c_result(-(error as isize)) as i32, |mask| mask as i32)
}

/// As `sigblock(3)`.
#[unsafe(no_mangle)]
pub extern "C" fn sigblock(mask: i32) -> i32 {
    low_half(change_mask(libc::SIG_BLOCK, Some(Mask::from(mask as u32) & !INTERNAL)))
}

/// As `sigsetmask(3)`.
#[unsafe(no_mangle)]
pub extern "C" fn sigsetmask(mask: i32) -> i32 {
    low_half(change_mask(libc::SIG_SETMASK, Some(Mask::from(mask as u32) & !INTERNAL)))
}

/// As `siggetmask(3)`.
#[unsafe(no_mangle)]
pub extern "C" fn siggetmask() -> i32 {
    sigblock(0)
}

fn one(how: i32, signal: i32) -> i32 {
    // The C library's own are no signals to programs.
    if !signals::SIGNALS.contains(&signal) || INTERNAL & signals::bit(signal) != 0 {
        return c_result(-(libc::EINVAL as isize)) as i32;
    }
    c_outcome(change_mask(how, Some(signals::bit(signal))).map(drop))
}

/// As `sighold(3)`.
#[unsafe(no_mangle)]
pub extern "C" fn sighold(signal: i32) -> i32 {
    one(libc::SIG_BLOCK, signal)
}

/// As `sigrelse(3)`.
#[unsafe(no_mangle)]
pub extern "C" fn sigrelse(signal: i32) -> i32 {
    one(libc::SIG_UNBLOCK, signal)
}

/// # Safety
/// As `sigpending(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigpending(set: *mut sigset_t) -> i32 {
    let pending = signals::pending() | belief::held();
    // SAFETY: the caller's pointer is valid.
    set_bits(unsafe { &mut *set }, pending);
    0
}
