//! Start and end of signal emulation: at process start, for each thread, and around a fork.

use super::sets::engine_signals;
use super::{pending, program_actions, sigaction, virtual_mask};
use softswap_sys::signals::{self, Action};

/// Stores the program's actions, which were in force before the engine's handlers.
pub(crate) fn remember(before: impl IntoIterator<Item = (i32, Action)>) {
    virtual_mask::become_owner();
    for (signal, action) in before {
        program_actions::remember(signal, action);
    }
}

/// Emulates the inherited mask, and handlers that constructors have installed.
pub(crate) fn adopt() {
    virtual_mask::adopt_mask();
    sigaction::adopt();
}

/// Registers this thread, with its final mask. `stack` is the base of its signal stack.
pub(crate) fn enter(stack: usize) {
    pending::enter(signals::note(stack));
    deliver_held();
}

pub(crate) fn deliver_held() {
    virtual_mask::release(engine_signals() & !virtual_mask::get());
}

/// Does nothing in the child of a `vfork`, which uses its parent's memory.
pub(crate) fn unregister_thread() {
    if !virtual_mask::is_borrowing() {
        pending::unlist_thread();
    }
}
