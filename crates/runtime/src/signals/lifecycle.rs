//! When the signals of a process or a thread begin and end to be emulated: at the start, for
//! each thread, around a fork.

use super::sets::OURS;
use super::{pending, program_actions, sigaction, virtual_mask};
use softswap_sys::signals::{self, Action};

/// Notes what the engine's signals did before its handlers came.
pub(crate) fn remember(bus: Action, sys: Action) {
    virtual_mask::become_child();
    program_actions::remember(bus, sys);
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
    virtual_mask::release(OURS & !virtual_mask::get());
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
