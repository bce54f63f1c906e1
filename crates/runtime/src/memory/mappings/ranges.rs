//! Calls about a range of mapped memory: protection, advice, residency, locking.
//!
//! Each call is checked in Linux's order and then applied to the parts of the range. Holes are
//! treated as on Linux, although the kernel has the window reserved there.

use super::populate::populate;
use super::sealing;
use crate::base::errno::{refused, result_of};
use crate::base::issue_call::{Arguments, issue};
use crate::base::uaccess::TASK_SIZE;
use crate::base::{instance, uaccess};
use crate::memory::pins::Pins;
use softswap_engine::api::engine::Engine;
use softswap_engine::memory::address_space::{AtFork, Kind};
use softswap_sys::PAGE_SIZE;
use softswap_sys::signals;

const MADV_SOFT_OFFLINE: i32 = 101;
const MADV_GUARD_INSTALL: i32 = 102;
const MADV_GUARD_REMOVE: i32 = 103;

fn whole_pages(address: usize, len: usize) -> Option<usize> {
    let len = len.checked_next_multiple_of(PAGE_SIZE)?;
    address.checked_add(len).map(|_| len)
}

/// Stops at the first part that fails, and at the first hole if `stop_at_hole`. The callbacks
/// return 0 or a negative error number. Returns true if the range has holes.
fn each_part(
    engine: &Engine,
    address: usize,
    len: usize,
    stop_at_hole: bool,
    mut on_managed: impl FnMut(usize, usize) -> isize,
    mut on_unmanaged: impl FnMut(usize, usize) -> isize,
) -> Result<bool, isize> {
    let (mut has_holes, mut covered) = (false, 0);
    let segments = signals::with_all_blocked(|| engine.segments(address, len));
    for (start, len, kind) in segments {
        let result = match kind {
            Kind::Managed => on_managed(start, len),
            Kind::Unmanaged => on_unmanaged(start, len),
            Kind::Hole if stop_at_hole => return Ok(true),
            Kind::Hole => {
                has_holes = true;
                0
            }
        };
        if result < 0 {
            return Err(result);
        }
        covered += len;
    }
    Ok(has_holes || covered < len)
}

fn no_holes(walked: Result<bool, isize>) -> isize {
    match walked {
        Ok(false) => 0,
        Ok(true) => refused(libc::ENOMEM),
        Err(error) => error,
    }
}

/// `pkey_mprotect`; `mprotect` passes -1 as the key.
pub(super) fn protect(engine: &Engine, address: usize, len: usize, prot: i32, key: i32) -> isize {
    const GROWS: i32 = libc::PROT_GROWSDOWN | libc::PROT_GROWSUP;
    const ACCESS: i32 = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    const SEMAPHORE: i32 = 8;
    if prot & GROWS == GROWS || !address.is_multiple_of(PAGE_SIZE) {
        return refused(libc::EINVAL);
    }
    if len == 0 {
        return 0;
    }
    let Some(len) = whole_pages(address, len) else { return refused(libc::ENOMEM) };
    if prot & !(ACCESS | SEMAPHORE | GROWS) != 0 {
        return refused(libc::EINVAL);
    }
    if let Some(error) = key_error(key) {
        return error;
    }
    let managed = |start, len| {
        if prot & GROWS != 0 {
            return refused(libc::EINVAL);
        }
        let protect = || engine.protect(start, len, prot & ACCESS);
        result_of(signals::with_all_blocked(protect))
    };
    if engine.is_mapped(address, len) {
        return managed(address, len);
    }
    let unmanaged = |start, len| issue(libc::SYS_mprotect, [start, len, prot as usize, 0, 0, 0]);
    no_holes(each_part(engine, address, len, true, managed, unmanaged))
}

/// No keys for managed memory: the rights of a key are per thread, and the engine's lack them.
fn key_error(key: i32) -> Option<isize> {
    if key == -1 {
        return None;
    }
    // The program has allocated no key, so only the default key 0 is valid. A temporary page shows
    // if the processor has keys.
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize;
    let page = issue(libc::SYS_mmap, [0, PAGE_SIZE, 0, flags, usize::MAX, 0]);
    if key != 0 || page < 0 {
        return Some(refused(libc::EINVAL));
    }
    let tried = issue(libc::SYS_pkey_mprotect, [page as usize, PAGE_SIZE, 0, 0, 0, 0]);
    issue(libc::SYS_munmap, [page as usize, PAGE_SIZE, 0, 0, 0, 0]);
    (tried < 0).then_some(tried)
}

