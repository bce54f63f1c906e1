//! Dispatch of memory calls to the engine or the kernel.

use super::mapping_limit::issue_with_room;
use super::{address_choice, mremap, program_break, ranges, sealing};
use crate::base::errno::{c_result, refused, result_of};
use crate::base::issue_call::{Answer, Arguments, answered_by, issue};
use crate::base::large_blocks::{self, NO_CALLER};
use crate::base::uaccess::TASK_SIZE;
use crate::base::{filter_verdict, instance};
use crate::memory::{asleep, hint_retries};
use libc::iovec;
use softswap_engine::api::engine::Engine;
use softswap_sys::{PAGE_SIZE, raw, signals};
use std::ffi::c_void;

fn unmap(engine: &Engine, address: usize, len: usize) -> isize {
    let end = len.checked_next_multiple_of(PAGE_SIZE).and_then(|len| address.checked_add(len));
    let (true, Some(end)) = (len > 0 && address.is_multiple_of(PAGE_SIZE), end) else {
        return refused(libc::EINVAL);
    };
    if end > TASK_SIZE {
        return refused(libc::EINVAL);
    }
    let (base, window_len) = engine.window();
    let inside = end.min(base + window_len);
    hint_retries::note_unmapped(address, || {
        signals::with_all_blocked(|| {
            engine.is_one_mapping(address, len) && engine.protection(address) == libc::PROT_NONE
        })
    });
    let result = result_of(signals::with_all_blocked(|| engine.unmap(address, inside - address)));
    if result == 0 && end > inside {
        return issue(libc::SYS_munmap, [inside, end - inside, 0, 0, 0, 0]);
    }
    result
}

/// Handles a trapped memory call about the window; `None` for other calls.
pub(crate) fn handle(engine: &Engine, number: i64, arguments: Arguments) -> Option<isize> {
    let [address, len, third, fourth, ..] = arguments;
    if engine.contains(address)
        && let Some(refused) = filter_verdict::refusal(number, arguments)
    {
        return Some(refused);
    }
    Some(match number {
        libc::SYS_mmap => address_choice::map(arguments),
        libc::SYS_mremap => mremap::remap(engine, arguments),
        libc::SYS_mincore => ranges::residency(engine, address, len, third),
        // Linux, too, refuses a range that is already mapped.
        libc::SYS_shmat => refused(libc::EINVAL),
        _ if !engine.contains(address) => return None,
        libc::SYS_munmap => unmap(engine, address, len),
        libc::SYS_mprotect => ranges::protect(engine, address, len, third as i32, -1),
        libc::SYS_pkey_mprotect => {
            ranges::protect(engine, address, len, third as i32, fourth as i32)
        }
        libc::SYS_madvise if raw::is_write_request(third, fourth) => {
            ranges::make_writable(engine, address, len)
        }
        libc::SYS_madvise => ranges::advise(engine, address, len, third as i32),
        libc::SYS_mlock => ranges::lock(engine, address, len),
        libc::SYS_mlock2 if third & !(libc::MLOCK_ONFAULT as usize) != 0 => refused(libc::EINVAL),
        libc::SYS_mlock2 => ranges::lock(engine, address, len),
        libc::SYS_munlock => ranges::unlock(engine, address, len),
        libc::SYS_mseal => sealing::seal(engine, address, len, third),
        libc::SYS_msync => ranges::sync(engine, address, len, third as i32),
        _ => return None,
    })
}

pub(crate) fn answer_for(number: i64) -> Option<Answer> {
    Some(match number {
        libc::SYS_pkey_alloc => ranges::allocate_key,
        libc::SYS_mlockall => ranges::lock_all,
        libc::SYS_munlockall => ranges::unlock_all,
        libc::SYS_process_madvise => ranges::advise_process,
        libc::SYS_mseal => sealing::seal_any,
        libc::SYS_brk => program_break::set_break,
        libc::SYS_mmap => map,
        libc::SYS_munmap => unmap_range,
        libc::SYS_mremap => |arguments| dispatch(libc::SYS_mremap, arguments),
        libc::SYS_mprotect => |arguments| dispatch(libc::SYS_mprotect, arguments),
        libc::SYS_madvise => |arguments| dispatch(libc::SYS_madvise, arguments),
        _ => return None,
    })
}

fn dispatch(number: i64, arguments: Arguments) -> isize {
    let asleep = match number {
        libc::SYS_mremap => asleep::remap(arguments),
        _ => asleep::handle(number, arguments),
    };
    if let Some(result) = asleep {
        return result;
    }
    match instance::engine() {
        Some(engine) if engine.contains(arguments[0]) => {
            handle(engine, number, arguments).unwrap_or_else(|| issue(number, arguments))
        }
        // The target may be in the window.
        Some(engine) if number == libc::SYS_mremap && engine.contains(arguments[4]) => {
            mremap::remap(engine, arguments)
        }
        _ => issue_with_room(number, arguments),
    }
}

fn map(arguments: Arguments) -> isize {
    let [_, len, prot, flags, ..] = arguments;
    let flags = flags as i32;
    let mapped = address_choice::map(arguments);
    // Skip reservations, such as an allocator's arenas: they are not in use yet.
    if mapped > 0 && flags & libc::MAP_ANONYMOUS != 0 && flags & libc::MAP_NORESERVE == 0 {
        large_blocks::record(mapped as usize, len, NO_CALLER);
        if prot as i32 & libc::PROT_WRITE != 0 {
            large_blocks::publish(len);
        }
    }
    mapped
}

fn unmap_range(arguments: Arguments) -> isize {
    large_blocks::forget(arguments[0]);
    dispatch(libc::SYS_munmap, arguments)
}

answered_by! {
    mmap(at: *mut c_void, len: usize, prot: i32, flags: i32, fd: i32, offset: i64) -> *mut c_void: map;
    mmap64(at: *mut c_void, len: usize, prot: i32, flags: i32, fd: i32, offset: i64) -> *mut c_void:
        map;
    munmap(at: *mut c_void, len: usize) -> i32: unmap_range;
    mprotect(at: *mut c_void, len: usize, prot: i32) -> i32:
        |arguments| dispatch(libc::SYS_mprotect, arguments);
    madvise(at: *mut c_void, len: usize, advice: i32) -> i32:
        |arguments| dispatch(libc::SYS_madvise, arguments);
    mlockall(flags: i32) -> i32: ranges::lock_all;
    munlockall() -> i32: ranges::unlock_all;
    pkey_alloc(flags: u32, rights: u32) -> i32: ranges::allocate_key;
    process_madvise(fd: i32, vectors: *const iovec, count: usize, advice: i32, flags: u32) -> isize:
        ranges::advise_process;
}

/// Reading the fifth argument is harmless if it was not passed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mremap(
    old: *mut c_void,
    old_len: usize,
    new_len: usize,
    flags: i32,
    target: *mut c_void,
) -> *mut c_void {
    let named = flags & (libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP) != 0;
    let target = if named { target as usize } else { 0 };
    let arguments = [old as usize, old_len, new_len, flags as usize, target, 0];
    c_result(dispatch(libc::SYS_mremap, arguments)) as *mut c_void
}
