//! Memory that the kernel accesses for a thread by itself, when it cannot fault in a page.
//!
//! At a thread's exit the kernel accesses the robust mutexes that the thread holds, and a word that
//! it clears to wake a waiter. While the thread runs, the kernel writes its area for restartable
//! sequences (`rseq`) after each preemption. So this memory is faulted in when it is registered, or
//! before the thread exits, and stays pinned until then.

use super::own_threads;
use crate::base::errno::refused;
use crate::base::issue_call::{Answer, Arguments, engine_syscall, pass_on};
use crate::base::{instance, uaccess};
use crate::signals::lifecycle;
use softswap_engine::api::engine::Engine;
use softswap_sys::locked::Locked;
use softswap_sys::signals::with_engine_stack;
use softswap_sys::{raw, signals};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

pub(super) struct PinnedRange {
    thread: i32,
    is_for_call: bool,
    address: usize,
    len: usize,
}

pub(super) static LIST: Locked<Vec<PinnedRange>> = Locked::new(Vec::new());

static FORKING_THREAD: AtomicI32 = AtomicI32::new(0);

pub(crate) fn lock_for_fork() {
    LIST.lock_for_fork();
    FORKING_THREAD.store(raw::current_thread(), Ordering::Relaxed);
}

pub(crate) fn become_child() {
    let (before, now) = (FORKING_THREAD.load(Ordering::Relaxed), raw::current_thread());
    let of_forking = |range: &&mut PinnedRange| range.thread == before;
    LIST.with(|ranges| ranges.iter_mut().filter(of_forking).for_each(|range| range.thread = now));
}

/// Returns false if the bytes cannot be faulted in.
fn pin(engine: &Engine, address: usize, len: usize) -> bool {
    if !engine.contains(address) {
        return true;
    }
    let pinned = signals::with_all_blocked(|| engine.pin(address, len, len));
    let Ok(pinned) = pinned else { return false };
    if pinned > 0 {
        let thread = raw::current_thread();
        LIST.with(|ranges| {
            ranges.push(PinnedRange { thread, is_for_call: false, address, len: pinned })
        });
    }
    pinned == len
}

static ANY_FOR_CALLS: AtomicBool = AtomicBool::new(false);

pub(super) fn pin_for_call(engine: &Engine, thread: i32, address: usize, len: usize) {
    let pinned = signals::with_all_blocked(|| engine.pin(address, len, len)).unwrap_or(0);
    if pinned > 0 {
        LIST.with(|ranges| {
            ranges.push(PinnedRange { thread, is_for_call: true, address, len: pinned })
        });
        ANY_FOR_CALLS.store(true, Ordering::Release);
    }
}

/// Called when the thread makes another call: releases the memory of the previous one.
#[inline]
pub(crate) fn note_call(engine: &Engine) {
    if ANY_FOR_CALLS.load(Ordering::Acquire) {
        end_call(engine);
    }
}

#[cold]
fn end_call(engine: &Engine) {
    let own = raw::current_thread();
    LIST.with(|ranges| {
        ranges.retain(|range| {
            let is_done = range.is_for_call && range.thread == own;
            if is_done {
                engine.unpin(range.address, range.len);
            }
            !is_done
        });
        if !ranges.iter().any(|range| range.is_for_call) {
            ANY_FOR_CALLS.store(false, Ordering::Release);
        }
    });
}

pub(crate) fn release_exited(engine: &Engine) {
    let process = raw::current_process() as usize;
    let has_exited = |thread: i32| {
        engine_syscall(libc::SYS_tgkill, [process, thread as usize, 0, 0, 0, 0])
            == refused(libc::ESRCH)
    };
    LIST.with(|ranges| {
        ranges.retain(|range| {
            let stays = !has_exited(range.thread);
            if !stays {
                engine.unpin(range.address, range.len);
            }
            stays
        });
    });
}

/// Maximum number of entries of the list of robust mutexes that the kernel processes.
const MAX_ENTRIES: usize = 2048;
/// Flag in an entry's address: the mutex has priority inheritance.
const PI_FLAG: usize = 1;

pub(crate) fn prepare(engine: &Engine) {
    let (mut at, mut len) = (0_usize, 0_usize);
    let places = [0, &raw mut at as usize, &raw mut len as usize, 0, 0, 0];
    if engine_syscall(libc::SYS_get_robust_list, places) < 0 || at == 0 {
        return;
    }
    // <linux/futex.h>: the first entry, the offset of a futex word from its entry, and the entry
    // that is being inserted or removed.
    const HEAD_BYTES: usize = 3 * size_of::<usize>();
    if !pin(engine, at, HEAD_BYTES) {
        return;
    }
    let Some([mut entry, word_at, pending]) = uaccess::words(at) else { return };
    let pin_word = |entry: usize| {
        pin(engine, (entry & !PI_FLAG).wrapping_add(word_at), size_of::<u32>());
    };
    if pending & !PI_FLAG != 0 {
        pin_word(pending);
    }
    for _ in 0..MAX_ENTRIES {
        let place = entry & !PI_FLAG;
        if place == at || place == 0 || !pin(engine, place, size_of::<usize>()) {
            break;
        }
        // The kernel stops at an unmapped entry, too.
        let Some([next]) = uaccess::words(place) else { break };
        pin_word(entry);
        entry = next;
    }
    release_exited(engine);
}

fn exit(arguments: Arguments) -> isize {
    lifecycle::unregister_thread();
    if let Some(engine) = instance::engine() {
        prepare(engine);
    }
    let is_last = own_threads::is_last_of_program();
    pass_on(if is_last { libc::SYS_exit_group } else { libc::SYS_exit }, arguments)
}

/// Exits the process if this is the program's last thread. Otherwise the caller exits the thread.
pub(super) extern "C" fn exit_if_last(status: i32) -> i32 {
    with_engine_stack(|| {
        if own_threads::is_last_of_program() {
            engine_syscall(libc::SYS_exit_group, [status as usize, 0, 0, 0, 0, 0]);
        }
        status
    })
}

fn set_tid_address(arguments: Arguments) -> isize {
    if instance::is_in_window(arguments[0]) {
        instance::awake();
    }
    if let Some(engine) = instance::engine() {
        pin(engine, arguments[0], size_of::<u32>());
    }
    pass_on(libc::SYS_set_tid_address, arguments)
}

fn release(engine: &Engine, address: usize) {
    let thread = raw::current_thread();
    LIST.with(|ranges| {
        let matches = |range: &PinnedRange| range.thread == thread && range.address == address;
        if let Some(at) = ranges.iter().position(|range| matches(range) && !range.is_for_call) {
            let range = ranges.swap_remove(at);
            engine.unpin(range.address, range.len);
        }
    });
}

fn rseq(arguments: Arguments) -> isize {
    const UNREGISTER: usize = 1;
    let [address, len, flags, ..] = arguments;
    if instance::is_in_window(address) {
        instance::awake();
    }
    let Some(engine) = instance::engine().filter(|engine| engine.contains(address)) else {
        return pass_on(libc::SYS_rseq, arguments);
    };
    let registers = flags & UNREGISTER == 0;
    if registers {
        pin(engine, address, len as u32 as usize);
    }
    let result = pass_on(libc::SYS_rseq, arguments);
    if registers != (result == 0) {
        release(engine, address);
    }
    result
}

pub(crate) fn answer_for(number: i64) -> Option<Answer> {
    match number {
        libc::SYS_rseq => Some(rseq),
        libc::SYS_exit => Some(exit),
        libc::SYS_set_tid_address => Some(set_tid_address),
        _ => None,
    }
}
