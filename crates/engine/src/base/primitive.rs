//! What lock-free state is made of: the real thing, or loom's model of it.
//!
//! Only the page table, the extent map, the slots and the bounce buffers go through here;
//! everything else uses plain locks.

#[cfg(not(feature = "loom"))]
mod real {
    pub(crate) use softswap_sys::memory::{reserve_u32, reserve_u64};
    pub(crate) use softswap_sys::raw::current_cpu;
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
    pub(crate) use std::sync::{Mutex, MutexGuard};

    /// Sleeps while `word` still holds `seen` (its low half).
    pub(crate) fn wait(word: &AtomicU64, seen: u64) {
        softswap_sys::futex::wait_low(word, seen);
    }

    pub(crate) fn wake(word: &AtomicU64) {
        softswap_sys::futex::wake_low(word);
    }

    pub(crate) fn relax() {
        std::hint::spin_loop();
    }

    /// Between a sequentially consistent store and such a load of another word,
    /// where the order of the two matters: nothing more is needed.
    pub(crate) fn in_one_order() {}
}

#[cfg(feature = "loom")]
mod model {
    use loom::sync::Condvar;
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
    pub(crate) use loom::sync::{Mutex, MutexGuard};
    use std::io;

    /// A table that lives as long as the real one: for ever.
    pub(crate) fn reserve_u64(len: usize) -> io::Result<&'static [AtomicU64]> {
        Ok(Vec::leak((0..len).map(|_| AtomicU64::new(0)).collect()))
    }

    pub(crate) fn reserve_u32(len: usize) -> io::Result<&'static [AtomicU32]> {
        Ok(Vec::leak((0..len).map(|_| AtomicU32::new(0)).collect()))
    }

    /// All threads of a model share one processor's counters.
    pub(crate) fn current_cpu() -> usize {
        0
    }

    loom::lazy_static! {
        /// One futex queue for the whole model: the kernel compares and
        /// sleeps in one step, and so does this.
        static ref QUEUE: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());
    }

    pub(crate) fn wait(word: &AtomicU64, seen: u64) {
        let guard = QUEUE.0.lock().unwrap();
        if word.load(Ordering::SeqCst) == seen {
            drop(QUEUE.1.wait(guard).unwrap());
        }
    }

    pub(crate) fn wake(_word: &AtomicU64) {
        let _guard = QUEUE.0.lock().unwrap();
        QUEUE.1.notify_all();
    }

    pub(crate) fn relax() {
        loom::thread::yield_now();
    }

    /// Loom takes sequentially consistent loads and stores for weaker ones, and
    /// only fences as what they are.
    pub(crate) fn in_one_order() {
        loom::sync::atomic::fence(Ordering::SeqCst);
    }
}

#[cfg(feature = "loom")]
pub(crate) use model::*;
#[cfg(not(feature = "loom"))]
pub(crate) use real::*;
