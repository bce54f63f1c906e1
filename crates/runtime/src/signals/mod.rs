//! Signals. Two of them belong to the engine (three with page protection); every function that
//! changes handlers or masks ends here.
//!
//! SIGBUS and SIGSYS must always reach the engine, because a blocked synchronous signal kills the
//! process. Two invariants hold: their action in the kernel is the engine's, and no mask in the
//! kernel contains them. The program's actions and masks for them are *emulated*: stored, reported
//! to the program, and applied as the kernel would.
//!
//! | file | contents |
//! |---|---|
//! | `sets` | sets of signals |
//! | `force_signal` | a signal raised for the interrupted instruction |
//! | `pending` | signals held while the program blocks them |
//! | `virtual_mask` | a thread's mask as the program has set it |
//! | `program_actions` | the program's action for each signal |
//! | `alternate_stack` | the program's `sigaltstack` |
//! | `temporary_mask` | the mask that a waiting call installs |
//! | `handler_frame` | starts the program's handlers on the stack that Linux would use |
//! | `handler_entry` | kernel-level handler of the signals that the program handles |
//! | `waiting` | calls that install a mask while they wait, or wait for a signal |
//! | `deliver` | delivers the engine's signals to the program |
//! | `handler_return` | code that the program's handlers return to |
//! | `sigaction` | `sigaction` and the functions based on it |
//! | `sigprocmask` | `sigprocmask` and the functions based on it |
//! | `exec_mask` | mask and actions that a started program inherits |
//! | `lifecycle` | process start, thread start and exit, fork |
//! | `user_mode` | detects threads that have left the kernel |
//! | `page_fault` | SIGBUS: faults the page in, or reports the failure |
//!
//! Every change of a handler ends in [`sigaction::change`], every change of a mask in
//! [`virtual_mask::change_mask`]. The exception is a system-call instruction of the program whose
//! pointers the filter does not check. The same calls issued by number are in
//! [`crate::guard::signal_calls`].

pub(crate) mod sets;
pub(crate) mod force_signal;
pub(crate) mod pending;
pub(crate) mod virtual_mask;
pub(crate) mod program_actions;
pub(crate) mod alternate_stack;
pub(crate) mod temporary_mask;
mod handler_frame;
mod handler_entry;
mod waiting;
pub(crate) mod deliver;
mod handler_return;
pub(crate) mod sigaction;
mod sigprocmask;
pub(crate) mod exec_mask;
pub(crate) mod lifecycle;
pub(crate) mod user_mode;
pub(crate) mod page_fault;
