//! `sigaction`, `sigprocmask` and their relatives.
//!
//! SIGBUS and SIGSYS belong to the engine: what the program installs for them
//! is remembered and called for what is not the engine's. They are kept out of
//! every mask, because a blocked synchronous signal kills; what the program
//! thinks it blocked is remembered too, and told when asked.

use crate::real::{c_result, real};
use crate::start;
use libc::{sigaction as Action, sigset_t, timespec};
use softswap_engine::stats::Counter;
use softswap_sys::raw;
use softswap_sys::signals::{self, Mask, NEVER_BLOCKED, SIGBUS, SIGSYS, siginfo_t};
use std::cell::{Cell, UnsafeCell};
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What the program asked for one of the engine's signals.
struct Remembered {
    locked: AtomicBool,
    action: UnsafeCell<Action>,
}

// SAFETY: `action` is only touched under `locked`.
unsafe impl Sync for Remembered {}

impl Remembered {
    const fn new() -> Remembered {
        Remembered {
            locked: AtomicBool::new(false),
            // SAFETY: all-zero is SIG_DFL with an empty mask.
            action: UnsafeCell::new(unsafe { std::mem::zeroed() }),
        }
    }

    fn lock(&self) {
        while self.locked.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
    }

    fn unlock(&self) {
        self.locked.store(false, Ordering::Release);
    }

    fn with<R>(&self, body: impl FnOnce(&mut Action) -> R) -> R {
        signals::with_all_blocked(|| {
            self.lock();
            // SAFETY: the lock is held.
            let result = body(unsafe { &mut *self.action.get() });
            self.unlock();
            result
        })
    }
}

static ON_SIGBUS: Remembered = Remembered::new();
static ON_SIGSYS: Remembered = Remembered::new();
/// For each signal: which of the engine's signals its handler's mask named.
static NAMED_IN_MASK: [AtomicU64; 65] = [const { AtomicU64::new(0) }; 65];

/// For each signal: whether its handler was moved to the alternate stack.
static MOVED: [AtomicBool; 65] = [const { AtomicBool::new(false) }; 65];

thread_local! {
    /// Which of the engine's signals this thread believes it has blocked.
    static BELIEVED: Cell<Mask> = const { Cell::new(0) };
}

/// Keeps other threads from holding these locks while this one forks.
pub(crate) fn lock_for_fork() {
    ON_SIGBUS.lock();
    ON_SIGSYS.lock();
}

/// Ends what [`lock_for_fork`] began.
pub(crate) fn unlock_after_fork() {
    ON_SIGBUS.unlock();
    ON_SIGSYS.unlock();
}

fn remembered(signal: i32) -> Option<&'static Remembered> {
    // Before the engine is up, and without one, these are the program's.
    start::engine()?;
    match signal {
        SIGBUS => Some(&ON_SIGBUS),
        SIGSYS => Some(&ON_SIGSYS),
        _ => None,
    }
}

/// The kernel's part of a C library set.
///
/// # Safety
/// `set` is a valid sigset_t.
unsafe fn bits(set: *const sigset_t) -> Mask {
    // SAFETY: a sigset_t starts with the kernel's 64 bits.
    unsafe { set.cast::<Mask>().read_unaligned() }
}

fn set_bits(set: &mut sigset_t, mask: Mask) {
    // SAFETY: as in `bits`.
    unsafe { std::ptr::from_mut(set).cast::<Mask>().write_unaligned(mask) };
}

/// Whether the signal's action is to ignore it.
pub(crate) fn is_ignored(signal: i32) -> bool {
    // SAFETY: all-zero is a valid value to write over.
    let mut action: Action = unsafe { std::mem::zeroed() };
    // SAFETY: only reads the action, into valid memory.
    unsafe { signals::sigaction(signal, std::ptr::null(), &raw mut action) };
    action.sa_sigaction == libc::SIG_IGN
}

