//! When the signals of a process or a thread begin and end to be emulated: at the start, for
//! each thread, around a fork.

use super::sets::ours;
use super::{pending, program_actions, sigaction, virtual_mask};
use softswap_sys::signals::{self, Action};

/// Notes the actions that the engine's signals had before its handlers were installed.
pub(crate) fn remember(before: impl IntoIterator<Item = (i32, Action)>) {
    virtual_mask::become_child();
    for (signal, action) in before {
        program_actions::remember(signal, action);
    }
}

/// Takes over what the program was started with: the mask, and handlers that
/// constructors have installed meanwhile.
pub(crate) fn adopt() {
    virtual_mask::adopt_mask();
    sigaction::adopt();
}

/// This thread is the program's, and can be told of signals; its mask is the one that it is to have.
/// `stack` is where its signal stack is.
pub(crate) fn enter(stack: usize) {
    pending::enter(signals::note(stack));
    look();
}

/// This thread forks: from now on it takes nothing that is sent.
pub(crate) fn begin_fork() {
    pending::begin_fork();
}

/// It has forked, in the parent or the child, and has given back what it held for that.
/// What was sent meanwhile is to be taken when signals are open again, by [`look`].
pub(crate) fn end_fork() {
    pending::end_fork();
}

/// Takes what was sent meanwhile.
pub(crate) fn look() {
    virtual_mask::release(ours() & !virtual_mask::get());
}

/// Whether a thread has its signal stack, and its mask from here.
pub(crate) fn knows(thread: i32) -> bool {
    pending::knows(thread)
}

/// This thread ends. The child of a `vfork` is none, though its memory is its parent's.
pub(crate) fn leave() {
    if !virtual_mask::is_borrowing() {
        pending::leave();
    }
}

/// This thread is the engine's.
pub(crate) fn be_engines() {
    pending::be_engines();
}