/// Reports that there are no keys, as on a processor without them.
pub(super) fn allocate_key(arguments: Arguments) -> isize {
    let key = issue(libc::SYS_pkey_alloc, arguments);
    if key < 0 || instance::awake().is_none() {
        return key;
    }
    issue(libc::SYS_pkey_free, [key as usize, 0, 0, 0, 0, 0]);
    refused(libc::ENOSPC)
}

/// Changes no content, so it also serves for pages that the program has made read-only.
pub(super) fn make_writable(engine: &Engine, address: usize, len: usize) -> isize {
    if populate(engine, address, len) { 0 } else { refused(libc::ENOMEM) }
}

pub(super) fn advise(engine: &Engine, address: usize, len: usize, advice: i32) -> isize {
    if sealing::discards(advice)
        && let Some(kept) = sealing::first_kept(engine, address, len)
    {
        let before = kept.saturating_sub(address);
        let result = if before == 0 { 0 } else { advise(engine, address, before, advice) };
        return if result < 0 { result } else { refused(libc::EPERM) };
    }
    let drops = matches!(advice, libc::MADV_DONTNEED | libc::MADV_FREE);
    if drops && engine.is_mapped(address, len) && !engine.has_locked(address, len) {
        return result_of(signals::with_all_blocked(|| engine.discard(address, len)));
    }
    // An empty range shows if the kernel knows the advice.
    let known = issue(libc::SYS_madvise, [0, 0, advice as usize, 0, 0, 0]);
    if known < 0 || !address.is_multiple_of(PAGE_SIZE) {
        return refused(libc::EINVAL);
    }
    let Some(len) = whole_pages(address, len) else { return refused(libc::EINVAL) };
    if len == 0 {
        return 0;
    }
    if matches!(advice, libc::MADV_HWPOISON | MADV_SOFT_OFFLINE) {
        // Unprivileged callers get EPERM. The engine's pages must not be poisoned.
        let tried = issue(libc::SYS_madvise, [0, PAGE_SIZE, advice as usize, 0, 0, 0]);
        return refused(if tried == refused(libc::EPERM) { libc::EPERM } else { libc::EINVAL });
    }
    let stops = matches!(advice, libc::MADV_POPULATE_READ | libc::MADV_POPULATE_WRITE);
    let managed = |start, len| advise_managed(engine, start, len, advice);
    let unmanaged = |start, len| issue(libc::SYS_madvise, [start, len, advice as usize, 0, 0, 0]);
    no_holes(each_part(engine, address, len, stops, managed, unmanaged))
}

fn advise_managed(engine: &Engine, address: usize, len: usize, advice: i32) -> isize {
    let locked = engine.has_locked(address, len);
    let at_fork = |what, on| {
        result_of(signals::with_all_blocked(|| engine.set_at_fork(address, len, what, on)))
    };
    match advice {
        libc::MADV_DONTNEED | libc::MADV_FREE | libc::MADV_COLD | libc::MADV_PAGEOUT if locked => {
            refused(libc::EINVAL)
        }
        // MADV_FREE may drop the content immediately, too.
        libc::MADV_DONTNEED | libc::MADV_FREE => {
            result_of(signals::with_all_blocked(|| engine.discard(address, len)))
        }
        libc::MADV_DONTNEED_LOCKED => {
            result_of(signals::with_all_blocked(|| engine.discard_locked(address, len)))
        }
        libc::MADV_POPULATE_READ | libc::MADV_POPULATE_WRITE => {
            let reads = advice == libc::MADV_POPULATE_READ;
            let wanted = if reads { libc::PROT_READ } else { libc::PROT_WRITE };
            if !engine.allows(address, len, wanted) {
                return refused(libc::EINVAL);
            }
            make_writable(engine, address, len)
        }
        libc::MADV_DONTFORK => at_fork(AtFork::Withheld, true),
        libc::MADV_DOFORK => at_fork(AtFork::Withheld, false),
        libc::MADV_WIPEONFORK => at_fork(AtFork::Wiped, true),
        libc::MADV_KEEPONFORK => at_fork(AtFork::Wiped, false),
        // Managed memory has no file and no huge pages, and, as in older kernels, no guard regions.
        libc::MADV_REMOVE | libc::MADV_COLLAPSE | MADV_GUARD_INSTALL | MADV_GUARD_REMOVE => {
            refused(libc::EINVAL)
        }
        // Hints about access, huge pages, merging and dumps.
        _ => 0,
    }
}

