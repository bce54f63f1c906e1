//! What a signal does: `sigaction` and all that is made of it.

use super::belief::{self, is_borrowing};
use super::entry;
use super::{INTERNAL, OURS, bits, pending, set_bits, stacks, waiting};
use crate::real::c_result;
use crate::{filters, start};
use libc::sigaction as CAction;
use softswap_engine::base::stats::Counter;
use softswap_sys::futex::Lock;
use softswap_sys::signals::{self, Action, Mask, SA_RESTORER, SIGBUS, SIGSYS, siginfo_t};
use std::cell::UnsafeCell;
use std::ffi::c_void;
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

    fn change(&self, new: Option<Action>) -> Action {
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
    fn take_action(&self) -> Action {
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

pub(super) static ON_SIGBUS: Remembered = Remembered::new();
pub(super) static ON_SIGSYS: Remembered = Remembered::new();

/// Keeps other threads from holding these locks while this one forks.
pub(crate) fn lock_for_fork() {
    // One that arrives in between would find a lock taken, and nobody to give it back.
    signals::with_all_blocked(|| {
        ON_SIGBUS.lock.lock();
        ON_SIGSYS.lock.lock();
        pending::lock_for_fork();
    });
}

/// Ends what [`lock_for_fork`] began.
pub(crate) fn unlock_after_fork() {
    signals::with_all_blocked(|| {
        pending::unlock_after_fork();
        ON_SIGBUS.lock.unlock();
        ON_SIGSYS.lock.unlock();
    });
}

/// An action of the program's for a signal that the kernel has [`entry`] for.
pub(super) struct Asked {
    pub(super) handler: AtomicUsize,
    pub(super) flags: AtomicU64,
    pub(super) mask: AtomicU64,
}

impl Asked {
    const fn new() -> Asked {
        Asked { handler: AtomicUsize::new(0), flags: AtomicU64::new(0), mask: AtomicU64::new(0) }
    }

    fn get(&self) -> Action {
        let handler = self.handler.load(Ordering::Relaxed);
        let flags = self.flags.load(Ordering::Relaxed);
        Action::new(handler, flags, self.mask.load(Ordering::Relaxed))
    }

    fn set(&self, action: &Action) {
        self.mask.store(action.mask & !NEVER_MASKED, Ordering::Relaxed);
        self.flags.store(action.flags & KNOWN_FLAGS | SA_RESTORER, Ordering::Relaxed);
        self.handler.store(action.handler, Ordering::Release);
    }
}

/// By signal number.
pub(super) static ASKED: [Asked; 65] = [const { Asked::new() }; 65];

fn remembered(signal: i32) -> Option<&'static Remembered> {
    // Before the engine is up, and without one, these are the program's.
    start::engine()?;
    match signal {
        SIGBUS => Some(&ON_SIGBUS),
        SIGSYS => Some(&ON_SIGSYS),
        _ => None,
    }
}

fn is_function(handler: usize) -> bool {
    !matches!(handler, libc::SIG_DFL | libc::SIG_IGN)
}

/// Changes what a signal does, if there is a new action; what it did before, or an error
/// number. Every change of an action ends here.
///
/// # Safety
/// As `sigaction(2)`: the handler is a function.
pub(super) unsafe fn change(signal: i32, new: Option<Action>) -> Result<Action, i32> {
    if let Some(refused) =
        filters::refusal(libc::SYS_rt_sigaction, [signal as usize, 0, 0, 0, 0, 0])
    {
        return Err(-refused as i32);
    }
    if let Some(remembered) = remembered(signal) {
        // The child of a vfork has handlers of its own, but this memory is its parent's.
        let new = new.filter(|_| !is_borrowing());
        let new = new.map(|new| Action { flags: new.flags | SA_RESTORER, ..new });
        let before = remembered.change(new);
        if new.is_some_and(|new| new.handler == libc::SIG_IGN) {
            pending::forget(signal);
        }
        return Ok(before);
    }
    let error_number = |error: std::io::Error| error.raw_os_error().unwrap_or(libc::EINVAL);
    let asked = ASKED.get(signal as usize).filter(|_| start::engine().is_some());
    let Some(asked) = asked else {
        // SAFETY: the caller's promise.
        return unsafe { signals::change_action(signal, new.as_ref()) }.map_err(error_number);
    };
    let before = asked.get();
    let installed = new.map(|new| {
        if !is_function(new.handler) {
            return new;
        }
        asked.set(&new);
        // The kernel cannot put a handler's frame on a stack that is swapped out (a
        // coroutine's, say), so every handler runs on the thread's alternate stack.
        let flags = new.flags | (libc::SA_ONSTACK | libc::SA_SIGINFO) as u64;
        Action::new(entry::address(), flags, new.mask & !OURS)
    });
    // SAFETY: the handler is ours, which calls the program's.
    match unsafe { signals::change_action(signal, installed.as_ref()) } {
        Ok(old) if old.handler == entry::address() => Ok(before),
        // Set back by the kernel when it was called.
        Ok(old) if old.flags & before.flags & libc::SA_RESETHAND as u32 as u64 != 0 => {
            Ok(Action { handler: old.handler, ..before })
        }
        Ok(old) => Ok(old),
        Err(error) => {
            asked.set(&before);
            Err(error_number(error))
        }
    }
}

pub(super) fn remember(bus: Action, sys: Action) {
    ON_SIGBUS.change(Some(bus));
    ON_SIGSYS.change(Some(sys));
}

pub(super) fn adopt() {
    for signal in signals::SIGNALS {
        if INTERNAL & signals::bit(signal) == 0
            && OURS & signals::bit(signal) == 0
            && let Ok(action) = signals::action_of(signal)
            && is_function(action.handler)
        {
            // SAFETY: the program's own handler.
            let _ = unsafe { change(signal, Some(action)) };
        }
    }
}

/// Whether the signal's action is to ignore it.
pub(crate) fn is_ignored(signal: i32) -> bool {
    signals::action_of(signal).is_ok_and(|action| action.handler == libc::SIG_IGN)
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
    let remembered = if signal == SIGBUS { &ON_SIGBUS } else { &ON_SIGSYS };
    // SAFETY: the handler's own details.
    let details = unsafe { &*info };
    if waiting::is_poke(details) {
        waiting::look(signal);
        return;
    }
    let was_sent = details.si_code <= 0;
    let is_blocked = belief::believed() & signals::bit(signal) != 0;
    if was_sent && (is_blocked || pending::takes_nothing()) {
        pending::hold(signal, details);
        waiting::look_again();
        return;
    }
    let action = remembered.take_action();
    match action.handler {
        // The kernel kills for a synchronous signal that is ignored or blocked; one that
        // was sent is dropped.
        libc::SIG_IGN if was_sent => return,
        libc::SIG_IGN | libc::SIG_DFL => {}
        _ if is_blocked => {}
        handler => {
            // SAFETY: the context is this handler's; it comes before the mask.
            let mask = unsafe { *signals::interrupted_mask(context) };
            let mut named = action.mask;
            if action.flags & libc::SA_NODEFER as u64 == 0 {
                named |= signals::bit(signal);
            }
            // SAFETY: the handler's own context.
            unsafe {
                entry::begin(context, named);
                stacks::begin(context, action.flags & libc::SA_ONSTACK as u64 != 0);
            }
            signals::set_mask((mask | named) & !OURS);
            if action.flags & libc::SA_SIGINFO as u64 != 0 {
                // SAFETY: the program installed a three-argument handler.
                let handler: signals::Handler = unsafe { std::mem::transmute(handler) };
                handler(signal, info, context);
            } else {
                // SAFETY: the program installed a one-argument handler.
                let handler: extern "C" fn(i32) = unsafe { std::mem::transmute(handler) };
                handler(signal);
            }
            // SAFETY: the handler's own context.
            unsafe { entry::end(context) };
            return;
        }
    }
    signals::set_default(signal);
    // SAFETY: the handler's own details and context.
    unsafe { crate::faults::strike(signal, info, context) };
}

/// As the C library's functions, which know signals of their own.
fn is_for_programs(signal: i32) -> bool {
    signals::SIGNALS.contains(&signal) && INTERNAL & signals::bit(signal) == 0
}

/// # Safety
/// As `sigaction(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaction(signal: i32, new: *const CAction, old: *mut CAction) -> i32 {
    if !is_for_programs(signal) {
        return c_result(-(libc::EINVAL as isize)) as i32;
    }
    // Read and written here: the pointers may be managed.
    // SAFETY: the caller's pointers are valid or null.
    let wanted = unsafe { new.as_ref() }.map(|new| {
        let flags = u64::from(new.sa_flags as u32);
        // SAFETY: a valid set.
        Action::new(new.sa_sigaction, flags, unsafe { bits(&raw const new.sa_mask) })
    });
    // SAFETY: the caller's promise.
    match unsafe { change(signal, wanted) } {
        Ok(before) => {
            // SAFETY: as above.
            if let Some(old) = unsafe { old.as_mut() } {
                old.sa_sigaction = before.handler;
                old.sa_flags = before.flags as i32;
                old.sa_mask = super::set_of(0);
                set_bits(&mut old.sa_mask, before.mask);
            }
            0
        }
        Err(error) => c_result(-(error as isize)) as i32,
    }
}

