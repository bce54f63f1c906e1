//! This thread's signal stack, on which all signals are delivered.

use super::instance;
use libc::stack_t;
use softswap_engine::api::engine::Engine;
use softswap_sys::engine_stack::{self, Stacks};
use softswap_sys::signals;
use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

thread_local! {
    /// 0: none.
    static BASE: Cell<usize> = const { Cell::new(0) };
}

static PROGRAM_HALF_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Reserves the lower half of each stack for the program. Go queries a thread's alternate stack by
/// its own system-call instruction, receives the engine's, and runs its handlers there.
pub(crate) fn reserve_program_half() {
    PROGRAM_HALF_BYTES.store(signals::stack_at(0).len() / 2, Ordering::Relaxed);
}

pub(crate) fn program_half() -> Option<stack_t> {
    let ss_size = PROGRAM_HALF_BYTES.load(Ordering::Relaxed);
    let stack = alternate().filter(|_| ss_size > 0)?;
    Some(stack_t { ss_size, ..stack })
}

fn own_part(base: usize) -> Range<usize> {
    let all = signals::stack_at(base);
    all.start + PROGRAM_HALF_BYTES.load(Ordering::Relaxed)..all.end
}

#[inline]
pub(crate) fn set(base: usize) {
    BASE.set(base);
}

#[inline]
pub(crate) fn exists() -> bool {
    BASE.get() != 0
}

pub(crate) fn addresses() -> Option<Range<usize>> {
    exists().then(|| own_part(BASE.get()))
}

pub(crate) fn alternate() -> Option<stack_t> {
    exists().then(|| signals::alternate_stack_at(BASE.get()))
}

#[inline]
pub(crate) fn contains(address: usize) -> bool {
    let base = BASE.get();
    base != 0 && own_part(base).contains(&address)
}

/// Returns true if a jump to a frame at `target` ends the frame at `frame`. Frames on the signal
/// stack are newer than those on other stacks.
pub(crate) fn is_left(frame: usize, target: usize) -> bool {
    match (contains(frame), contains(target)) {
        (true, false) => true,
        (false, true) => false,
        _ => frame < target,
    }
}

/// Bytes above the stack pointer that code with blocked signals may access on a managed stack.
const FRAMES_BYTES: usize = 24 << 10;

/// Makes code that blocks signals switch from managed stacks to the signal stack.
pub(crate) fn manage_stacks() {
    engine_stack::manage(Stacks { end_for, pin, unpin });
}

fn end_for(here: usize) -> Option<usize> {
    addresses().filter(|_| instance::is_in_window(here)).map(|stack| stack.end)
}

fn pin(address: usize) -> usize {
    let pin = |engine: &Engine| engine.pin(address, FRAMES_BYTES, FRAMES_BYTES);
    instance::engine().map_or(0, |engine| signals::with_all_blocked(|| pin(engine)).unwrap_or(0))
}

fn unpin(address: usize, len: usize) {
    if let Some(engine) = instance::engine().filter(|_| len > 0) {
        engine.unpin(address, len);
    }
}
