//! `mmap` and its relatives, and `brk`.
//!
//! Private anonymous memory of 64 KiB and more comes from the window and is the
//! engine's, also if it is mapped from `/dev/zero`; everything else is the kernel's. Calls about the window are answered
//! here, whether they come through the C library or as raw system calls (the
//! guard). The rules:
//!
//! - **Check first, then change.** Whatever Linux refuses is refused before
//!   anything is displaced, with the same error; what Linux does up to the first
//!   hole is done up to there. The kernel cannot tell by itself: to it the whole
//!   window is mapped.
//! - **A range may hold all three**: managed memory, mappings of the program's that
//!   were put into the window (lent, "foreign"), and holes. Each call goes through
//!   it part by part ([`ranges`]); foreign parts are the kernel's.
//! - **A fixed address is where it is to be.** In the window, what is private and
//!   anonymous is managed, all else is lent; outside, the kernel's.
//! - **A hint in the window is kept** ([`address_choice`]). A hint outside of it is treated as if
//!   the range were taken, so that the memory can be managed. `memory::insistence` has the
//!   exceptions.
//! - **Protection keys and `mlockall` are refused**, as where the processor has
//!   no keys and the limit is too low.

mod populate;
mod zero_device;
mod address_choice;
pub(crate) mod program_break;
mod sealing;
mod ranges;
mod mremap;
pub(crate) mod memory_calls;
