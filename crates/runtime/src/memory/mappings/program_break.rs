//! The program break, in the window: `brk` and `sbrk`.
//!
//! Without address randomisation the kernel's break starts directly after the program's data. A
//! dumped image (GCL's) continues its data segment there, so the kernel keeps such a break, and its
//! memory is not managed.

use crate::base::errno::{c_result, refused};
use crate::base::instance;
use crate::base::issue_call::{Arguments, issue};
use crate::memory::asleep;
use crate::memory::sleep_gate::Inside;
use softswap_engine::api::engine::Engine;
use softswap_sys::PAGE_SIZE;
use softswap_sys::process_image;
use softswap_sys::signals;
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

const HEAP_BYTES: usize = 64 << 30;

pub(crate) struct Break {
    start: usize,
    end: usize,
}

static BREAK: Mutex<Break> = Mutex::new(Break { start: 0, end: 0 });

pub(crate) fn lock_break() -> MutexGuard<'static, Break> {
    BREAK.lock().unwrap_or_else(PoisonError::into_inner)
}

enum Memory {
    Awake(&'static Engine),
    /// The kernel, in a sleeping process.
    Asleep {
        window_bytes: usize,
        /// Delays waking.
        _inside: Inside,
    },
}

fn belongs_to_kernel() -> bool {
    static BELONGS_TO_KERNEL: OnceLock<bool> = OnceLock::new();
    *BELONGS_TO_KERNEL.get_or_init(|| {
        let place = issue(libc::SYS_brk, [0; 6]) as usize;
        process_image::data_end().is_some_and(|end| end.next_multiple_of(PAGE_SIZE) == place)
    })
}

/// Returns `None` if the kernel keeps the break. Wakes the process if the bytes exceed its budget.
/// Called without the lock of [`BREAK`]: no process wakes while this thread holds it.
fn memory_for(more: usize) -> Option<Memory> {
    if belongs_to_kernel() {
        return None;
    }
    match asleep::enter_for_commit(more) {
        Some(inside) => {
            Some(Memory::Asleep { window_bytes: instance::window()?.1, _inside: inside })
        }
        None => instance::engine().map(Memory::Awake),
    }
}

impl Memory {
    fn window_len(&self) -> usize {
        match self {
            Memory::Awake(engine) => engine.window().1,
            Memory::Asleep { window_bytes, .. } => *window_bytes,
        }
    }

    fn reserve(&self, len: usize) -> Option<usize> {
        match self {
            Memory::Awake(engine) => engine.reserve(len).ok()?,
            Memory::Asleep { .. } => asleep::reserve(len),
        }
    }

    fn map(&self, at: usize, len: usize) -> Option<()> {
        const ACCESS: i32 = libc::PROT_READ | libc::PROT_WRITE;
        match self {
            Memory::Awake(engine) => engine.map_at(at, len, ACCESS, true).ok().map(drop),
            Memory::Asleep { .. } => asleep::set_mapped(&(at..at + len), true),
        }
    }

    fn retract(&self, at: usize, len: usize) -> Option<()> {
        match self {
            Memory::Awake(engine) => engine.retract(at, len).ok(),
            Memory::Asleep { .. } => asleep::set_mapped(&(at..at + len), false),
        }
    }
}

pub(crate) fn reserved() -> Option<std::ops::Range<usize>> {
    let start = lock_break().start;
    let len = HEAP_BYTES.min(instance::window()?.1 / 8);
    (start != 0).then_some(start..start + len)
}

fn move_break(memory: &Memory, target: impl FnOnce(&Break) -> Option<usize>) -> Option<usize> {
    signals::with_all_blocked(|| {
        let mut at = BREAK.lock().unwrap_or_else(PoisonError::into_inner);
        let most_bytes = HEAP_BYTES.min(memory.window_len() / 8);
        if at.start == 0 {
            let start = memory.reserve(most_bytes)?;
            *at = Break { start, end: start };
        }
        let (before, after) = (at.end, target(&at)?);
        if after < at.start {
            // As in Linux, the break does not change, and the C library reports success.
            return Some(before);
        }
        if after > at.start + most_bytes {
            return None;
        }
        let (have, want) = (before.next_multiple_of(PAGE_SIZE), after.next_multiple_of(PAGE_SIZE));
        if want > have {
            memory.map(have, want - have)?;
        } else if want < have {
            memory.retract(want, have - want)?;
        }
        at.end = after;
        Some(before)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sbrk(delta: isize) -> *mut c_void {
    // SAFETY: changes the break as the program requests; the program no longer uses removed memory.
    unsafe { change_by(delta) }
}

unsafe fn change_by(delta: isize) -> *mut c_void {
    let Some(memory) = memory_for(delta.max(0) as usize) else {
        // Not `sbrk`, which may be the program's own function.
        crate::base::real::real!(__sbrk: fn(isize) -> *mut c_void);
        // SAFETY: this is the C library's function of this name; the program passes the arguments.
        return unsafe { __sbrk()(delta) };
    };
    match move_break(&memory, |at| at.end.checked_add_signed(delta)) {
        Some(before) => before as *mut c_void,
        None => c_result(refused(libc::ENOMEM)) as *mut c_void,
    }
}

/// Alias used by allocators that define their own `sbrk`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __sbrk(delta: isize) -> *mut c_void {
    // SAFETY: changes the break as the program requests; the program no longer uses removed memory.
    unsafe { change_by(delta) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn brk(address: *mut c_void) -> i32 {
    let end = lock_break().end;
    let Some(memory) = memory_for((address as usize).saturating_sub(end)) else {
        crate::base::real::real!(brk: fn(*mut c_void) -> i32);
        // SAFETY: this is the C library's function of this name; the program passes the arguments.
        return unsafe { brk()(address) };
    };
    match move_break(&memory, |_| Some(address as usize)) {
        Some(_) => 0,
        None => c_result(refused(libc::ENOMEM)) as i32,
    }
}

/// Handles `brk` by number, which returns the break: the new one, or the old one on failure.
pub(super) fn set_break(arguments: Arguments) -> isize {
    let address = arguments[0];
    let end = lock_break().end;
    let Some(memory) = memory_for(address.saturating_sub(end)) else {
        return issue(libc::SYS_brk, arguments);
    };
    move_break(&memory, |_| Some(address));
    lock_break().end as isize
}