/// Gives one of the engine's signals to the program, as if the engine were
/// not there.
///
/// # Safety
/// Called in a handler, with its `info` and `context`.
pub(crate) unsafe fn deliver(signal: i32, info: *mut siginfo_t, context: *mut c_void) {
    if let Some(engine) = start::engine() {
        engine.stats().add(Counter::SignalsPassedOn, 1);
    }
    let action = match signal {
        SIGBUS => ON_SIGBUS.with(|action| *action),
        _ => ON_SIGSYS.with(|action| *action),
    };
    match action.sa_sigaction {
        libc::SIG_IGN => {
            // The kernel kills for a synchronous signal that is ignored; one
            // that was sent is dropped.
            // SAFETY: the handler's own details.
            if unsafe { (*info).si_code } <= 0 {
                return;
            }
        }
        libc::SIG_DFL => {}
        handler => {
            // SAFETY: the context is this handler's; it comes before the mask.
            let mask = unsafe { *signals::interrupted_mask(context) };
            // SAFETY: the handler's mask is a valid set.
            let mut during = mask | unsafe { bits(&raw const action.sa_mask) };
            if action.sa_flags & libc::SA_NODEFER == 0 {
                during |= signals::bit(signal);
            }
            signals::set_mask(during & !NEVER_BLOCKED);
            if action.sa_flags & libc::SA_SIGINFO != 0 {
                // SAFETY: the program installed a three-argument handler.
                let handler: signals::Handler = unsafe { std::mem::transmute(handler) };
                handler(signal, info, context);
            } else {
                // SAFETY: the program installed a one-argument handler.
                let handler: extern "C" fn(i32) = unsafe { std::mem::transmute(handler) };
                handler(signal);
            }
            return;
        }
    }
    signals::set_default(signal);
    // SAFETY: the handler's own details and context.
    unsafe { crate::faults::strike(signal, info, context) };
}

/// # Safety
/// As `sigaction(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaction(signal: i32, new: *const Action, old: *mut Action) -> i32 {
    if let Some(remembered) = remembered(signal) {
        // Read and written outside the lock: the pointers may be managed.
        // SAFETY: the caller's pointers are valid or null.
        let wanted = unsafe { new.as_ref() }.copied();
        let before = remembered.with(|action| {
            let before = *action;
            if let Some(wanted) = wanted {
                *action = wanted;
            }
            before
        });
        // SAFETY: likewise.
        if let Some(old) = unsafe { old.as_mut() } {
            *old = before;
        }
        return 0;
    }
    let slot = NAMED_IN_MASK.get(signal as usize);
    // SAFETY: as above.
    let mut local = unsafe { new.as_ref() }.copied();
    let mut named = None;
    let mut moved = false;
    if let Some(action) = &mut local
        && start::engine().is_some()
    {
        // SAFETY: a copied, valid set.
        let mask = unsafe { bits(&raw const action.sa_mask) };
        named = Some(mask & NEVER_BLOCKED);
        set_bits(&mut action.sa_mask, mask & !NEVER_BLOCKED);
        // The kernel cannot put a handler's frame on a stack that is swapped
        // out (a coroutine's, say), so every handler runs on the thread's
        // alternate stack.
        moved = action.sa_flags & libc::SA_ONSTACK == 0;
        action.sa_flags |= libc::SA_ONSTACK;
    }
    // SAFETY: all-zero is a valid value to write over.
    let mut before: Action = unsafe { std::mem::zeroed() };
    let new = local.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: both pointers are to locals.
    let result = unsafe { signals::sigaction(signal, new, &raw mut before) };
    if result == 0 {
        let was_named = slot.map_or(0, |slot| match named {
            Some(named) => slot.swap(named, Ordering::Relaxed),
            None => slot.load(Ordering::Relaxed),
        });
        let was_moved = MOVED.get(signal as usize).is_some_and(|flag| match named {
            Some(_) => flag.swap(moved, Ordering::Relaxed),
            None => flag.load(Ordering::Relaxed),
        });
        // SAFETY: the caller's pointer is valid or null.
        if let Some(old) = unsafe { old.as_mut() } {
            if was_moved {
                before.sa_flags &= !libc::SA_ONSTACK;
            }
            // SAFETY: a valid set.
            let mask = unsafe { bits(&raw const before.sa_mask) };
            set_bits(&mut before.sa_mask, mask | was_named);
            *old = before;
        }
    }
    result
}

/// # Safety
/// As `signal(2)`, with the BSD semantics that glibc gives it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn signal(number: i32, handler: usize) -> usize {
    // SAFETY: all-zero is a valid sigaction.
    let mut action: Action = unsafe { std::mem::zeroed() };
    // SAFETY: likewise.
    let mut old: Action = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = libc::SA_RESTART;
    set_bits(
        &mut action.sa_mask,
        if (1..=64).contains(&number) { signals::bit(number) } else { 0 },
    );
    // SAFETY: pointers to locals.
    if unsafe { sigaction(number, &raw const action, &raw mut old) } != 0 {
        return libc::SIG_ERR;
    }
    old.sa_sigaction
}

