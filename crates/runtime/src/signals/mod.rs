//! Signals. SIGBUS and SIGSYS belong to the engine, and SIGSEGV with page protection. All functions
//! that change handlers or masks are handled here.
//!
//! The engine's signals must always reach the engine, because a blocked synchronous signal kills
//! the process. Two invariants hold: their action in the kernel is the engine's, and no mask in the
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
//! Every change of a handler calls [`sigaction::change`], every change of a mask calls
//! [`virtual_mask::change_mask`]. The exceptions are the program's own system-call instructions if
//! the filter does not trap them. [`crate::guard::signal_calls`] handles the same calls issued by
//! number.

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
