//! `mmap`, related calls, and `brk`.
//!
//! Private anonymous memory of at least 32 KiB is placed in the window and managed by the engine.
//! The kernel handles everything else. Calls about the window arrive here through the C library or
//! through the guard. The rules:
//!
//! - **Check first, then change.** A call that Linux refuses fails with the same error before
//!   anything is changed. If Linux carries a call out up to the first hole, so does the runtime.
//!   The kernel cannot check this, because it has the whole window mapped.
//! - **A range may contain three kinds**: managed memory, unmanaged mappings that the program
//!   placed in the window, and holes. Each call processes the range part by part ([`ranges`]); the
//!   kernel handles unmanaged parts.
//! - **Fixed addresses are used as requested.** In the window, private anonymous memory is managed
//!   and everything else unmanaged; outside, the kernel maps.
//! - **A hint in the window is used** ([`address_choice`]). A hint outside of it is treated as if
//!   the range were taken, so that the memory can be managed. `memory::hint_retries` lists the
//!   exceptions.
//! - **Protection keys and `mlockall` are refused**, as on a processor without keys and as with a
//!   low RLIMIT_MEMLOCK.

mod mapping_limit;
mod populate;
mod zero_device;
mod address_choice;
pub(crate) mod program_break;
mod sealing;
mod ranges;
mod mremap;
pub(crate) mod memory_calls;
