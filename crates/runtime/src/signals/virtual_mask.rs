//! A thread's emulated mask: the engine's signals that the program blocks, but the kernel never.

use super::pending;
use super::sets::{engine_signals, kinds};
use crate::base::issue_call::issue;
use crate::base::{guarded_call, instance};
use softswap_sys::raw;
use softswap_sys::signals::{self, Context, Mask, siginfo_t};
use std::cell::Cell;
use std::sync::atomic::{AtomicI32, Ordering};

thread_local! {
    /// PID (0: none) and emulated mask of a `vfork` child, which uses this memory until exec.
    static VFORK_CHILD: Cell<(i32, Mask)> = const { Cell::new((0, 0)) };
}

/// PID of the process that owns this memory; 0 before signal emulation starts.
static OWN_PID: AtomicI32 = AtomicI32::new(0);
/// PID of the process in which signal emulation started; 0 before. Forked children inherit it.
static LOADED_PID: AtomicI32 = AtomicI32::new(0);

fn current_pid() -> i32 {
    raw::current_process() as i32
}

/// Makes this process the owner of the signal state, at the start or in a forked child.
pub(crate) fn become_owner() {
    let me = current_pid();
    OWN_PID.store(me, Ordering::Relaxed);
    let _ = LOADED_PID.compare_exchange(0, me, Ordering::Relaxed, Ordering::Relaxed);
    pending::become_owner();
}

/// Returns true in a forked child, and in the child of a `vfork`.
pub(super) fn is_forked() -> bool {
    LOADED_PID.load(Ordering::Relaxed) != current_pid()
}

/// Returns true in the child of a `vfork`: it has its own signals but uses its parent's memory.
pub(crate) fn is_borrowing() -> bool {
    let own = OWN_PID.load(Ordering::Relaxed);
    own != 0 && own != current_pid()
}

pub(crate) fn get() -> Mask {
    let (child, mask) = VFORK_CHILD.get();
    if child != 0 && child == current_pid() { mask } else { pending::blocked() }
}

pub(crate) fn set(mask: Mask) {
    if mask == get() {
        return;
    }
    if is_borrowing() {
        VFORK_CHILD.set((current_pid(), mask));
    } else {
        pending::block(mask);
        VFORK_CHILD.set((0, 0));
    }
}

/// Sets the emulated mask of a new thread, from its creator or its attributes.
pub(crate) fn inherit(mask: Mask) {
    pending::block(mask & engine_signals());
}

pub(super) fn adopt_mask() {
    let mask = signals::current_mask();
    if mask & engine_signals() != 0 {
        pending::block(mask & engine_signals());
        signals::set_mask(mask & !engine_signals());
    }
}

pub(crate) fn set_and_deliver(mask: Mask) {
    let before = get();
    set(mask);
    release(before & !mask);
}

/// Returns true if any was delivered. In the guard there is none: the guard delivers at its return.
pub(super) fn release(of: Mask) -> bool {
    guarded_call::open_mask().is_none() && resend_held(of)
}

/// Sends held signals to this thread through the kernel. Returns true if there were any.
pub(super) fn resend_held(of: Mask) -> bool {
    let mut any = false;
    for signal in kinds(of) {
        while let Some(info) = pending::take(signal) {
            any = true;
            let _ = signals::raise_with(signal, &info);
        }
    }
    any
}

pub(crate) fn held() -> Mask {
    if instance::emulates_signals() { pending::held() } else { 0 }
}

pub(super) fn take_held(of: Mask) -> Option<(i32, siginfo_t)> {
    kinds(of).find_map(|signal| Some((signal, pending::take(signal)?)))
}

fn changed(before: Mask, how: i32, set: Mask) -> Mask {
    match how {
        libc::SIG_BLOCK => before | set,
        libc::SIG_UNBLOCK => before & !set,
        _ => set,
    }
}

/// All functions that change the mask in force call this. `Err` is an error number.
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
    // The program's own filters judge this call, so it is issued even if the mask does not change.
    let result = issue(libc::SYS_rt_sigprocmask, args);
    if result < 0 {
        return Err(-result as i32);
    }
    if let Some(set) = set {
        let wanted = changed(blocked, how, set) & engine_signals;
        if wanted != blocked {
            set_and_deliver(wanted);
        }
    }
    Ok(before | blocked)
}

pub(crate) fn change_interrupted(
    context: Context<'_>,
    how: i32,
    set: Option<Mask>,
) -> Result<Mask, i32> {
    let before = context.mask() | get();
    if let Some(set) = set {
        if !matches!(how, libc::SIG_BLOCK | libc::SIG_UNBLOCK | libc::SIG_SETMASK) {
            return Err(libc::EINVAL);
        }
        let wanted = changed(before, how, set);
        context.set_mask(wanted & !engine_signals());
        set_and_deliver(wanted & engine_signals());
    }
    Ok(before)
}
