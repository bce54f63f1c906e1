//! Signals: two of them are the engine's, and every way to handlers and masks leads here.
//!
//! SIGBUS and SIGSYS must always reach the engine, because a synchronous signal that is
//! blocked kills. So two things hold at any time: their action in the kernel is the
//! engine's, and no mask that the kernel has contains them. What the program asks for
//! them is *believed* instead: it is remembered, told when asked, and acted on as the
//! kernel would have acted.
//!
//! | room      | answers for                                                      |
//! |-----------|------------------------------------------------------------------|
//! | `actions` | what a signal does: `sigaction` and all that is made of it       |
//! | `entry`   | the handler that the kernel has for every handler of the program's |
//! | `belief`  | what a thread believes to block                                  |
//! | `pending` | what is held back meanwhile, and who takes it                    |
//! | `calls`   | `sigprocmask` and all that is made of it                         |
//! | `waiting` | calls that put a mask in force while they wait, or wait for a signal |
//! | `jumps`   | masks that are kept with a place to jump to                      |
//! | `stacks`  | `sigaltstack`                                                    |
//! | `by_number` | the same calls, made by their numbers                          |
//!
//! A way to change handlers ends in [`actions::change`], a way to change masks in
//! [`belief::change_mask`]. What passes both by is an instruction of the program's own
//! whose pointers the filter does not look for.

mod actions;
mod belief;
mod by_number;
mod calls;
mod entry;
mod jumps;
mod pending;
mod stacks;
mod waiting;

pub(crate) use actions::{deliver, is_ignored, lock_for_fork, unlock_after_fork};
pub(crate) use belief::{become_child, believed, inherit};
pub(crate) use by_number::{answer_trapped, room_of, strip};
pub(crate) use calls::{as_believed, mask_to_pass_on};
pub(crate) use waiting::Stripped;

use libc::sigset_t;
use softswap_sys::signals::{self, Action, Mask, NEVER_BLOCKED};

/// The engine's signals.
const OURS: Mask = NEVER_BLOCKED;

/// Signals that the C library keeps for itself (cancellation, setxid).
pub(crate) const INTERNAL: Mask = signals::bit(32) | signals::bit(33);

/// Notes what the engine's signals did before its handlers came.
pub(crate) fn remember(bus: Action, sys: Action) {
    become_child();
    actions::remember(bus, sys);
}

/// Takes over what the program was started with: the mask, and handlers that
/// constructors have installed meanwhile.
pub(crate) fn adopt() {
    belief::adopt_mask();
    actions::adopt();
}

/// This thread is the program's, and can be told of signals; it believes what it is to.
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
    belief::release(OURS & !belief::believed());
}

/// This thread ends. The child of a `vfork` is none, though its memory is its parent's.
pub(crate) fn leave() {
    if !belief::is_borrowing() {
        pending::leave();
    }
}

/// This thread is the engine's.
pub(crate) fn be_engines() {
    pending::be_engines();
}

/// The kernel's part of a C library set.
///
/// # Safety
/// `set` is a valid sigset_t.
unsafe fn bits(set: *const sigset_t) -> Mask {
    // SAFETY: a sigset_t starts with the kernel's 64 bits.
    unsafe { set.cast::<Mask>().read_unaligned() }
}

fn set_bits(set: &mut sigset_t, mask: Mask) {
    // SAFETY: as in `bits`.
    unsafe { std::ptr::from_mut(set).cast::<Mask>().write_unaligned(mask) };
}

/// A C library set.
fn set_of(mask: Mask) -> sigset_t {
    // SAFETY: all-zero is the empty set.
    let mut set = unsafe { std::mem::zeroed() };
    set_bits(&mut set, mask);
    set
}
