//! `mmap` and its relatives, and `brk`.
//!
//! Large private anonymous mappings come from the window; everything else is
//! the kernel's. Calls about managed addresses are answered by the engine,
//! whether they come through the C library or as raw system calls (the guard).

use crate::filters;
use crate::guard::{Arguments, Pins, issue, result_of};
use crate::real::{c_result, kernel_error};
use crate::start;
use softswap_engine::engine::{Engine, Move};
use softswap_sys::PAGE_SIZE;
use softswap_sys::signals;
use std::ffi::c_void;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Smaller mappings are left to the kernel: they would fill tables, not DRAM.
const MIN_MANAGED_BYTES: usize = 64 << 10;
/// Address space for `brk`.
const HEAP_BYTES: usize = 64 << 30;

/// Whether a new mapping is the engine's business.
fn wants_window(engine: &Engine, len: usize, prot: i32, flags: i32) -> bool {
    const UNWANTED: i32 = libc::MAP_FIXED
        | libc::MAP_FIXED_NOREPLACE
        | libc::MAP_HUGETLB
        | libc::MAP_GROWSDOWN
        | libc::MAP_STACK
        | libc::MAP_LOCKED
        | libc::MAP_32BIT;
    (MIN_MANAGED_BYTES..=engine.window().1 / 4).contains(&len)
        && is_managed_kind(prot, flags)
        && flags & UNWANTED == 0
}

/// Private, anonymous and not code.
fn is_managed_kind(prot: i32, flags: i32) -> bool {
    flags & libc::MAP_ANONYMOUS != 0
        && flags & libc::MAP_TYPE == libc::MAP_PRIVATE
        && prot & libc::PROT_EXEC == 0
}

fn map(arguments: Arguments) -> isize {
    let [address, len, prot, flags, ..] = arguments;
    let (prot, flags) = (prot as i32, flags as i32);
    let Some(engine) = start::engine() else { return issue(libc::SYS_mmap, arguments) };
    if engine.contains(address) && flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0 {
        return map_within(engine, arguments);
    }
    if wants_window(engine, len, prot, flags) {
        let mapped = signals::with_all_blocked(|| engine.map(len, prot));
        if let Ok(Some(address)) = mapped {
            if flags & libc::MAP_POPULATE != 0 && prot & libc::PROT_WRITE != 0 {
                populate(engine, address, len);
            }
            return address as isize;
        }
        // No room in the window: unmanaged memory is better than none.
    }
    // A hint inside the window would put a foreign mapping there.
    let mut arguments = arguments;
    if engine.contains(address) {
        arguments[0] = 0;
    }
    issue(libc::SYS_mmap, arguments)
}

/// A mapping at a fixed address in the window.
fn map_within(engine: &Engine, arguments: Arguments) -> isize {
    let [address, len, prot, flags, ..] = arguments;
    let (prot, flags) = (prot as i32, flags as i32);
    if len == 0 || !address.is_multiple_of(PAGE_SIZE) {
        return -(libc::EINVAL as isize);
    }
    let replace = flags & libc::MAP_FIXED_NOREPLACE == 0;
    let done = signals::with_all_blocked(|| {
        if is_managed_kind(prot, flags) && flags & libc::MAP_HUGETLB == 0 {
            return engine.map_at(address, len, prot, replace);
        }
        engine.lend(address, len, replace, || {
            let mut fixed = arguments;
            fixed[3] = ((flags & !libc::MAP_FIXED_NOREPLACE) | libc::MAP_FIXED) as usize;
            match issue(libc::SYS_mmap, fixed) {
                result if result < 0 => Err(io::Error::from_raw_os_error(-result as i32)),
                _ => Ok(()),
            }
        })
    });
    match done {
        Ok(true) => address as isize,
        Ok(false) => -(libc::EEXIST as isize),
        Err(error) => kernel_error(&error),
    }
}

/// Brings in as much as may be held at once.
fn populate(engine: &Engine, address: usize, len: usize) {
    let piece = engine.pin_limit_bytes();
    for offset in (0..len).step_by(piece) {
        Pins::<1>::new(engine).add(address + offset, piece.min(len - offset), piece);
    }
}

