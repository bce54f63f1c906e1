//! The program's action for each signal: for the engine's signals, whose action in the kernel
//! stays the engine's, and for those whose action in the kernel is the runtime's entry.

use super::pending;
use super::sets::{kinds, ours};
use crate::base::instance;
use softswap_sys::futex::Lock;
use softswap_sys::signals::{self, Action, Mask, SA_RESTORER, SIGSEGV, SIGSYS};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Flags that the kernel knows; it forgets others.
const KNOWN_FLAGS: u64 = 0xdc00_0807 | SA_RESTORER;
/// What the kernel takes out of every mask.
const NEVER_MASKED: Mask = signals::bit(libc::SIGKILL) | signals::bit(libc::SIGSTOP);

/// What the program asked for one of the engine's signals.
pub(super) struct Remembered {
    lock: Lock,
    action: UnsafeCell<Action>,
}

// SAFETY: `action` is only touched under `lock`.
unsafe impl Sync for Remembered {}

impl Remembered {
    const fn new() -> Remembered {
        Remembered { lock: Lock::new(), action: UnsafeCell::new(Action::DEFAULT) }
    }

    fn with<R>(&self, body: impl FnOnce(&mut Action) -> R) -> R {
        signals::with_all_blocked(|| {
            // Who forks has it already.
            let has_lock = pending::has_lock_for_fork();
            if !has_lock {
                self.lock.lock();
            }
            // SAFETY: the lock is held.
            let result = body(unsafe { &mut *self.action.get() });
            if !has_lock {
                self.lock.unlock();
            }
            result
        })
    }

    pub(super) fn change(&self, new: Option<Action>) -> Action {
        self.with(|action| {
            let before = *action;
            if let Some(new) = new {
                *action =
                    Action::new(new.handler, new.flags & KNOWN_FLAGS, new.mask & !NEVER_MASKED);
            }
            before
        })
    }

    /// What a handler of the program's is called with now.
    pub(super) fn take_action(&self) -> Action {
        self.with(|now| {
            let action = *now;
            if action.flags & libc::SA_RESETHAND as u32 as u64 != 0 {
                now.handler = libc::SIG_DFL;
            }
            action
        })
    }

    /// Whether the program ignores it.
    pub(super) fn is_ignored(&self) -> bool {
        self.with(|action| action.handler == libc::SIG_IGN)
    }
}

static ON_SIGBUS: Remembered = Remembered::new();
static ON_SIGSYS: Remembered = Remembered::new();
static ON_SIGSEGV: Remembered = Remembered::new();

/// Keeps other threads from holding these locks while this one forks.
pub(crate) fn lock_for_fork() {
    // One that arrives in between would find a lock taken, and nobody to give it back.
    signals::with_all_blocked(|| {
        ON_SIGBUS.lock.lock();
        ON_SIGSYS.lock.lock();
        ON_SIGSEGV.lock.lock();
        pending::lock_for_fork();
    });
}

/// Ends what [`lock_for_fork`] began.
pub(crate) fn unlock_after_fork() {
    signals::with_all_blocked(|| {
        pending::unlock_after_fork();
        ON_SIGSEGV.lock.unlock();
        ON_SIGBUS.lock.unlock();
        ON_SIGSYS.lock.unlock();
    });
}

/// An action of the program's for a signal that the kernel has the runtime's entry for.
pub(super) struct Asked {
    pub(super) handler: AtomicUsize,
    pub(super) flags: AtomicU64,
    pub(super) mask: AtomicU64,
}

impl Asked {
    const fn new() -> Asked {
        Asked { handler: AtomicUsize::new(0), flags: AtomicU64::new(0), mask: AtomicU64::new(0) }
    }

    pub(super) fn get(&self) -> Action {
        let handler = self.handler.load(Ordering::Relaxed);
        let flags = self.flags.load(Ordering::Relaxed);
        Action::new(handler, flags, self.mask.load(Ordering::Relaxed))
    }

    pub(super) fn set(&self, action: &Action) {
        self.mask.store(action.mask & !NEVER_MASKED, Ordering::Relaxed);
        self.flags.store(action.flags & KNOWN_FLAGS | SA_RESTORER, Ordering::Relaxed);
        self.handler.store(action.handler, Ordering::Release);
    }
}

/// By signal number.
pub(super) static ASKED: [Asked; 65] = [const { Asked::new() }; 65];

pub(super) fn remembered(signal: i32) -> Option<&'static Remembered> {
    // Before the engine is up, and without one, these are the program's.
    if !instance::emulates_signals() {
        return None;
    }
    kinds(ours()).any(|ours| ours == signal).then(|| of_engines(signal))
}

/// The program's action for a signal of the engine's.
pub(super) fn of_engines(signal: i32) -> &'static Remembered {
    match signal {
        SIGSYS => &ON_SIGSYS,
        SIGSEGV => &ON_SIGSEGV,
        _ => &ON_SIGBUS,
    }
}

/// Notes the action that a signal of the engine's had in the kernel.
pub(super) fn remember(signal: i32, action: Action) {
    of_engines(signal).change(Some(action));
}