/// Advice that changes content is refused for managed memory, as before Linux 6.13 for all.
pub(super) fn advise_process(arguments: Arguments) -> isize {
    let [_, vectors, count, advice, ..] = arguments;
    let Some(engine) = instance::engine() else {
        return issue(libc::SYS_process_madvise, arguments);
    };
    let is_hint =
        matches!(advice as i32, libc::MADV_WILLNEED | libc::MADV_COLD | libc::MADV_PAGEOUT);
    let mut pins = Pins::<1>::new(engine);
    let bytes = count.saturating_mul(size_of::<libc::iovec>());
    // The kernel reports the error of an array that is too long or unreadable.
    if count > libc::UIO_MAXIOV as usize
        || pins.add(vectors, bytes, usize::MAX) < bytes
        || !uaccess::is_readable(vectors, bytes)
    {
        return issue(libc::SYS_process_madvise, arguments);
    }
    let is_managed = (0..count).any(|index| {
        // SAFETY: the program's array is readable, as checked above, and pinned if managed.
        let vector = unsafe { (vectors as *const libc::iovec).add(index).read_unaligned() };
        engine.contains(vector.iov_base as usize)
    });
    if is_managed && !is_hint {
        // The kernel reports EINVAL, or an earlier error, such as that of a seccomp filter.
        const UNKNOWN_ADVICE: usize = i32::MAX as usize;
        let [fd, vectors, count, _, flags, last] = arguments;
        return issue(libc::SYS_process_madvise, [fd, vectors, count, UNKNOWN_ADVICE, flags, last]);
    }
    issue(libc::SYS_process_madvise, arguments)
}

pub(super) fn residency(engine: &Engine, address: usize, len: usize, out: usize) -> isize {
    /// Pages per call, as in the kernel.
    const CHUNK: usize = 4096;
    if !address.is_multiple_of(PAGE_SIZE) {
        return refused(libc::EINVAL);
    }
    if address.checked_add(len).is_none_or(|end| end > TASK_SIZE) {
        return refused(libc::ENOMEM);
    }
    let pages = len.div_ceil(PAGE_SIZE);
    for done in (0..pages).step_by(CHUNK) {
        let count = CHUNK.min(pages - done);
        let (start, bytes, out) = (address + done * PAGE_SIZE, count * PAGE_SIZE, out + done);
        let inside = engine.contains(start);
        let parts = if inside { engine.segments(start, bytes) } else { Vec::new() };
        let covered: usize = parts.iter().map(|(_, len, _)| len).sum();
        if inside && (covered < bytes || parts.iter().any(|(.., kind)| *kind == Kind::Hole)) {
            return refused(libc::ENOMEM);
        }
        let mut pins = Pins::<1>::new(engine);
        if pins.add(out, count, usize::MAX) < count {
            return refused(libc::EFAULT);
        }
        // The kernel checks that the buffer is writable, and fills in the unmanaged parts.
        let result = issue(libc::SYS_mincore, [start, bytes, out, 0, 0, 0]);
        if result < 0 {
            return result;
        }
        for (part, len, _) in parts.into_iter().filter(|(.., kind)| *kind == Kind::Managed) {
            let at = out + (part - start) / PAGE_SIZE;
            // SAFETY: the kernel has just written these bytes, and they are pinned if managed.
            let out = unsafe { std::slice::from_raw_parts_mut(at as *mut u8, len / PAGE_SIZE) };
            let result = result_of(engine.residency(part, out));
            if result < 0 {
                return result;
            }
        }
    }
    0
}