fn advise(engine: &Engine, address: usize, len: usize, advice: i32) -> isize {
    if len == 0 {
        return 0;
    }
    match advice {
        // Freed lazily or at once, the content is given up either way.
        libc::MADV_DONTNEED | libc::MADV_FREE => {
            let all_mapped = engine.is_mapped(address, len);
            match result_of(signals::with_all_blocked(|| engine.discard(address, len))) {
                0 if !all_mapped => -(libc::ENOMEM as isize),
                result => result,
            }
        }
        libc::MADV_POPULATE_READ | libc::MADV_POPULATE_WRITE => {
            populate(engine, address, len);
            0
        }
        // No fork yet that could wipe or withhold; say so rather than pretend.
        libc::MADV_WIPEONFORK | libc::MADV_REMOVE | libc::MADV_HWPOISON => -(libc::EINVAL as isize),
        // Hints about access, huge pages, merging, fork and dumps.
        libc::MADV_NORMAL..=libc::MADV_WILLNEED
        | libc::MADV_DONTFORK
        | libc::MADV_DOFORK
        | libc::MADV_MERGEABLE..=libc::MADV_DODUMP
        | libc::MADV_KEEPONFORK
        | libc::MADV_COLD
        | libc::MADV_PAGEOUT
        | libc::MADV_COLLAPSE => 0,
        _ => -(libc::EINVAL as isize),
    }
}

fn remap(engine: &Engine, arguments: Arguments) -> isize {
    let [old, old_len, new_len, flags, target, _] = arguments;
    let flags = flags as i32;
    if new_len == 0 || !old.is_multiple_of(PAGE_SIZE) {
        return -(libc::EINVAL as isize);
    }
    if flags & libc::MREMAP_FIXED != 0 {
        return remap_to(engine, old, old_len, new_len, target);
    }
    if old_len == 0 || flags & !libc::MREMAP_MAYMOVE != 0 {
        return -(libc::EINVAL as isize);
    }
    let may_move = match flags & libc::MREMAP_MAYMOVE {
        0 => Move::Never,
        _ => Move::Anywhere,
    };
    let done = signals::with_all_blocked(|| engine.remap(old, old_len, new_len, may_move));
    done.map_or_else(|error| kernel_error(&error), |address| address as isize)
}

/// `MREMAP_FIXED` between managed ranges; others cannot exchange pages.
fn remap_to(engine: &Engine, old: usize, old_len: usize, len: usize, target: usize) -> isize {
    if !engine.contains(old) || !engine.contains(target) || !engine.is_mapped(old, old_len) {
        return -(libc::EINVAL as isize);
    }
    let done = signals::with_all_blocked(|| {
        engine.map_at(target, len, engine.protection(old), true)?;
        engine.move_to(old, old_len.min(len), target)?;
        engine.unmap(old, old_len)
    });
    done.map_or_else(|error| kernel_error(&error), |()| target as isize)
}

fn residency(engine: &Engine, address: usize, len: usize, out: usize) -> isize {
    if !engine.is_mapped(address, len) {
        return -(libc::ENOMEM as isize);
    }
    let pages = len.div_ceil(PAGE_SIZE);
    let mut pins = Pins::<1>::new(engine);
    if pins.add(out, pages, usize::MAX) < pages {
        return -(libc::EFAULT as isize);
    }
    // SAFETY: mincore's caller provides one byte per page.
    let out = unsafe { std::slice::from_raw_parts_mut(out as *mut u8, pages) };
    result_of(engine.residency(address, out))
}

fn lock(engine: &Engine, address: usize, len: usize, on: bool) -> isize {
    let start = address & !(PAGE_SIZE - 1);
    if len == 0 {
        return 0;
    }
    let Some(end) = address.checked_add(len) else { return -(libc::EINVAL as isize) };
    let len = (end - start).next_multiple_of(PAGE_SIZE);
    result_of(signals::with_all_blocked(|| {
        if on { engine.lock_range(start, len) } else { engine.unlock_range(start, len) }
    }))
}

/// Calls that the kernel answers for mappings of the program's that lie in the
/// window but are not managed.
fn passes_to_kernel(number: i64) -> bool {
    matches!(
        number,
        libc::SYS_msync
            | libc::SYS_madvise
            | libc::SYS_mincore
            | libc::SYS_mlock
            | libc::SYS_mlock2
            | libc::SYS_munlock
    )
}

