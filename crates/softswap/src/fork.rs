//! One pool at a time is made or dropped, and none while the process forks: a child finds
//! nothing half done that only another thread could finish.

use softswap_sys::{raw, touches};
use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

static LOCK: Mutex<()> = Mutex::new(());
/// The thread that makes or drops a pool; 0 where none does.
static HOLDER: AtomicI32 = AtomicI32::new(0);
/// Whether forks take the lock, too.
static IS_KEPT_BY_FORKS: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// What a thread that forks holds meanwhile.
    static HELD: Cell<Option<MutexGuard<'static, ()>>> = const { Cell::new(None) };
}

fn lock() -> MutexGuard<'static, ()> {
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// While this lives nobody else makes or drops a pool, nor forks.
pub(crate) struct Alone(#[expect(dead_code, reason = "it is held")] MutexGuard<'static, ()>);

impl Alone {
    pub(crate) fn new() -> io::Result<Alone> {
        register()?;
        let guard = lock();
        HOLDER.store(raw::current_thread(), Ordering::Relaxed);
        Ok(Alone(guard))
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        HOLDER.store(0, Ordering::Relaxed);
    }
}

/// Has forks keep the lock from here on.
///
/// Before the lock is taken for the first time: the C library has this wait for a fork that is
/// under way, whose child must find the lock free, as it will not be told. And not behind a lock or
/// a `Once`, which that child would find taken. So two threads may come here at once, and what they
/// register may be called twice.
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
    after();
}
