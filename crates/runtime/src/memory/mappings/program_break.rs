//! The program break, in the window: `brk` and `sbrk`.

use crate::base::errno::{c_result, refused};
use crate::base::instance;
use softswap_engine::door::engine::Engine;
use softswap_sys::PAGE_SIZE;
use softswap_sys::signals;
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Address space for `brk`.
const HEAP_BYTES: usize = 64 << 30;

/// The program break within the window.
pub(crate) struct Break {
    start: usize,
    end: usize,
}

static BREAK: Mutex<Break> = Mutex::new(Break { start: 0, end: 0 });

/// Keeps the break as it is, for fork.
pub(crate) fn lock_break() -> MutexGuard<'static, Break> {
    BREAK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Moves the program break to `target` bytes from its start, or by `delta`.
/// Returns where it was.
fn move_break(engine: &Engine, target: impl FnOnce(&Break) -> Option<usize>) -> Option<usize> {
    signals::with_all_blocked(|| {
        let mut at = BREAK.lock().unwrap_or_else(PoisonError::into_inner);
        if at.start == 0 {
            let start = engine.reserve(HEAP_BYTES.min(engine.window().1 / 8)).ok()??;
            *at = Break { start, end: start };
        }
        let (before, after) = (at.end, target(&at)?);
        if after < at.start {
            // The kernel leaves the break where it is, and the C library takes that for done.
            return Some(before);
        }
        if after > at.start + HEAP_BYTES.min(engine.window().1 / 8) {
            return None;
        }
        let (have, want) = (before.next_multiple_of(PAGE_SIZE), after.next_multiple_of(PAGE_SIZE));
        if want > have {
            engine.map_at(have, want - have, libc::PROT_READ | libc::PROT_WRITE, true).ok()?;
        } else if want < have {
            engine.retract(want, have - want).ok()?;
        }
        at.end = after;
        Some(before)
    })
}

/// # Safety
/// As `sbrk(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sbrk(delta: isize) -> *mut c_void {
    // SAFETY: changes the break as the program asks; what it takes away the program does not use
    // any more.
    unsafe { change_by(delta) }
}

/// # Safety
/// As `sbrk(2)`.
unsafe fn change_by(delta: isize) -> *mut c_void {
    let Some(engine) = instance::engine() else {
        // Not by the other name, which may be the program's here.
        crate::base::real::real!(__sbrk: fn(isize) -> *mut c_void);
        // SAFETY: the C library's function of this name, with the program's arguments.
        return unsafe { __sbrk()(delta) };
    };
    match move_break(engine, |at| at.end.checked_add_signed(delta)) {
        Some(before) => before as *mut c_void,
        None => c_result(refused(libc::ENOMEM)) as *mut c_void,
    }
}

/// The name by which allocators call it that have a `sbrk` of their own.
///
/// # Safety
/// As `sbrk(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __sbrk(delta: isize) -> *mut c_void {
    // SAFETY: changes the break as the program asks; what it takes away the program does not use
    // any more.
    unsafe { change_by(delta) }
}

/// # Safety
/// As `brk(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brk(address: *mut c_void) -> i32 {
    let Some(engine) = instance::engine() else {
        crate::base::real::real!(brk: fn(*mut c_void) -> i32);
        // SAFETY: the C library's function of this name, with the program's arguments.
        return unsafe { brk()(address) };
    };
    match move_break(engine, |_| Some(address as usize)) {
        Some(_) => 0,
        None => c_result(refused(libc::ENOMEM)) as i32,
    }
}
