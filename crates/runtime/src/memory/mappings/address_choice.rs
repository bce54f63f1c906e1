//! Address of a new mapping.
//!
//! A hint in the window is used, one outside of it only in the cases of [`hint_retries`]. Memory
//! that is accessible from the start is always managed, except for small pieces near code.

use super::mapping_limit::issue_with_room;
use super::populate::populate;
use super::zero_device;
use crate::base::errno::{kernel_error, refused};
use crate::base::instance;
use crate::base::issue_call::{Arguments, issue};
use crate::base::uaccess::TASK_SIZE;
use crate::memory::asleep::{
    self, MIN_MANAGED_BYTES, is_managed_kind, is_unwanted, max_managed_bytes,
};
use crate::memory::hint_retries;
use softswap_engine::api::engine::Engine;
use softswap_sys::PAGE_SIZE;
use softswap_sys::signals;
use std::io;

const ACCESS: i32 = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
const FIXED: i32 = libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE;

fn is_managed_mapping(engine: &Engine, len: usize, prot: i32, flags: i32) -> bool {
    (MIN_MANAGED_BYTES..=max_managed_bytes(engine.window().1)).contains(&len)
        && is_managed_kind(prot, flags, len)
        && !is_unwanted(flags)
}

pub(super) fn map(arguments: Arguments) -> isize {
    let arguments = zero_device::as_anonymous(arguments);
    let [address, len, prot, flags, _, offset] = arguments;
    let (prot, flags) = (prot as i32, flags as i32);
    if let Some(there) = map_outside(arguments).or_else(|| asleep::map(arguments)) {
        return there;
    }
    let Some(engine) = instance::engine() else { return issue(libc::SYS_mmap, arguments) };
    if flags & FIXED != 0 {
        return match engine.contains(address) {
            true => map_within(engine, arguments),
            false if instance::overlaps(engine.window(), address, len) => refused(libc::ENOMEM),
            false => issue_with_room(libc::SYS_mmap, arguments),
        };
    }
    // The kernel reports the error of a bad offset.
    let is_sound = offset.is_multiple_of(PAGE_SIZE);
    if is_sound && is_managed_mapping(engine, len, prot, flags) {
        let hint = address & !(PAGE_SIZE - 1);
        if let Some(address) = map_managed(engine, hint, len, prot & ACCESS) {
            if flags & libc::MAP_POPULATE != 0 && prot & libc::PROT_WRITE != 0 {
                populate(engine, address, len);
            }
            return address as isize;
        }
        // The window is full: unmanaged memory is better than a failure.
    }
    let mut arguments = arguments;
    if engine.contains(address) {
        // The kernel considers the window mapped. If the range is free there, use the hint.
        arguments[0] &= !(PAGE_SIZE - 1);
        arguments[3] |= libc::MAP_FIXED_NOREPLACE as usize;
        match map_within(engine, arguments) {
            there if there >= 0 => return there,
            _ => arguments[0] = 0,
        }
        arguments[3] = flags as usize;
    }
    issue_with_room(libc::SYS_mmap, arguments)
}

fn map_outside(arguments: Arguments) -> Option<isize> {
    let [address, len, prot, flags, ..] = arguments;
    let (prot, flags) = (prot as i32, flags as i32);
    if address < PAGE_SIZE || !is_managed_kind(prot, flags, len) || is_unwanted(flags) {
        return None;
    }
    let has_window = instance::window().is_some() || instance::engine().is_some();
    if !has_window || instance::is_in_window(address) {
        return None;
    }
    if flags & libc::MAP_FIXED_NOREPLACE != 0 {
        let is_refused = prot == libc::PROT_NONE && hint_retries::is_refused(address, len, flags);
        return is_refused.then_some(refused(libc::EEXIST));
    }
    if flags & libc::MAP_FIXED != 0 || len < MIN_MANAGED_BYTES {
        return None;
    }
    hint_retries::map_near_code(arguments)
}

/// Returns `None` if the window is full, or if the kernel should map at a hint outside of it.
fn map_managed(engine: &Engine, hint: usize, len: usize, prot: i32) -> Option<usize> {
    let is_inside = engine.contains(hint);
    if is_inside {
        let there = signals::with_all_blocked(|| engine.map_at(hint, len, prot, false));
        if matches!(there, Ok(true)) {
            return Some(hint);
        }
    }
    let is_hint = hint != 0 && !is_inside && prot == libc::PROT_NONE;
    if is_hint && hint_retries::allows_hint(hint, len) {
        return None;
    }
    let address = signals::with_all_blocked(|| engine.map(len, prot)).ok()??;
    if is_hint {
        hint_retries::note_other_address(address);
    }
    Some(address)
}