/// # Safety
/// As `sigaction(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __sigaction(signal: i32, new: *const CAction, old: *mut CAction) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { sigaction(signal, new, old) }
}

/// Installs a handler; what there was, or `SIG_ERR`.
///
/// # Safety
/// As `signal(2)`.
unsafe fn install(signal: i32, handler: usize, flags: i32, mask: Mask) -> usize {
    if handler == libc::SIG_ERR || !is_for_programs(signal) {
        return c_result(-(libc::EINVAL as isize)) as usize;
    }
    let action = Action::new(handler, u64::from(flags as u32), mask);
    // SAFETY: the caller's promise.
    match unsafe { change(signal, Some(action)) } {
        Ok(before) => before.handler,
        Err(error) => c_result(-(error as isize)) as usize,
    }
}

/// Signals whose handlers interrupt system calls, by `siginterrupt`.
static INTERRUPTING: AtomicU64 = AtomicU64::new(0);

/// # Safety
/// As `signal(2)`, with the BSD semantics that glibc gives it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn signal(number: i32, handler: usize) -> usize {
    let own = if is_for_programs(number) { signals::bit(number) } else { 0 };
    let interrupts = INTERRUPTING.load(Ordering::Relaxed) & own != 0;
    // SAFETY: the caller's promise.
    unsafe { install(number, handler, if interrupts { 0 } else { libc::SA_RESTART }, own) }
}