/// The length may wrap around, as in Linux.
fn enclosing_pages(address: usize, len: usize) -> Result<(usize, usize), isize> {
    let offset = address % PAGE_SIZE;
    let (start, len) = (address - offset, len.wrapping_add(offset));
    let len = len.wrapping_add(PAGE_SIZE - 1) & !(PAGE_SIZE - 1);
    start.checked_add(len).map(|_| (start, len)).ok_or(refused(libc::EINVAL))
}

/// `mlock`, and `mlock2` with or without MLOCK_ONFAULT: all pages are faulted in immediately.
pub(super) fn lock(engine: &Engine, address: usize, len: usize) -> isize {
    let (start, len) = match enclosing_pages(address, len) {
        Ok((start, len)) if len > 0 => (start, len),
        // Nothing is locked, but the kernel first checks privileges and limits.
        _ => return issue(libc::SYS_mlock, [address, len, 0, 0, 0, 0]),
    };
    let mut is_inaccessible = false;
    let managed = |start, len| {
        // Memory that is only writable is locked, too.
        let allows = |access| engine.allows(start, len, access);
        if !allows(libc::PROT_READ) && !allows(libc::PROT_WRITE) {
            is_inaccessible = true;
            return 0;
        }
        if engine.may_lock(len) {
            // Populate with signals unblocked, so that little remains to do while they are blocked.
            populate(engine, start, len);
        }
        result_of(signals::with_all_blocked(|| engine.lock_range(start, len)))
    };
    let unmanaged = |start, len| issue(libc::SYS_mlock, [start, len, 0, 0, 0, 0]);
    match no_holes(each_part(engine, start, len, true, managed, unmanaged)) {
        0 if is_inaccessible => refused(libc::ENOMEM),
        result => result,
    }
}

pub(super) fn unlock(engine: &Engine, address: usize, len: usize) -> isize {
    let (start, len) = match enclosing_pages(address, len) {
        Ok(range) => range,
        Err(error) => return error,
    };
    let managed =
        |start, len| result_of(signals::with_all_blocked(|| engine.unlock_range(start, len)));
    let unmanaged = |start, len| issue(libc::SYS_munlock, [start, len, 0, 0, 0, 0]);
    no_holes(each_part(engine, start, len, true, managed, unmanaged))
}

/// Fails as if RLIMIT_MEMLOCK were exceeded, after Linux's other checks.
pub(super) fn lock_all(arguments: Arguments) -> isize {
    if instance::awake().is_none() {
        softswap_sys::aslr::release_hold();
        return issue(libc::SYS_mlockall, arguments);
    }
    let flags = arguments[0] as i32;
    let known = libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT;
    if flags == 0 || flags & !known != 0 || flags == libc::MCL_ONFAULT {
        return refused(libc::EINVAL);
    }
    let may = issue(libc::SYS_mlock, [0; 6]);
    if may < 0 { may } else { refused(libc::ENOMEM) }
}

pub(super) fn unlock_all(arguments: Arguments) -> isize {
    let Some(engine) = instance::engine() else { return issue(libc::SYS_munlockall, arguments) };
    let done = result_of(signals::with_all_blocked(|| engine.unlock_all()));
    if done < 0 {
        return done;
    }
    let done = issue(libc::SYS_munlockall, arguments);
    engine.all_was_unlocked();
    done
}

pub(super) fn sync(engine: &Engine, address: usize, len: usize, flags: i32) -> isize {
    const KNOWN: i32 = libc::MS_ASYNC | libc::MS_INVALIDATE | libc::MS_SYNC;
    const BOTH: i32 = libc::MS_ASYNC | libc::MS_SYNC;
    if flags & !KNOWN != 0 || !address.is_multiple_of(PAGE_SIZE) || flags & BOTH == BOTH {
        return refused(libc::EINVAL);
    }
    let len = len.wrapping_add(PAGE_SIZE - 1) & !(PAGE_SIZE - 1);
    if address.checked_add(len).is_none() {
        return refused(libc::ENOMEM);
    }
    let managed = |start, len| {
        let is_kept = flags & libc::MS_INVALIDATE != 0 && engine.has_locked(start, len);
        if is_kept { refused(libc::EBUSY) } else { 0 }
    };
    let unmanaged = |start, len| issue(libc::SYS_msync, [start, len, flags as usize, 0, 0, 0]);
    no_holes(each_part(engine, address, len, false, managed, unmanaged))
}
