//! Signals. SIGBUS and SIGSYS belong to the engine, and SIGSEGV with page protection.
//!
//! The engine's signals must always reach the engine, because a blocked synchronous signal kills
//! the process. Two invariants hold: their action in the kernel is the engine's, and no mask in the
//! kernel contains them. The program's actions and masks for them are *emulated*: stored, reported
//! to the program, and applied as the kernel would.
//!
//! Every change of a handler calls [`sigaction::change`], every change of a mask
//! [`virtual_mask::change_mask`], except by the program's own system-call instructions that the
//! filter does not trap. [`crate::guard::signal_calls`] handles the calls by number.

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
