//! Operations that must finish before a sleeping process wakes: memory calls, and calls in which
//! the C library touches memory with all signals blocked (thread creation, fork, exec). Otherwise
//! the kernel would carry them out in part, and the engine in part.
//!
//! A thread that arrives while the process wakes waits. With one thread, the gate is not needed.

use crate::base::{instance, signal_stack};
use softswap_sys::futex;
use softswap_sys::raw::now_ns;
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

static INSIDE: AtomicU32 = AtomicU32::new(0);
const MAX_WAIT_NS: u64 = 1_000_000_000;

thread_local! {
    /// Nesting depth of this thread in the gate: an operation inside may enter again.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    static FRAME: Cell<usize> = const { Cell::new(0) };
}

pub(crate) struct Inside {
    is_counted: bool,
}

/// Returns `None` if the process does not sleep, or if this thread wakes it; the engine, if any,
/// then handles the operation.
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
            // SeqCst: either the waker sees this thread inside, or this thread sees that it must
            // wait.
            if !instance::is_asleep() {
                uncount();
                continue;
            }
            let local = 0_u8;
            FRAME.set(&raw const local as usize);
        }
        DEPTH.set(DEPTH.get() + 1);
        return Some(Inside { is_counted: true });
    }
}

fn uncount() {
    if INSIDE.fetch_sub(1, SeqCst) == 1 && instance::is_waking() {
        futex::wake_all(&INSIDE);
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        if self.is_counted {
            exit_gate();
        }
    }
}

fn exit_gate() {
    if DEPTH.get() > 0 {
        DEPTH.set(DEPTH.get() - 1);
        if DEPTH.get() == 0 {
            uncount();
        }
    }
}

pub(crate) fn jump_to(target: usize) {
    if DEPTH.get() > 0 && signal_stack::is_left(FRAME.get(), target) {
        DEPTH.set(0);
        uncount();
    }
}

/// Enters the gate until [`end_vfork`], because the child uses the parent's memory until then.
/// Returns true if this thread has entered.
pub(crate) fn begin_vfork() -> bool {
    let inside = enter().filter(|inside| inside.is_counted);
    inside.map(std::mem::forget).is_some()
}

pub(crate) fn end_vfork() {
    exit_gate();
}

pub(crate) fn is_nested() -> bool {
    DEPTH.get() > 1
}

pub(crate) fn is_inside() -> bool {
    DEPTH.get() > 0
}

/// Waits, in the waking thread, until no thread is inside. Returns false on timeout.
pub(crate) fn drain() -> bool {
    let until_ns = now_ns() + MAX_WAIT_NS;
    loop {
        let inside = INSIDE.load(SeqCst);
        let now = now_ns();
        if inside == 0 || now >= until_ns {
            return inside == 0;
        }
        futex::wait(&INSIDE, inside, Some(until_ns - now));
    }
}

/// Resets the count in a forked child, whose only thread is inside.
pub(crate) fn become_child() {
    INSIDE.store(u32::from(is_inside()), SeqCst);
}
