//! A thread's mask as the program has set it: which of the engine's signals it blocks, as
//! far as the program knows. The kernel's mask never has them.

use super::pending;
use super::sets::{kinds, ours};
use crate::base::issue_call::issue;
use crate::base::{guarded_call, instance};
use softswap_sys::raw;
use softswap_sys::signals::{self, Mask, siginfo_t};
use std::cell::Cell;
use std::sync::atomic::{AtomicI32, Ordering};

thread_local! {
    /// What the child of a `vfork`, which has this thread's memory until it
    /// calls exec, blocks: its process number, 0 for none.
    static CHILDS: Cell<(i32, Mask)> = const { Cell::new((0, 0)) };
}

/// The process whose memory this is, and the one that was loaded: 0 before.
static OWN_PID: AtomicI32 = AtomicI32::new(0);
static LOADED_PID: AtomicI32 = AtomicI32::new(0);

fn current_pid() -> i32 {
    raw::current_process() as i32
}

/// This process has this memory for itself from now on.
pub(crate) fn become_child() {
    let me = current_pid();
    OWN_PID.store(me, Ordering::Relaxed);
    let _ = LOADED_PID.compare_exchange(0, me, Ordering::Relaxed, Ordering::Relaxed);
    pending::become_child();
}

/// Whether this process was forked off, and so has most likely one thread.
pub(super) fn is_forked() -> bool {
    LOADED_PID.load(Ordering::Relaxed) != current_pid()
}

/// Whether this is the child of a `vfork`, whose signals are its own but whose memory is
/// its parent's.
pub(crate) fn is_borrowing() -> bool {
    let own = OWN_PID.load(Ordering::Relaxed);
    own != 0 && own != current_pid()
}

/// Which of the engine's signals this thread blocks, as the program knows it.
pub(crate) fn get() -> Mask {
    let (child, mask) = CHILDS.get();
    if child != 0 && child == current_pid() { mask } else { pending::blocked() }
}

/// From now on this thread blocks these, as the program knows it.
pub(crate) fn set(mask: Mask) {
    if mask == get() {
        return;
    }
    if is_borrowing() {
        CHILDS.set((current_pid(), mask));
    } else {
        pending::block(mask);
        CHILDS.set((0, 0));
    }
}

/// A new thread blocks what its maker did, or what its attributes say.
pub(crate) fn inherit(mask: Mask) {
    pending::block(mask & ours());
}

/// Takes the engine's signals out of the mask in force, and notes what there was.
pub(super) fn adopt_mask() {
    let mask = signals::current_mask();
    if mask & ours() != 0 {
        pending::block(mask & ours());
        signals::set_mask(mask & !ours());
    }
}

/// As [`set`], and what was held back of signals that are no longer blocked comes.
pub(crate) fn settle(mask: Mask) {
    let before = get();
    set(mask);
    release(before & !mask);
}

/// Delivers held signals to this thread. True if there were any. In the guard they are delivered
/// when it is done.
pub(super) fn release(of: Mask) -> bool {
    guarded_call::open_mask().is_none() && give_back(of)
}

/// Gives held signals of this thread back to the kernel. True if there were any.
pub(super) fn give_back(of: Mask) -> bool {
    let mut any = false;
    for signal in kinds(of) {
        while let Some(info) = pending::take(signal) {
            any = true;
            // SAFETY: what a handler was given for this signal.
            let _ = unsafe { signals::raise_with(signal, &raw const info) };
        }
    }
    any
}

/// What is held back for this thread.
pub(crate) fn held() -> Mask {
    if instance::emulates_signals() { pending::held() } else { 0 }
}

/// Takes a held signal that a thread waits for.
pub(super) fn take_held(of: Mask) -> Option<(i32, siginfo_t)> {
    kinds(of).find_map(|signal| Some((signal, pending::take(signal)?)))
}

/// How a mask changes by a set.
fn changed(before: Mask, how: i32, set: Mask) -> Mask {
    match how {
        libc::SIG_BLOCK => before | set,
        libc::SIG_UNBLOCK => before & !set,
        _ => set,
    }
}

/// Changes the mask of this thread, if there is a set; the mask before, or an error
/// number. Every change of a mask in force ends here.
pub(crate) fn change_mask(how: i32, set: Option<Mask>) -> Result<Mask, i32> {
    if how != libc::SIG_UNBLOCK && set.is_some_and(|set| set & ours() == ours()) {
        instance::prepare_for_full_mask();
    }
    let ours = if instance::emulates_signals() { ours() } else { 0 };
    let local = set.map(|set| set & !ours);
    let mut before: Mask = 0;
    let at = local.as_ref().map_or(0, |set| std::ptr::from_ref(set) as usize);
    let args = [how as usize, at, &raw mut before as usize, size_of::<Mask>(), 0, 0];
    let blocked = get();
    // The program's call, which its own filters judge.
    let result = issue(libc::SYS_rt_sigprocmask, args);
    if result < 0 {
        return Err(-result as i32);
    }
    if let Some(set) = set {
        let wanted = changed(blocked, how, set) & ours;
        if wanted != blocked {
            settle(wanted);
        }
    }
    Ok(before | blocked)
}

/// As [`change_mask`], where a handler's return puts `mask` in force: the caller's.
pub(crate) fn change_interrupted(
    mask: &mut Mask,
    how: i32,
    set: Option<Mask>,
) -> Result<Mask, i32> {
    let before = *mask | get();
    if let Some(set) = set {
        if !matches!(how, libc::SIG_BLOCK | libc::SIG_UNBLOCK | libc::SIG_SETMASK) {
            return Err(libc::EINVAL);
        }
        let wanted = changed(before, how, set);
        *mask = wanted & !ours();
        settle(wanted & ours());
    }
    Ok(before)
}