/// Answers a memory call about the window; `None` for other calls.
pub(crate) fn answer(engine: &Engine, number: i64, arguments: Arguments) -> Option<isize> {
    let [address, len, third, ..] = arguments;
    let managed = engine.contains(address);
    if managed && engine.is_foreign(address) && passes_to_kernel(number) {
        return None;
    }
    if managed && let Some(refused) = filters::refusal(number, arguments) {
        return Some(refused);
    }
    Some(match number {
        libc::SYS_mmap => map(arguments),
        libc::SYS_mremap => remap(engine, arguments),
        libc::SYS_mincore if managed => residency(engine, address, len, third),
        libc::SYS_munmap if managed => {
            result_of(signals::with_all_blocked(|| engine.unmap(address, len)))
        }
        libc::SYS_mprotect | libc::SYS_pkey_mprotect if managed && len == 0 => 0,
        libc::SYS_mprotect | libc::SYS_pkey_mprotect if managed => {
            let protection = third as i32;
            result_of(signals::with_all_blocked(|| engine.protect(address, len, protection)))
        }
        libc::SYS_madvise if managed => advise(engine, address, len, third as i32),
        libc::SYS_mlock | libc::SYS_mlock2 if managed => lock(engine, address, len, true),
        libc::SYS_munlock if managed => lock(engine, address, len, false),
        libc::SYS_msync if managed => 0,
        _ => return None,
    })
}

/// A call of the program's about memory: the engine's, or the kernel's.
fn dispatch(number: i64, arguments: Arguments) -> isize {
    match start::engine() {
        Some(engine) if engine.contains(arguments[0]) => {
            answer(engine, number, arguments).unwrap_or_else(|| issue(number, arguments))
        }
        _ => issue(number, arguments),
    }
}

/// # Safety
/// As `mmap(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(
    address: *mut c_void,
    len: usize,
    prot: i32,
    flags: i32,
    fd: i32,
    offset: i64,
) -> *mut c_void {
    let arguments =
        [address as usize, len, prot as usize, flags as usize, fd as usize, offset as usize];
    c_result(map(arguments)) as *mut c_void
}

/// # Safety
/// As `mmap(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap64(
    address: *mut c_void,
    len: usize,
    prot: i32,
    flags: i32,
    fd: i32,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the same function on 64-bit Linux.
    unsafe { mmap(address, len, prot, flags, fd, offset) }
}

/// # Safety
/// As `munmap(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn munmap(address: *mut c_void, len: usize) -> i32 {
    c_result(dispatch(libc::SYS_munmap, [address as usize, len, 0, 0, 0, 0])) as i32
}

/// # Safety
/// As `mprotect(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mprotect(address: *mut c_void, len: usize, prot: i32) -> i32 {
    let arguments = [address as usize, len, prot as usize, 0, 0, 0];
    c_result(dispatch(libc::SYS_mprotect, arguments)) as i32
}

/// # Safety
/// As `madvise(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(address: *mut c_void, len: usize, advice: i32) -> i32 {
    let arguments = [address as usize, len, advice as usize, 0, 0, 0];
    c_result(dispatch(libc::SYS_madvise, arguments)) as i32
}

/// `mremap(2)`. The fifth argument is only passed with MREMAP_FIXED; reading
/// its register otherwise is harmless.
///
/// # Safety
/// As `mremap(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mremap(
    old: *mut c_void,
    old_len: usize,
    new_len: usize,
    flags: i32,
    target: *mut c_void,
) -> *mut c_void {
    let fixed = flags & libc::MREMAP_FIXED != 0;
    let target = if fixed { target as usize } else { 0 };
    let arguments = [old as usize, old_len, new_len, flags as usize, target, 0];
    c_result(dispatch(libc::SYS_mremap, arguments)) as *mut c_void
}

/// Locking everything would lock the whole window.
#[unsafe(no_mangle)]
pub extern "C" fn mlockall(flags: i32) -> i32 {
    let result = match start::engine() {
        Some(_) => -(libc::ENOMEM as isize),
        None => {
            softswap_sys::place::let_go();
            issue(libc::SYS_mlockall, [flags as usize, 0, 0, 0, 0, 0])
        }
    };
    c_result(result) as i32
}

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
        if after < at.start || after > at.start + HEAP_BYTES.min(engine.window().1 / 8) {
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
    let Some(engine) = start::engine() else {
        crate::real::real!(sbrk: fn(isize) -> *mut c_void);
        // SAFETY: the caller's promise.
        return unsafe { sbrk()(delta) };
    };
    match move_break(engine, |at| at.end.checked_add_signed(delta)) {
        Some(before) => before as *mut c_void,
        None => c_result(-(libc::ENOMEM as isize)) as *mut c_void,
    }
}

/// # Safety
/// As `brk(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brk(address: *mut c_void) -> i32 {
    let Some(engine) = start::engine() else {
        crate::real::real!(brk: fn(*mut c_void) -> i32);
        // SAFETY: the caller's promise.
        return unsafe { brk()(address) };
    };
    match move_break(engine, |_| Some(address as usize)) {
        Some(_) => 0,
        None => c_result(-(libc::ENOMEM as isize)) as i32,
    }
}