/// Defines other names of a function that installs a handler.
macro_rules! also_named {
    ($of:ident: $($name:ident)*) => {$(
        /// # Safety
        /// As the C library's function of the same name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(number: i32, handler: usize) -> usize {
            // SAFETY: the caller's promise.
            unsafe { $of(number, handler) }
        }
    )*};
}

also_named!(signal: bsd_signal ssignal);
also_named!(sysv_signal: __sysv_signal);

/// # Safety
/// As `sysv_signal(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sysv_signal(number: i32, handler: usize) -> usize {
    // SAFETY: the caller's promise.
    unsafe { install(number, handler, libc::SA_RESETHAND | libc::SA_NODEFER, 0) }
}

/// `SIG_HOLD` of <signal.h>.
const HOLD: usize = 2;

/// # Safety
/// As `sigset(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigset(number: i32, disposition: usize) -> usize {
    if !is_for_programs(number) {
        return c_result(-(libc::EINVAL as isize)) as usize;
    }
    let own = signals::bit(number);
    let holds = disposition == HOLD;
    let action = (!holds).then(|| Action::new(disposition, 0, 0));
    // SAFETY: the caller's promise.
    let before = match unsafe { change(number, action) } {
        Ok(before) => before,
        Err(error) => return c_result(-(error as isize)) as usize,
    };
    let how = if holds { libc::SIG_BLOCK } else { libc::SIG_UNBLOCK };
    match belief::change_mask(how, Some(own)) {
        Ok(mask) if mask & own != 0 => HOLD,
        Ok(_) => before.handler,
        Err(error) => c_result(-(error as isize)) as usize,
    }
}

/// # Safety
/// As `sigignore(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigignore(number: i32) -> i32 {
    // SAFETY: no handler is installed.
    if unsafe { install(number, libc::SIG_IGN, 0, 0) } == libc::SIG_ERR { -1 } else { 0 }
}

/// # Safety
/// As `siginterrupt(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siginterrupt(number: i32, interrupts: i32) -> i32 {
    if !is_for_programs(number) {
        return c_result(-(libc::EINVAL as isize)) as i32;
    }
    // SAFETY: nothing is changed, then the program's own handler.
    let result = unsafe { change(number, None) }.and_then(|mut action| {
        let restart = libc::SA_RESTART as u64;
        if interrupts == 0 {
            INTERRUPTING.fetch_and(!signals::bit(number), Ordering::Relaxed);
            action.flags |= restart;
        } else {
            INTERRUPTING.fetch_or(signals::bit(number), Ordering::Relaxed);
            action.flags &= !restart;
        }
        // SAFETY: the program's own handler.
        unsafe { change(number, Some(action)) }
    });
    result.map_or_else(|error| c_result(-(error as isize)) as i32, |_| 0)
}
