//! `mremap`.
//!
//! Managed memory moves within the window as pages of the engine. An unmanaged mapping that moves
//! into the window stays unmanaged; if it moves out, a hole remains. Managed memory that moves out
//! of the window is copied, at most as much as may be locked; beyond that the call fails with
//! ENOMEM.

use crate::base::errno::{kernel_error, refused};
use crate::base::issue_call::{Arguments, issue};
use crate::base::uaccess::TASK_SIZE;
use softswap_engine::api::engine::remap::Source;
use softswap_engine::api::engine::{Engine, Move};
use softswap_sys::PAGE_SIZE;
use softswap_sys::signals;
use std::io;

struct Request {
    old: usize,
    old_len: usize,
    len: usize,
    flags: i32,
    /// Requested address, or a hint.
    target: Option<usize>,
}

impl Request {
    fn has(&self, flag: i32) -> bool {
        self.flags & flag != 0
    }

    fn fixed(&self) -> Option<usize> {
        self.target.filter(|_| self.has(libc::MREMAP_FIXED))
    }

    /// Checks the arguments, in Linux's order, without regard to existing mappings.
    fn check(arguments: Arguments) -> Result<Request, isize> {
        const KNOWN: i32 = libc::MREMAP_FIXED | libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP;
        let [old, old_len, len, flags, target, _] = arguments;
        let flags = flags as i32;
        let invalid = Err(refused(libc::EINVAL));
        let whole = |len: usize| len.wrapping_add(PAGE_SIZE - 1) & !(PAGE_SIZE - 1);
        let (old_len, len) = (whole(old_len), whole(len));
        if flags & !KNOWN != 0 || !old.is_multiple_of(PAGE_SIZE) || len == 0 || len > TASK_SIZE {
            return invalid;
        }
        let named = flags & (libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP) != 0;
        let target = named.then_some(target);
        if let Some(target) = target {
            let overlaps = target < old.saturating_add(old_len) && old < target.saturating_add(len);
            if target > TASK_SIZE - len
                || !target.is_multiple_of(PAGE_SIZE)
                || flags & libc::MREMAP_MAYMOVE == 0
                || (flags & libc::MREMAP_DONTUNMAP != 0 && old_len != len)
                || overlaps
            {
                return invalid;
            }
        }
        Ok(Request { old, old_len, len, flags, target })
    }
}

fn address_or_error(done: io::Result<usize>) -> isize {
    done.map_or_else(|error| kernel_error(&error), |address| address as isize)
}

pub(super) fn remap(engine: &Engine, arguments: Arguments) -> isize {
    let request = match Request::check(arguments) {
        Ok(request) => request,
        Err(error) => return error,
    };
    let is_unmanaged = engine.contains(request.old) && engine.is_unmanaged(request.old);
    let is_managed = engine.contains(request.old) && !is_unmanaged;
    let moves_into_window = request.fixed().is_some_and(|target| engine.contains(target));
    match request.fixed() {
        Some(target) if crosses_edge(engine, target, request.len) => refused(libc::ENOMEM),
        _ if is_managed => remap_managed(engine, &request, moves_into_window),
        Some(target) if moves_into_window => {
            move_into_window(engine, &request, target, is_unmanaged)
        }
        _ if is_unmanaged => move_unmanaged(engine, &request),
        _ => issue(libc::SYS_mremap, arguments),
    }
}

fn crosses_edge(engine: &Engine, start: usize, len: usize) -> bool {
    engine.contains(start) != engine.contains(start + len - 1)
}

fn remap_managed(engine: &Engine, request: &Request, moves_into_window: bool) -> isize {
    let Request { old, old_len, len, .. } = *request;
    if !engine.is_mapped(old, PAGE_SIZE) {
        return refused(libc::EFAULT);
    }
    if engine.is_sealed(old) {
        return refused(libc::EPERM);
    }
    if old_len == 0 {
        return refused(libc::EINVAL);
    }
    if request.target.is_none() {
        let may_move = if request.has(libc::MREMAP_MAYMOVE) { Move::Anywhere } else { Move::Never };
        let done = signals::with_all_blocked(|| engine.remap(old, old_len, len, may_move));
        return address_or_error(done);
    }
    if request.fixed().is_some() && !moves_into_window {
        return move_out_of_window(engine, request);
    }
    let source =
        if request.has(libc::MREMAP_DONTUNMAP) { Source::Emptied } else { Source::Unmapped };
    address_or_error(signals::with_all_blocked(|| {
        engine.remap_to(old, old_len, len, request.fixed(), source)
    }))
}

/// Moves to an address of the kernel's choice, so that a later failure removes no mapping.
fn move_anywhere(request: &Request) -> isize {
    let Request { old, old_len, len, .. } = *request;
    let flags = request.flags & !libc::MREMAP_FIXED | libc::MREMAP_MAYMOVE;
    issue(libc::SYS_mremap, [old, old_len, len, flags as usize, 0, 0])
}

