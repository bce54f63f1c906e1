//! `close` and its relatives: the engine's descriptors stay open.
//!
//! To the program it looks as if they had been closed: it did not open them
//! and will not use them.

use crate::guard::issue;
use crate::real::{c_result, real};
use crate::start;
use softswap_sys::kept;

fn is_ours(fd: i32) -> bool {
    start::engine().is_some() && kept::is_kept(fd)
}

/// # Safety
/// As `close(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(fd: i32) -> i32 {
    real!(close: fn(i32) -> i32);
    if is_ours(fd) {
        return 0;
    }
    // SAFETY: the caller's promise.
    unsafe { close()(fd) }
}

/// Closes what lies between the engine's descriptors.
fn close_around(first: u32, last: u32, flags: u32) -> isize {
    let mut from = first;
    while from <= last {
        let kept = kept::next_from(from).filter(|kept| *kept <= last);
        let end = kept.map_or(last, |kept| kept.saturating_sub(1));
        if kept != Some(from) {
            let arguments = [from as usize, end as usize, flags as usize, 0, 0, 0];
            let result = issue(libc::SYS_close_range, arguments);
            if result < 0 {
                return result;
            }
        }
        let Some(next) = kept.unwrap_or(last).checked_add(1) else { break };
        from = next;
    }
    0
}

/// Gives the calling thread a table of descriptors of its own, in which only
/// the engine's are open; whether the kernel did. The program's close when the
/// program closes them, and the engine can still bring in a page here.
pub(crate) fn leave_table() -> bool {
    close_around(0, u32::MAX, libc::CLOSE_RANGE_UNSHARE) >= 0
}

/// # Safety
/// As `close_range(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close_range(first: u32, last: u32, flags: i32) -> i32 {
    if first > last || start::engine().is_none() {
        let arguments = [first as usize, last as usize, flags as usize, 0, 0, 0];
        return c_result(issue(libc::SYS_close_range, arguments)) as i32;
    }
    c_result(close_around(first, last, flags as u32)) as i32
}

/// # Safety
/// As `closefrom(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn closefrom(first: i32) {
    let first = first.max(0) as u32;
    if start::engine().is_none() {
        issue(libc::SYS_close_range, [first as usize, u32::MAX as usize, 0, 0, 0, 0]);
        return;
    }
    close_around(first, u32::MAX, 0);
}

/// # Safety
/// As `dup2(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup2(old: i32, new: i32) -> i32 {
    if is_ours(new) {
        return c_result(-(libc::EBUSY as isize)) as i32;
    }
    c_result(issue(libc::SYS_dup2, [old as usize, new as usize, 0, 0, 0, 0])) as i32
}

/// # Safety
/// As `dup3(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup3(old: i32, new: i32, flags: i32) -> i32 {
    if is_ours(new) {
        return c_result(-(libc::EBUSY as isize)) as i32;
    }
    let arguments = [old as usize, new as usize, flags as usize, 0, 0, 0];
    c_result(issue(libc::SYS_dup3, arguments)) as i32
}