/// Signals that the C library keeps for itself (cancellation, setxid).
pub(crate) const INTERNAL: Mask = signals::bit(32) | signals::bit(33);

/// Changes the mask; 0 or an error number.
///
/// # Safety
/// As `pthread_sigmask(3)`.
unsafe fn change_mask(how: i32, set: *const sigset_t, old: *mut sigset_t) -> i32 {
    // SAFETY: the caller's pointer is valid or null.
    let wanted = unsafe { set.as_ref() }.map(|set| unsafe { bits(set) } & !INTERNAL);
    let managed = start::engine().is_some();
    let never = if managed { NEVER_BLOCKED } else { 0 };
    let believed = BELIEVED.get();
    let local = wanted.map(|mask| mask & !never);
    let mut before: Mask = 0;
    let set = local.as_ref().map_or(0, |mask| std::ptr::from_ref(mask) as usize);
    let args = [how as usize, set, &raw mut before as usize, size_of::<Mask>(), 0, 0];
    // SAFETY: pointers to locals.
    let result = unsafe { raw::syscall(libc::SYS_rt_sigprocmask, args) };
    if result < 0 {
        return -result as i32;
    }
    if let Some(mask) = wanted {
        BELIEVED.set(match how {
            libc::SIG_BLOCK => believed | mask & never,
            libc::SIG_UNBLOCK => believed & !mask,
            _ => mask & never,
        });
    }
    // SAFETY: the caller's pointer is valid or null.
    if let Some(old) = unsafe { old.as_mut() } {
        set_bits(old, before | believed);
    }
    0
}

/// # Safety
/// As `pthread_sigmask(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_sigmask(
    how: i32,
    set: *const sigset_t,
    old: *mut sigset_t,
) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { change_mask(how, set, old) }
}

/// # Safety
/// As `sigprocmask(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigprocmask(how: i32, set: *const sigset_t, old: *mut sigset_t) -> i32 {
    // SAFETY: the caller's promise.
    c_result(-(unsafe { change_mask(how, set, old) } as isize)) as i32
}

/// A copy of a mask that a call puts in force while it waits, without the
/// engine's signals.
///
/// # Safety
/// `set` is valid or null.
unsafe fn without_ours(set: *const sigset_t) -> Option<sigset_t> {
    // SAFETY: the caller's promise.
    let mut copy = *unsafe { set.as_ref() }?;
    // SAFETY: a valid copy.
    let mask = unsafe { bits(&raw const copy) };
    let never = if start::engine().is_some() { NEVER_BLOCKED } else { 0 };
    set_bits(&mut copy, mask & !never);
    Some(copy)
}

fn pointer(set: &Option<sigset_t>) -> *const sigset_t {
    set.as_ref().map_or(std::ptr::null(), std::ptr::from_ref)
}

/// # Safety
/// As `sigsuspend(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigsuspend(set: *const sigset_t) -> i32 {
    real!(sigsuspend: fn(*const sigset_t) -> i32);
    // SAFETY: the caller's promise.
    unsafe { sigsuspend()(pointer(&without_ours(set))) }
}

/// # Safety
/// As `ppoll(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ppoll(
    fds: *mut libc::pollfd,
    count: libc::nfds_t,
    time: *const timespec,
    set: *const sigset_t,
) -> i32 {
    real!(ppoll: fn(*mut libc::pollfd, libc::nfds_t, *const timespec, *const sigset_t) -> i32);
    // SAFETY: the caller's promise.
    unsafe { ppoll()(fds, count, time, pointer(&without_ours(set))) }
}

/// # Safety
/// As `pselect(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pselect(
    count: i32,
    read: *mut libc::fd_set,
    write: *mut libc::fd_set,
    except: *mut libc::fd_set,
    time: *const timespec,
    set: *const sigset_t,
) -> i32 {
    type Set = *mut libc::fd_set;
    real!(pselect: fn(i32, Set, Set, Set, *const timespec, *const sigset_t) -> i32);
    // SAFETY: the caller's promise.
    unsafe { pselect()(count, read, write, except, time, pointer(&without_ours(set))) }
}

/// # Safety
/// As `epoll_pwait(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_pwait(
    fd: i32,
    events: *mut libc::epoll_event,
    count: i32,
    timeout: i32,
    set: *const sigset_t,
) -> i32 {
    real!(epoll_pwait: fn(i32, *mut libc::epoll_event, i32, i32, *const sigset_t) -> i32);
    // SAFETY: the caller's promise.
    unsafe { epoll_pwait()(fd, events, count, timeout, pointer(&without_ours(set))) }
}
