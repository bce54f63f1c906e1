//! What a thread believes to block of the engine's signals.

use super::{OURS, pending};
use crate::guard::issue;
use crate::start;
use softswap_sys::raw;
use softswap_sys::signals::{self, Mask, SIGBUS, SIGSYS, siginfo_t};
use std::cell::Cell;
use std::sync::atomic::{AtomicI32, Ordering};

thread_local! {
    /// What the child of a `vfork`, which has this thread's memory until it
    /// calls exec, believes: its process number, 0 for none.
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
pub(super) fn is_borrowing() -> bool {
    let own = OWN_PID.load(Ordering::Relaxed);
    own != 0 && own != current_pid()
}

/// Which of the engine's signals this thread believes it has blocked.
pub(crate) fn believed() -> Mask {
    let (child, mask) = CHILDS.get();
    if child != 0 && child == current_pid() { mask } else { pending::believed() }
}

/// From now on this thread believes to block these.
pub(super) fn believe(mask: Mask) {
    if mask == believed() {
        return;
    }
    if is_borrowing() {
        CHILDS.set((current_pid(), mask));
    } else {
        pending::believe(mask);
        CHILDS.set((0, 0));
    }
}

/// A new thread believes what its maker did, or what its attributes say.
pub(crate) fn inherit(mask: Mask) {
    pending::believe(mask & OURS);
}

/// Takes the engine's signals out of the mask in force: what there was is believed.
pub(super) fn adopt_mask() {
    let mask = signals::current_mask();
    if mask & OURS != 0 {
        pending::believe(mask & OURS);
        signals::set_mask(mask & !OURS);
    }
}

/// As [`believe`], and what was held back of signals that are no longer blocked strikes.
pub(super) fn settle(mask: Mask) {
    let before = believed();
    believe(mask);
    release(before & !mask);
}

/// Lets held signals strike this thread. True if there were any.
pub(super) fn release(of: Mask) -> bool {
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

/// The engine's signals that a mask names.
pub(super) fn kinds(of: Mask) -> impl Iterator<Item = i32> {
    [SIGBUS, SIGSYS].into_iter().filter(move |signal| of & signals::bit(*signal) != 0)
}

/// What is held back for this thread.
pub(super) fn held() -> Mask {
    if start::engine().is_some() { pending::held() } else { 0 }
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
pub(super) fn change_mask(how: i32, set: Option<Mask>) -> Result<Mask, i32> {
    let ours = if start::engine().is_some() { OURS } else { 0 };
    let local = set.map(|set| set & !ours);
    let mut before: Mask = 0;
    let at = local.as_ref().map_or(0, |set| std::ptr::from_ref(set) as usize);
    let args = [how as usize, at, &raw mut before as usize, size_of::<Mask>(), 0, 0];
    let believed = believed();
    // The program's call, which its own filters judge.
    let result = issue(libc::SYS_rt_sigprocmask, args);
    if result < 0 {
        return Err(-result as i32);
    }
    if let Some(set) = set {
        let wanted = changed(believed, how, set) & ours;
        if wanted != believed {
            settle(wanted);
        }
    }
    Ok(before | believed)
}

/// As [`change_mask`], where a handler's return puts `mask` in force: the caller's.
pub(super) fn change_interrupted(
    mask: &mut Mask,
    how: i32,
    set: Option<Mask>,
) -> Result<Mask, i32> {
    let before = *mask | believed();
    if let Some(set) = set {
        if !matches!(how, libc::SIG_BLOCK | libc::SIG_UNBLOCK | libc::SIG_SETMASK) {
            return Err(libc::EINVAL);
        }
        let wanted = changed(before, how, set);
        *mask = wanted & !OURS;
        settle(wanted & OURS);
    }
    Ok(before)
}
