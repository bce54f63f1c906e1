//! One pool at a time is made or dropped, and none while the process forks: a child finds
//! nothing half done that only another thread could finish.

use softswap_sys::raw;
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
        let guard = lock();
        HOLDER.store(raw::current_thread(), Ordering::Relaxed);
        let alone = Alone(guard);
        if !IS_KEPT_BY_FORKS.load(Ordering::Relaxed) {
            // SAFETY: the functions take and give up a lock, in the thread that forks.
            let refused = unsafe { libc::pthread_atfork(Some(before), Some(after), Some(after)) };
            if refused != 0 {
                return Err(io::Error::from_raw_os_error(refused));
            }
            IS_KEPT_BY_FORKS.store(true, Ordering::Relaxed);
        }
        Ok(alone)
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        HOLDER.store(0, Ordering::Relaxed);
    }
}

extern "C" fn before() {
    // A signal handler that forks in the midst of it would wait for its own thread: both
    // processes go on there.
    if HOLDER.load(Ordering::Relaxed) != raw::current_thread() {
        // Gone only at the thread's end, when it forks no more.
        let _ = HELD.try_with(|held| held.set(Some(lock())));
    }
}

extern "C" fn after() {
    let _ = HELD.try_with(Cell::take);
}
