//! Where this thread's signal stack is, on which all signals arrive.

use super::instance;
use libc::stack_t;
use softswap_engine::door::engine::Engine;
use softswap_sys::engine_stack::{self, Stacks};
use softswap_sys::signals;
use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

thread_local! {
    /// Its base; 0: there is none.
    static BASE: Cell<usize> = const { Cell::new(0) };
}

/// Bytes at the lower end of each stack that are an alternate stack of the program's.
static LENT_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Lends the lower half of each stack to the program. Go asks the kernel for a thread's alternate
/// stack by an instruction, finds the engine's, and expects its handlers there.
pub(crate) fn lend_half() {
    LENT_BYTES.store(signals::stack_at(0).len() / 2, Ordering::Relaxed);
}

/// The part of this thread's stack that is lent to the program.
pub(crate) fn lent() -> Option<stack_t> {
    let ss_size = LENT_BYTES.load(Ordering::Relaxed);
    let stack = alternate().filter(|_| ss_size > 0)?;
    Some(stack_t { ss_size, ..stack })
}

fn own_part(base: usize) -> Range<usize> {
    let all = signals::stack_at(base);
    all.start + LENT_BYTES.load(Ordering::Relaxed)..all.end
}

/// This thread has a signal stack at `base`; 0: none any more.
#[inline]
pub(crate) fn set(base: usize) {
    BASE.set(base);
}

/// Whether this thread has a signal stack of the engine's.
#[inline]
pub(crate) fn exists() -> bool {
    BASE.get() != 0
}

/// The addresses of this thread's, if it has one, without what is [`lent`].
pub(crate) fn addresses() -> Option<Range<usize>> {
    exists().then(|| own_part(BASE.get()))
}

/// This thread's, as the kernel knows it.
pub(crate) fn alternate() -> Option<stack_t> {
    exists().then(|| signals::alternate_stack_at(BASE.get()))
}

/// Returns true if an address is in [`addresses`].
#[inline]
pub(crate) fn contains(address: usize) -> bool {
    let base = BASE.get();
    base != 0 && own_part(base).contains(&address)
}

/// Whether a jump to a frame at `target` leaves one at `frame`: the signal stack comes on top of
/// the others.
pub(crate) fn is_left(frame: usize, target: usize) -> bool {
    match (contains(frame), contains(target)) {
        (true, false) => true,
        (false, true) => false,
        _ => frame < target,
    }
}

/// Bytes of a managed stack, above the stack pointer, that code which blocks signals refers to.
const FRAMES_BYTES: usize = 24 << 10;

/// From now on code that blocks signals leaves managed stacks.
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
