//! Memory that the kernel accesses by itself for a thread: it cannot have a page brought in then.
//!
//! At a thread's end these are the robust mutexes that it holds, a list that runs through them,
//! and a word that is cleared to wake a waiter. Before, it is the thread's area for restartable
//! sequences (`rseq`), which the kernel writes whenever the thread has been preempted. So these
//! are brought in before a thread ends, or when it names them, and stay pinned until the thread
//! is gone.

use crate::base::errno::refused;
use crate::base::issue_call::{Answer, Arguments, ask, pass_on};
use crate::base::{instance, uaccess};
use crate::signals::lifecycle;
use softswap_engine::door::engine::Engine;
use softswap_sys::locked::Locked;
use softswap_sys::{raw, signals};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

/// Memory that stays until a thread is gone, or its call has ended.
struct KeptRange {
    thread: i32,
    is_for_call: bool,
    address: usize,
    len: usize,
}

static LIST: Locked<Vec<KeptRange>> = Locked::new(Vec::new());

/// The thread that forks.
static FORKING: AtomicI32 = AtomicI32::new(0);

/// Keeps other threads from holding the lock while this one forks.
pub(crate) fn lock_for_fork() {
    LIST.lock_for_fork();
    FORKING.store(raw::current_thread(), Ordering::Relaxed);
}

/// In a forked child: the thread that forked has another number, and the memory is kept for it.
pub(crate) fn become_child() {
    let (before, now) = (FORKING.load(Ordering::Relaxed), raw::current_thread());
    let of_forking = |range: &&mut KeptRange| range.thread == before;
    LIST.with(|kept| kept.iter_mut().filter(of_forking).for_each(|range| range.thread = now));
}

/// Ends what [`lock_for_fork`] began.
pub(crate) fn unlock_after_fork() {
    LIST.unlock_after_fork();
}

/// Brings in `len` bytes and keeps them for as long as this thread is there; whether they
/// can be read now.
fn keep(engine: &Engine, address: usize, len: usize) -> bool {
    if !engine.contains(address) {
        return true;
    }
    let pinned = signals::with_all_blocked(|| engine.pin(address, len, len));
    let Ok(pinned) = pinned else { return false };
    if pinned > 0 {
        let thread = raw::current_thread();
        LIST.with(|kept| kept.push(KeptRange { thread, is_for_call: false, address, len: pinned }));
    }
    pinned == len
}

/// Whether anything is kept for calls.
static ANY_FOR_CALLS: AtomicBool = AtomicBool::new(false);

/// Keeps `len` bytes, as many as can be, until the call ends in which another thread is.
pub(super) fn keep_for_call(engine: &Engine, thread: i32, address: usize, len: usize) {
    let pinned = signals::with_all_blocked(|| engine.pin(address, len, len)).unwrap_or(0);
    if pinned > 0 {
        LIST.with(|kept| kept.push(KeptRange { thread, is_for_call: true, address, len: pinned }));
        ANY_FOR_CALLS.store(true, Ordering::Release);
    }
}

/// This thread makes another call: that for which something is kept has ended.
#[inline]
pub(crate) fn note_call(engine: &Engine) {
    if ANY_FOR_CALLS.load(Ordering::Acquire) {
        end_call(engine);
    }
}

#[cold]
fn end_call(engine: &Engine) {
    let own = raw::current_thread();
    LIST.with(|kept| {
        kept.retain(|range| {
            let ends = range.is_for_call && range.thread == own;
            if ends {
                engine.unpin(range.address, range.len);
            }
            !ends
        });
        if !kept.iter().any(|range| range.is_for_call) {
            ANY_FOR_CALLS.store(false, Ordering::Release);
        }
    });
}

/// Gives up what was kept for threads that are gone.
pub(crate) fn release_gone(engine: &Engine) {
    let process = raw::current_process() as usize;
    let is_gone = |thread: i32| {
        ask(libc::SYS_tgkill, [process, thread as usize, 0, 0, 0, 0]) == refused(libc::ESRCH)
    };
    LIST.with(|kept| {
        kept.retain(|range| {
            let stays = !is_gone(range.thread);
            if !stays {
                engine.unpin(range.address, range.len);
            }
            stays
        });
    });
}

/// So many entries the kernel looks at.
const MOST_ENTRIES: usize = 2048;
/// Marks entries of mutexes that hand priority on.
const MARK: usize = 1;

/// Keeps what the kernel looks at when this thread ends.
pub(crate) fn prepare(engine: &Engine) {
    let (mut at, mut len) = (0_usize, 0_usize);
    let places = [0, &raw mut at as usize, &raw mut len as usize, 0, 0, 0];
    if ask(libc::SYS_get_robust_list, places) < 0 || at == 0 {
        return;
    }
    // <linux/futex.h>: the first entry, how far a futex word lies from its entry, and
    // an entry that is just being put in or taken out.
    const HEAD_BYTES: usize = 3 * size_of::<usize>();
    if !keep(engine, at, HEAD_BYTES) {
        return;
    }
    let Some([mut entry, word_at, pending]) = uaccess::words(at) else { return };
    let keep_word = |entry: usize| {
        keep(engine, (entry & !MARK).wrapping_add(word_at), size_of::<u32>());
    };
    if pending & !MARK != 0 {
        keep_word(pending);
    }
    for _ in 0..MOST_ENTRIES {
        let place = entry & !MARK;
        if place == at || place == 0 || !keep(engine, place, size_of::<usize>()) {
            break;
        }
        // The kernel ends a list that names memory which is gone.
        let Some([next]) = uaccess::words(place) else { break };
        keep_word(entry);
        entry = next;
    }
    release_gone(engine);
}

fn exit(arguments: Arguments) -> isize {
    lifecycle::leave();
    if let Some(engine) = instance::engine() {
        prepare(engine);
    }
    pass_on(libc::SYS_exit, arguments)
}

fn set_tid_address(arguments: Arguments) -> isize {
    if instance::is_in_window(arguments[0]) {
        instance::awake();
    }
    if let Some(engine) = instance::engine() {
        keep(engine, arguments[0], size_of::<u32>());
    }
    pass_on(libc::SYS_set_tid_address, arguments)
}

/// Ends what [`keep`] began for this thread's area at `address`.
fn release(engine: &Engine, address: usize) {
    let thread = raw::current_thread();
    LIST.with(|kept| {
        let is_it = |range: &KeptRange| range.thread == thread && range.address == address;
        if let Some(at) = kept.iter().position(|range| is_it(range) && !range.is_for_call) {
            let range = kept.swap_remove(at);
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
        keep(engine, address, len as u32 as usize);
    }
    let result = pass_on(libc::SYS_rseq, arguments);
    if registers != (result == 0) {
        release(engine, address);
    }
    result
}

/// The answer to a call by its number, if it names memory that the kernel accesses later.
pub(crate) fn answer_for(number: i64) -> Option<Answer> {
    match number {
        libc::SYS_rseq => Some(rseq),
        libc::SYS_exit => Some(exit),
        libc::SYS_set_tid_address => Some(set_tid_address),
        _ => None,
    }
}
