//! One pool at a time is made or dropped, and none while the process forks: a child finds
//! nothing half done that only another thread could finish.

use softswap_sys::{raw, signals, touches};
use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

static LOCK: Mutex<()> = Mutex::new(());
/// The thread that makes or drops a pool; 0 where none does.
static HOLDER: AtomicI32 = AtomicI32::new(0);
/// Whether forks take the lock, too.
static IS_KEPT_BY_FORKS: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// What a thread that forks holds meanwhile.
    static HELD: Cell<Option<MutexGuard<'static, ()>>> = const { Cell::new(None) };
}

/// When the library is loaded. A fork that is under way when it registers does not tell its child:
/// that one would find a first pool, of another thread's, half made.
#[used]
// SAFETY: the loader calls what is listed there, once, with arguments that a function of C may
// leave unread.
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

extern "C" fn at_load() {
    // Who makes a pool tries it again, and is told.
    let _ = register();
}

fn lock() -> MutexGuard<'static, ()> {
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// While this lives nobody else makes or drops a pool, nor forks.
pub(crate) struct Alone(Option<MutexGuard<'static, ()>>);

impl Alone {
    pub(crate) fn new() -> io::Result<Alone> {
        register()?;
        loop {
            // A signal handler that forks finds the lock free, or knows whose it is.
            if let Some(alone) = signals::with_all_blocked(Self::try_new) {
                return Ok(alone);
            }
            // Signals come meanwhile.
            drop(lock());
        }
    }

    fn try_new() -> Option<Alone> {
        let guard = match LOCK.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        HOLDER.store(raw::current_thread(), Ordering::Relaxed);
        Some(Alone(Some(guard)))
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        signals::with_all_blocked(|| {
            HOLDER.store(0, Ordering::Relaxed);
            self.0 = None;
        });
    }
}

/// Has forks keep the lock from here on. Not behind a lock or a `Once`, which a child might find
/// taken for ever: so what is registered may be called twice.
fn register() -> io::Result<()> {
    if IS_KEPT_BY_FORKS.load(Ordering::Acquire) {
        return Ok(());
    }
    // SAFETY: the functions take and give up a lock, in the thread that forks, and store to
    // atomics.
    let refused = unsafe { libc::pthread_atfork(Some(before), Some(after), Some(in_child)) };
    if refused != 0 {
        return Err(io::Error::from_raw_os_error(refused));
    }
    IS_KEPT_BY_FORKS.store(true, Ordering::Release);
    Ok(())
}

extern "C" fn before() {
    // A signal handler that forks in the midst of it would wait for its own thread: both
    // processes go on there.
    if HOLDER.load(Ordering::Relaxed) == raw::current_thread() {
        return;
    }
    // Gone only at the thread's end, when it forks no more.
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
        // It is this thread, which has another number here.
        HOLDER.store(raw::current_thread(), Ordering::Relaxed);
    }
    after();
}
