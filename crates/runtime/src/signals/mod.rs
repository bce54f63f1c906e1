//! Signals: two of them are the engine's, and every way to handlers and masks leads here.
//!
//! SIGBUS and SIGSYS must always reach the engine, because a synchronous signal that is
//! blocked kills. So two things hold at any time: their action in the kernel is the
//! engine's, and no mask that the kernel has contains them. What the program asks for
//! them is *emulated* instead: it is remembered, told when asked, and acted on as the
//! kernel would have acted.
//!
//! | file              | answers for                                                 |
//! |-------------------|-------------------------------------------------------------|
//! | `sets`            | which signals are whose                                     |
//! | `force_signal`          | a signal raised for the interrupted instruction             |
//! | `pending`         | what waits while the program blocks it, and who takes it    |
//! | `virtual_mask`    | a thread's mask as the program has set it                   |
//! | `program_actions` | what the program has asked for each signal                  |
//! | `alternate_stack` | the stack of `sigaltstack` as the program has set it        |
//! | `temporary_mask`  | the mask that a waiting call puts in force                  |
//! | `handler_frame`   | starts handlers of the program's, on the stack that Linux would use |
//! | `handler_entry`   | the handler that the kernel has for every one of the program's |
//! | `waiting`         | calls that put a mask in force while they wait, or wait for a signal |
//! | `deliver`         | the engine's signals, given to the program                  |
//! | `handler_return`  | where the program's handlers return to                      |
//! | `sigaction`       | `sigaction` and all that is made of it                      |
//! | `sigprocmask`     | `sigprocmask` and all that is made of it                    |
//! | `exec_mask`       | what a program that is started finds                        |
//! | `lifecycle`       | the start, a thread's begin and end, fork                   |
//! | `user_mode`       | whether a thread has left the kernel since it was asked     |
//! | `page_fault`      | SIGBUS: bring the page in, or stop the toucher              |
//!
//! A way to change handlers ends in [`sigaction::change`], a way to change masks in
//! [`virtual_mask::change_mask`]. What passes both by is an instruction of the program's
//! own whose pointers the filter does not look for. The same calls made by their numbers
//! are in [`crate::guard::signal_calls`].

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
