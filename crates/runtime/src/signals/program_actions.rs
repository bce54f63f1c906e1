//! The program's actions for signals for which the kernel has the engine's or runtime's handler.

use super::pending;
use super::sets::{engine_signals, kinds};
use crate::base::instance;
use softswap_sys::futex::Lock;
use softswap_sys::signals::{self, Action, Mask, SA_RESTORER, SIGSEGV, SIGSYS};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Flags that the kernel stores; it drops other flags.
const KNOWN_FLAGS: u64 = 0xdc00_0807 | SA_RESTORER;
/// Signals that the kernel removes from every mask.
const NEVER_MASKED: Mask = signals::bit(libc::SIGKILL) | signals::bit(libc::SIGSTOP);

pub(super) struct Remembered {
    lock: Lock,
    action: UnsafeCell<Action>,
}

// SAFETY: `action` is only accessed under `lock`.
unsafe impl Sync for Remembered {}

impl Remembered {
    const fn new() -> Remembered {
        Remembered { lock: Lock::new(), action: UnsafeCell::new(Action::DEFAULT) }
    }

    fn with<R>(&self, body: impl FnOnce(&mut Action) -> R) -> R {
        signals::with_all_blocked(|| {
            // A forking thread already holds the lock.
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

    /// Also resets the action if the program has set SA_RESETHAND.
    pub(super) fn take_action(&self) -> Action {
        self.with(|now| {
            let action = *now;
            if action.flags & libc::SA_RESETHAND as u32 as u64 != 0 {
                now.handler = libc::SIG_DFL;
            }
            action
        })
    }

    pub(super) fn is_ignored(&self) -> bool {
        self.with(|action| action.handler == libc::SIG_IGN)
    }
}

static ON_SIGBUS: Remembered = Remembered::new();
static ON_SIGSYS: Remembered = Remembered::new();
static ON_SIGSEGV: Remembered = Remembered::new();

pub(crate) fn lock_for_fork() {
    // With signals blocked: a handler would wait for a lock that its own thread holds.
    signals::with_all_blocked(|| {
        ON_SIGBUS.lock.lock();
        ON_SIGSYS.lock.lock();
        ON_SIGSEGV.lock.lock();
        pending::lock_for_fork();
    });
}

pub(crate) fn unlock_after_fork() {
    signals::with_all_blocked(|| {
        pending::unlock_after_fork();
        ON_SIGSEGV.lock.unlock();
        ON_SIGBUS.lock.unlock();
        ON_SIGSYS.lock.unlock();
    });
}

/// The program's action for a signal whose action in the kernel is the runtime's entry.
pub(super) struct ProgramAction {
    pub(super) handler: AtomicUsize,
    pub(super) flags: AtomicU64,
    pub(super) mask: AtomicU64,
}

impl ProgramAction {
    const fn new() -> ProgramAction {
        ProgramAction {
            handler: AtomicUsize::new(0),
            flags: AtomicU64::new(0),
            mask: AtomicU64::new(0),
        }
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

pub(super) static PROGRAM_ACTIONS: [ProgramAction; 65] = [const { ProgramAction::new() }; 65];

pub(super) fn remembered(signal: i32) -> Option<&'static Remembered> {
    // Without signal emulation, the kernel has the program's actions.
    if !instance::emulates_signals() {
        return None;
    }
    kinds(engine_signals()).any(|other| other == signal).then(|| of_engines(signal))
}

pub(super) fn of_engines(signal: i32) -> &'static Remembered {
    match signal {
        SIGSYS => &ON_SIGSYS,
        SIGSEGV => &ON_SIGSEGV,
        _ => &ON_SIGBUS,
    }
}

pub(super) fn remember(signal: i32, action: Action) {
    of_engines(signal).change(Some(action));
}
