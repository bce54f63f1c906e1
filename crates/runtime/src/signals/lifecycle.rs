//! Start and end of signal emulation: at process start, for each thread, and around a fork.

use super::sets::engine_signals;
use super::{pending, program_actions, sigaction, virtual_mask};
use softswap_sys::signals::{self, Action};

/// Stores the actions that the engine's signals had before its handlers were installed.
pub(crate) fn remember(before: impl IntoIterator<Item = (i32, Action)>) {
    virtual_mask::become_child();
    for (signal, action) in before {
        program_actions::remember(signal, action);
    }
}

/// Takes over the inherited mask, and handlers that constructors have installed.
pub(crate) fn adopt() {
    virtual_mask::adopt_mask();
    sigaction::adopt();
}

/// Registers this thread of the program, with its final mask, so that it can receive held signals.
/// `stack` is the base of its signal stack.
pub(crate) fn enter(stack: usize) {
    pending::enter(signals::note(stack));
    look();
}

/// Marks this thread as forking: it takes no sent signals.
pub(crate) fn begin_fork() {
    pending::begin_fork();
}

/// Ends the forking state, in the parent or the child, after the locks are released. Signals sent
/// meanwhile are taken by [`look`] once signals are unblocked.
pub(crate) fn end_fork() {
    pending::end_fork();
}

/// Takes the signals that were held meanwhile.
pub(crate) fn look() {
    virtual_mask::release(engine_signals() & !virtual_mask::get());
}

/// Returns true if a thread has its signal stack and its emulated mask.
pub(crate) fn knows(thread: i32) -> bool {
    pending::knows(thread)
}

/// Unregisters this thread at its exit. Does nothing in the child of a `vfork`, whose memory is its
/// parent's.
pub(crate) fn unregister_thread() {
    if !virtual_mask::is_borrowing() {
        pending::unlist_thread();
    }
}

/// Marks this thread as the engine's.
pub(crate) fn mark_engine_thread() {
    pending::mark_engine_thread();
}