fn move_into_window(
    engine: &Engine,
    request: &Request,
    target: usize,
    is_unmanaged: bool,
) -> isize {
    let moved = if is_unmanaged {
        move_unmanaged(
            engine,
            &Request {
                target: None,
                flags: request.flags & !libc::MREMAP_FIXED | libc::MREMAP_MAYMOVE,
                ..*request
            },
        )
    } else {
        move_anywhere(request)
    };
    if moved < 0 {
        return moved;
    }
    let len = request.len;
    let put = || {
        let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as usize;
        match issue(libc::SYS_mremap, [moved as usize, len, len, flags, target, 0]) {
            error if error < 0 => Err(io::Error::from_raw_os_error(-error as i32)),
            _ => Ok(()),
        }
    };
    match signals::with_all_blocked(|| engine.map_unmanaged(target, len, true, put)) {
        Ok(_) => target as isize,
        Err(error) => kernel_error(&error),
    }
}

/// Resizes or moves an unmanaged mapping in the window. If it moves, it leaves the window.
fn move_unmanaged(engine: &Engine, request: &Request) -> isize {
    let Request { old, old_len, len, .. } = *request;
    let is_in_place =
        request.target.is_none() && len <= old_len && !request.has(libc::MREMAP_FIXED);
    if is_in_place {
        // Resizing to the same length makes the kernel check the mapping.
        let checked = issue(libc::SYS_mremap, [old, old_len, old_len, 0, 0, 0]);
        if checked < 0 || len == old_len {
            return checked;
        }
        let cut = || engine.unmap(old + len, old_len - len);
        return signals::with_all_blocked(cut)
            .map_or_else(|error| kernel_error(&error), |()| old as isize);
    }
    if !request.has(libc::MREMAP_MAYMOVE) {
        // The mapping cannot grow in place: the window continues after it.
        return refused(libc::ENOMEM);
    }
    let target = request.fixed().unwrap_or(0);
    let arguments = [old, old_len, len, request.flags as usize, target, 0];
    let moved = issue(libc::SYS_mremap, arguments);
    if moved >= 0 && !request.has(libc::MREMAP_DONTUNMAP) && old_len > 0 {
        // On failure the addresses are never reused.
        let _ = signals::with_all_blocked(|| engine.unmap(old, old_len));
    }
    moved
}

fn move_out_of_window(engine: &Engine, request: &Request) -> isize {
    let Request { old, old_len, len, .. } = *request;
    if !engine.is_one_mapping(old, old_len) {
        return refused(libc::EFAULT);
    }
    let Some(target) = request.fixed() else { return refused(libc::EINVAL) };
    if !engine.may_lock(len) {
        return refused(libc::ENOMEM);
    }
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize;
    let access = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let made = issue(libc::SYS_mmap, [0, len, access, flags, usize::MAX, 0]);
    if made < 0 {
        return made;
    }
    let made = made as usize;
    let protection = engine.protection(old);
    let placed = copy_out(engine, old, old_len.min(len), made).and_then(|()| {
        let protection = protection as usize;
        let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as usize;
        for (number, arguments) in [
            (libc::SYS_mprotect, [made, len, protection, 0, 0, 0]),
            (libc::SYS_mremap, [made, len, len, flags, target, 0]),
        ] {
            let result = issue(number, arguments);
            if result < 0 {
                return Err(io::Error::from_raw_os_error(-result as i32));
            }
        }
        Ok(())
    });
    if let Err(error) = placed {
        issue(libc::SYS_munmap, [made, len, 0, 0, 0, 0]);
        return kernel_error(&error);
    }
    let done = signals::with_all_blocked(|| match request.has(libc::MREMAP_DONTUNMAP) {
        true => engine.unlock_range(old, old_len).and_then(|()| engine.discard(old, old_len)),
        false => engine.unmap(old, old_len),
    });
    done.map_or_else(|error| kernel_error(&error), |()| target as isize)
}

/// Copies the pages with content. The others are zero in the new mapping already.
fn copy_out(engine: &Engine, from: usize, len: usize, to: usize) -> io::Result<()> {
    let protection = engine.protection(from);
    let is_closed = protection & libc::PROT_READ == 0;
    if is_closed {
        signals::with_all_blocked(|| engine.protect(from, len, libc::PROT_READ))?;
    }
    for offset in (0..len).step_by(PAGE_SIZE) {
        if engine.holds_something(from + offset) {
            // SAFETY: `from` is readable memory of the program, whose pages are faulted in as they
            // are touched; `to` is a mapping made for this copy.
            unsafe {
                let (from, to) = ((from + offset) as *const u8, (to + offset) as *mut u8);
                std::ptr::copy_nonoverlapping(from, to, PAGE_SIZE);
            }
        }
    }
    if is_closed {
        signals::with_all_blocked(|| engine.protect(from, len, protection))?;
    }
    Ok(())
}
