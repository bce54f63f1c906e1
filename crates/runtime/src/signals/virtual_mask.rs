//! A thread's signal mask as the program has set it: the engine signals that it blocks from the
//! program's view. The kernel's mask never contains them.

use super::pending;
use super::sets::{engine_signals, kinds};
use crate::base::issue_call::issue;
use crate::base::{guarded_call, instance};
use softswap_sys::raw;
use softswap_sys::signals::{self, Mask, siginfo_t};
use std::cell::Cell;
use std::sync::atomic::{AtomicI32, Ordering};

thread_local! {
    /// Mask of the child of a `vfork`, which uses this thread's memory until it calls exec, with
    /// its process ID; 0 for none.
    static CHILDS: Cell<(i32, Mask)> = const { Cell::new((0, 0)) };
}

/// The process that owns this memory, and the one that loaded the library; 0 before.
static OWN_PID: AtomicI32 = AtomicI32::new(0);
static LOADED_PID: AtomicI32 = AtomicI32::new(0);

fn current_pid() -> i32 {
    raw::current_process() as i32
}

/// Makes this process the owner of its memory.
pub(crate) fn become_child() {
    let me = current_pid();
    OWN_PID.store(me, Ordering::Relaxed);
    let _ = LOADED_PID.compare_exchange(0, me, Ordering::Relaxed, Ordering::Relaxed);
    pending::become_child();
}

/// Returns true in a forked process, which most probably has one thread.
pub(super) fn is_forked() -> bool {
    LOADED_PID.load(Ordering::Relaxed) != current_pid()
}

/// Returns true in the child of a `vfork`: its signals are its own but its memory is its parent's.
pub(crate) fn is_borrowing() -> bool {
    let own = OWN_PID.load(Ordering::Relaxed);
    own != 0 && own != current_pid()
}

/// Returns the engine signals that this thread blocks, as the program knows it.
pub(crate) fn get() -> Mask {
    let (child, mask) = CHILDS.get();
    if child != 0 && child == current_pid() { mask } else { pending::blocked() }
}

/// Sets the engine signals that this thread blocks, as the program knows it.
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

/// Sets the mask of a new thread, from its creator or its attributes.
pub(crate) fn inherit(mask: Mask) {
    pending::block(mask & engine_signals());
}

/// Moves the engine's signals from the kernel's mask to the emulated one.
pub(super) fn adopt_mask() {
    let mask = signals::current_mask();
    if mask & engine_signals() != 0 {
        pending::block(mask & engine_signals());
        signals::set_mask(mask & !engine_signals());
    }
}

/// Does the same as [`set`], and delivers held signals that are no longer blocked.
pub(crate) fn settle(mask: Mask) {
    let before = get();
    set(mask);
    release(before & !mask);
}

/// Delivers held signals to this thread. Returns true if there were any. In the guard they are
/// delivered when it returns.
pub(super) fn release(of: Mask) -> bool {
    guarded_call::open_mask().is_none() && resend_held(of)
}

/// Sends held signals of this thread to itself through the kernel. Returns true if there were any.
pub(super) fn resend_held(of: Mask) -> bool {
    let mut any = false;
    for signal in kinds(of) {
        while let Some(info) = pending::take(signal) {
            any = true;
            // SAFETY: details that a handler received for this signal.
            let _ = unsafe { signals::raise_with(signal, &raw const info) };
        }
    }
    any
}

/// Returns the set of held signals for this thread.
pub(crate) fn held() -> Mask {
    if instance::emulates_signals() { pending::held() } else { 0 }
}

/// Takes a held signal that a thread waits for.
pub(super) fn take_held(of: Mask) -> Option<(i32, siginfo_t)> {
    kinds(of).find_map(|signal| Some((signal, pending::take(signal)?)))
}

/// Returns a mask changed by a set.
fn changed(before: Mask, how: i32, set: Mask) -> Mask {
    match how {
        libc::SIG_BLOCK => before | set,
        libc::SIG_UNBLOCK => before & !set,
        _ => set,
    }
}

/// Changes the mask of this thread, if `set` is given. Returns the previous mask, or an error
/// number. Every change of a mask in force ends here.
pub(crate) fn change_mask(how: i32, set: Option<Mask>) -> Result<Mask, i32> {
    if how != libc::SIG_UNBLOCK && set.is_some_and(|set| set & engine_signals() == engine_signals())
    {
        instance::prepare_for_full_mask();
    }
    let engine_signals = if instance::emulates_signals() { engine_signals() } else { 0 };
    let local = set.map(|set| set & !engine_signals);
    let mut before: Mask = 0;
    let at = local.as_ref().map_or(0, |set| std::ptr::from_ref(set) as usize);
    let args = [how as usize, at, &raw mut before as usize, size_of::<Mask>(), 0, 0];
    let blocked = get();
    // A call of the program, which its own filters judge.
    let result = issue(libc::SYS_rt_sigprocmask, args);
    if result < 0 {
        return Err(-result as i32);
    }
    if let Some(set) = set {
        let wanted = changed(blocked, how, set) & engine_signals;
        if wanted != blocked {
            settle(wanted);
        }
    }
    Ok(before | blocked)
}

/// Does the same as [`change_mask`] for a caller whose mask `mask` is restored by a handler's
/// return.
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
        *mask = wanted & !engine_signals();
        settle(wanted & engine_signals());
    }
    Ok(before)
}
