//! `sigprocmask` and the functions based on it.

use super::sets::{INTERNAL, bits, is_for_programs, set_bits};
use super::virtual_mask;
use super::virtual_mask::change_mask;
use crate::base::errno::{c_result, refused};
use libc::sigset_t;
use softswap_sys::signals::{self, Mask};

unsafe fn change(how: i32, set: *const sigset_t, old: *mut sigset_t) -> Result<(), i32> {
    // SAFETY: the caller's pointer is valid or null.
    let set = unsafe { set.as_ref() }.map(|set| unsafe { bits(set) } & !INTERNAL);
    let before = change_mask(how, set)?;
    // SAFETY: `old` is null, or space for a set of the program.
    if let Some(old) = unsafe { old.as_mut() } {
        set_bits(old, before);
    }
    Ok(())
}

fn c_outcome(result: Result<(), i32>) -> i32 {
    result.map_or_else(|error| c_result(refused(error)) as i32, |()| 0)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_sigmask(
    how: i32,
    set: *const sigset_t,
    old: *mut sigset_t,
) -> i32 {
    // SAFETY: `set` and `old` are sets of the program, valid or null.
    unsafe { change(how, set, old) }.err().unwrap_or(0)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigprocmask(how: i32, set: *const sigset_t, old: *mut sigset_t) -> i32 {
    // SAFETY: `set` and `old` are sets of the program, valid or null.
    c_outcome(unsafe { change(how, set, old) })
}

/// Returns the low half of the previous mask, for the old interfaces.
fn low_half(result: Result<Mask, i32>) -> i32 {
    result.map_or_else(|error| c_result(refused(error)) as i32, |mask| mask as i32)
}

#[unsafe(no_mangle)]
pub extern "C" fn sigblock(mask: i32) -> i32 {
    low_half(change_mask(libc::SIG_BLOCK, Some(Mask::from(mask as u32) & !INTERNAL)))
}

#[unsafe(no_mangle)]
pub extern "C" fn sigsetmask(mask: i32) -> i32 {
    low_half(change_mask(libc::SIG_SETMASK, Some(Mask::from(mask as u32) & !INTERNAL)))
}

#[unsafe(no_mangle)]
pub extern "C" fn siggetmask() -> i32 {
    sigblock(0)
}

fn one(how: i32, signal: i32) -> i32 {
    if !is_for_programs(signal) {
        return c_result(refused(libc::EINVAL)) as i32;
    }
    c_outcome(change_mask(how, Some(signals::bit(signal))).map(drop))
}

#[unsafe(no_mangle)]
pub extern "C" fn sighold(signal: i32) -> i32 {
    one(libc::SIG_BLOCK, signal)
}

#[unsafe(no_mangle)]
pub extern "C" fn sigrelse(signal: i32) -> i32 {
    one(libc::SIG_UNBLOCK, signal)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigpending(set: *mut sigset_t) -> i32 {
    let pending = signals::pending() | virtual_mask::held();
    // SAFETY: the caller's pointer is valid.
    set_bits(unsafe { &mut *set }, pending);
    0
}
