//! What must not be under way when a sleeping process wakes, because it would be half the
//! kernel's and half the engine's: memory calls, and calls in which the C library touches
//! memory with all signals blocked (a new thread, a fork, a new program).
//!
//! The waking waits until nobody is inside; who comes later waits for its end. As long as the
//! process has one thread there is nobody to wait for.

use crate::base::{instance, signal_stack};
use softswap_sys::futex;
use softswap_sys::raw::now_ns;
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// Threads that are inside.
static INSIDE: AtomicU32 = AtomicU32::new(0);
/// So long a waking waits for them.
const MOST_WAIT_NS: u64 = 1_000_000_000;

thread_local! {
    /// How deep this thread is inside: what it does there may come by here again.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    /// Where on the stack it was when it came in.
    static FRAME: Cell<usize> = const { Cell::new(0) };
}

/// This thread is inside until this is dropped.
pub(crate) struct Inside {
    is_counted: bool,
}

/// Begins such a call of a process that sleeps. `None` where it does not, or not any more: then
/// the engine does it, if there is one.
pub(crate) fn enter() -> Option<Inside> {
    loop {
        if !instance::may_wake() || instance::is_waker() {
            return None;
        }
        if !instance::emulates_signals() {
            return Some(Inside { is_counted: false });
        }
        if DEPTH.get() == 0 {
            instance::await_waking();
            INSIDE.fetch_add(1, SeqCst);
            // The waker sees this thread, or this thread the waking.
            if !instance::is_asleep() {
                leave();
                continue;
            }
            let local = 0_u8;
            FRAME.set(&raw const local as usize);
        }
        DEPTH.set(DEPTH.get() + 1);
        return Some(Inside { is_counted: true });
    }
}

fn leave() {
    if INSIDE.fetch_sub(1, SeqCst) == 1 && instance::is_waking() {
        futex::wake_all(&INSIDE);
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        if self.is_counted {
            come_out();
        }
    }
}

fn come_out() {
    if DEPTH.get() > 0 {
        DEPTH.set(DEPTH.get() - 1);
        if DEPTH.get() == 0 {
            leave();
        }
    }
}

/// This thread jumps to a frame at `target`, perhaps out of what it is inside of.
pub(crate) fn jump_to(target: usize) {
    if DEPTH.get() > 0 && signal_stack::is_left(FRAME.get(), target) {
        DEPTH.set(0);
        leave();
    }
}

/// As [`enter`], until [`end_vfork`]: in between the child has this memory. Whether this thread
/// is inside.
pub(crate) fn begin_vfork() -> bool {
    let inside = enter().filter(|inside| inside.is_counted);
    inside.map(std::mem::forget).is_some()
}

/// Ends what [`begin_vfork`] began.
pub(crate) fn end_vfork() {
    come_out();
}

/// Whether this thread is inside, beside what holds one `Inside`.
pub(crate) fn is_nested() -> bool {
    DEPTH.get() > 1
}

/// Whether this thread is inside.
pub(crate) fn is_inside() -> bool {
    DEPTH.get() > 0
}

/// Waits until nobody is inside; false where that takes too long. For who wakes the process.
pub(crate) fn drain() -> bool {
    let until_ns = now_ns() + MOST_WAIT_NS;
    loop {
        let inside = INSIDE.load(SeqCst);
        let now = now_ns();
        if inside == 0 || now >= until_ns {
            return inside == 0;
        }
        futex::wait(&INSIDE, inside, Some(until_ns - now));
    }
}

/// In a forked child, whose only thread is inside: the others are not there.
pub(crate) fn become_child() {
    INSIDE.store(u32::from(is_inside()), SeqCst);
}
