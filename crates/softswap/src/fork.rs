//! Serializes the creation and the drop of pools, and excludes forks while a pool is created or
//! dropped: a child must not inherit an unfinished operation of another thread.

use softswap_sys::{raw, signals, touches};
use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

static LOCK: Mutex<()> = Mutex::new(());
/// Thread ID of the thread that creates or drops a pool; 0: none.
static HOLDER: AtomicI32 = AtomicI32::new(0);
static ARE_HANDLERS_REGISTERED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The lock, while this thread forks.
    static HELD: Cell<Option<MutexGuard<'static, ()>>> = const { Cell::new(None) };
}

/// Registers the fork handlers when the library is loaded. A fork in progress at the registration
/// would not run them, and its child could inherit an unfinished first pool of another thread.
#[used]
// SAFETY: the loader calls each function in this section once, with arguments that a C function may
// ignore.
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

extern "C" fn at_load() {
    // Errors are ignored, because the creation of a pool tries again and reports them.
    let _ = register();
}

fn lock() -> MutexGuard<'static, ()> {
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) struct ForkLock(Option<MutexGuard<'static, ()>>);

impl ForkLock {
    pub(crate) fn new() -> io::Result<ForkLock> {
        register()?;
        loop {
            // Signals are blocked, so that a signal handler that forks finds `HOLDER` up to date.
            if let Some(lock_held) = signals::with_all_blocked(Self::try_new) {
                return Ok(lock_held);
            }
            drop(lock());
        }
    }

    fn try_new() -> Option<ForkLock> {
        let guard = match LOCK.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        HOLDER.store(raw::current_thread(), Ordering::Relaxed);
        Some(ForkLock(Some(guard)))
    }
}

impl Drop for ForkLock {
    fn drop(&mut self) {
        signals::with_all_blocked(|| {
            HOLDER.store(0, Ordering::Relaxed);
            self.0 = None;
        });
    }
}

/// May register twice: a child could inherit a lock or a `Once` in the locked state.
fn register() -> io::Result<()> {
    if ARE_HANDLERS_REGISTERED.load(Ordering::Acquire) {
        return Ok(());
    }
    // SAFETY: the functions acquire and release a lock in the forking thread, and store to atomics.
    let refused = unsafe { libc::pthread_atfork(Some(before), Some(after), Some(in_child)) };
    if refused != 0 {
        return Err(io::Error::from_raw_os_error(refused));
    }
    ARE_HANDLERS_REGISTERED.store(true, Ordering::Release);
    Ok(())
}

extern "C" fn before() {
    // A signal handler that forks while its thread holds the lock would deadlock here. Without the
    // wait, both processes continue the operation.
    if HOLDER.load(Ordering::Relaxed) == raw::current_thread() {
        return;
    }
    // Fails only while the thread exits and forks no more.
    let _ = HELD.try_with(|held| {
        let guard = held.take().unwrap_or_else(lock);
        held.set(Some(guard));
    });
}

extern "C" fn after() {
    let _ = HELD.try_with(Cell::take);
}

extern "C" fn in_child() {
    touches::in_child();
    if HOLDER.load(Ordering::Relaxed) != 0 {
        // The holder is this thread, which has another ID in the child.
        HOLDER.store(raw::current_thread(), Ordering::Relaxed);
    }
    after();
}