fn map_within(engine: &Engine, arguments: Arguments) -> isize {
    let [address, len, prot, flags, _, offset] = arguments;
    let (prot, flags) = (prot as i32, flags as i32);
    if is_managed_kind(prot, flags, len) && flags & libc::MAP_HUGETLB == 0 {
        return match whole_pages(address, len, offset) {
            Ok(len) => map_managed_at(engine, address, len, prot & ACCESS, flags),
            Err(error) => error,
        };
    }
    // Map elsewhere first, so that a failure does not remove existing mappings.
    let mut elsewhere = arguments;
    elsewhere[0] = 0;
    elsewhere[3] = (flags & !FIXED) as usize;
    let mapped = issue(libc::SYS_mmap, elsewhere);
    if mapped < 0 {
        return mapped;
    }
    let mapped = mapped as usize;
    let unit = page_bytes(flags);
    let len = len.next_multiple_of(unit);
    let unmap_and_return = |error| {
        issue(libc::SYS_munmap, [mapped, len, 0, 0, 0, 0]);
        error
    };
    if !address.is_multiple_of(unit) {
        return unmap_and_return(refused(libc::EINVAL));
    }
    let replace = flags & libc::MAP_FIXED_NOREPLACE == 0;
    let placed = signals::with_all_blocked(|| {
        engine.map_unmanaged(address, len, replace, || {
            move_to_address(mapped, len, address, arguments)
        })
    });
    match placed {
        Ok(true) => address as isize,
        Ok(false) => unmap_and_return(refused(libc::EEXIST)),
        Err(error) => unmap_and_return(kernel_error(&error)),
    }
}

fn move_to_address(
    mapped: usize,
    len: usize,
    address: usize,
    arguments: Arguments,
) -> io::Result<()> {
    let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as usize;
    if issue(libc::SYS_mremap, [mapped, len, len, flags, address, 0]) == address as isize {
        return Ok(());
    }
    let mut fixed = arguments;
    let flags = arguments[3] as i32 & !libc::MAP_FIXED_NOREPLACE | libc::MAP_FIXED;
    fixed[3] = flags as usize;
    match issue(libc::SYS_mmap, fixed) {
        error if error < 0 => Err(io::Error::from_raw_os_error(-error as i32)),
        _ => {
            issue(libc::SYS_munmap, [mapped, len, 0, 0, 0, 0]);
            Ok(())
        }
    }
}

/// Returns the page size of a mapping: the unit of its address and length.
fn page_bytes(flags: i32) -> usize {
    const SHIFT: i32 = 26;
    const DEFAULT_LOG: u32 = 21;
    match (flags & libc::MAP_HUGETLB != 0, (flags >> SHIFT & 63) as u32) {
        (false, _) => PAGE_SIZE,
        (true, 0) => 1 << DEFAULT_LOG,
        (true, log) => 1 << log,
    }
}

fn whole_pages(address: usize, len: usize, offset: usize) -> Result<usize, isize> {
    if !offset.is_multiple_of(PAGE_SIZE) || len == 0 {
        return Err(refused(libc::EINVAL));
    }
    let len = len.checked_next_multiple_of(PAGE_SIZE).ok_or(refused(libc::ENOMEM))?;
    if address.checked_add(len).is_none_or(|end| end > TASK_SIZE) {
        return Err(refused(libc::ENOMEM));
    }
    if !address.is_multiple_of(PAGE_SIZE) {
        return Err(refused(libc::EINVAL));
    }
    Ok(len)
}

fn map_managed_at(engine: &Engine, address: usize, len: usize, prot: i32, flags: i32) -> isize {
    let (base, window_len) = engine.window();
    if address + len > base + window_len {
        return refused(libc::ENOMEM);
    }
    let is_locked = flags & libc::MAP_LOCKED != 0;
    if is_locked && !engine.may_lock(len) {
        return refused(libc::EAGAIN);
    }
    let replace = flags & libc::MAP_FIXED_NOREPLACE == 0;
    match signals::with_all_blocked(|| engine.map_at(address, len, prot, replace)) {
        Ok(true) => {}
        Ok(false) => return refused(libc::EEXIST),
        Err(error) => return kernel_error(&error),
    }
    if is_locked {
        // As in Linux, the mapping succeeds even if it cannot be locked.
        let _ = signals::with_all_blocked(|| engine.lock_range(address, len));
    } else if flags & libc::MAP_POPULATE != 0 && prot & libc::PROT_WRITE != 0 {
        populate(engine, address, len);
    }
    address as isize
}
