//! Atomics, locks and waits for lock-free state: the real ones, or loom's models of them.

#[cfg(not(feature = "loom"))]
mod real {
    pub use crate::futex::{wait_low as wait, wait_shared, wake_low as wake, wake_shared};
    pub use crate::memory::{reserve_u32, reserve_u64};
    pub use crate::raw::current_cpu;
    pub use std::hint::spin_loop as relax;
    pub use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
    pub use std::sync::{Mutex, MutexGuard};

    /// Orders a SeqCst store before a SeqCst load of another word. Only loom needs a fence.
    pub fn in_one_order() {}
}

#[cfg(feature = "loom")]
mod model {
    use loom::sync::Condvar;
    pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
    pub use loom::sync::{Mutex, MutexGuard};
    pub use loom::thread::yield_now as relax;
    use std::io;

    pub fn reserve_u64(len: usize) -> io::Result<&'static [AtomicU64]> {
        Ok(Vec::leak((0..len).map(|_| AtomicU64::new(0)).collect()))
    }

    pub fn reserve_u32(len: usize) -> io::Result<&'static [AtomicU32]> {
        Ok(Vec::leak((0..len).map(|_| AtomicU32::new(0)).collect()))
    }

    /// Returns 0: all threads of a model share one processor's counters.
    pub fn current_cpu() -> usize {
        0
    }

    loom::lazy_static! {
        /// The model's futex queue. Like the kernel, it compares and sleeps in one step.
        static ref QUEUE: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());
    }

    pub fn wait(word: &AtomicU64, seen: u64) {
        let guard = QUEUE.0.lock().unwrap();
        if word.load(Ordering::SeqCst) == seen {
            drop(QUEUE.1.wait(guard).unwrap());
        }
    }

    pub fn wait_shared(word: &AtomicU64, seen: u64, _ns: u64) {
        wait(word, seen);
    }

    pub fn wake(_word: &AtomicU64) {
        let _guard = QUEUE.0.lock().unwrap();
        QUEUE.1.notify_all();
    }

    pub use wake as wake_shared;

    /// A fence, because loom treats only fences as sequentially consistent.
    pub fn in_one_order() {
        loom::sync::atomic::fence(Ordering::SeqCst);
    }
}

#[cfg(feature = "loom")]
pub use model::*;
#[cfg(not(feature = "loom"))]
pub use real::*;
