//! Memory regions larger than DRAM.
//!
//! A [`Pool`] is a DRAM budget with disk space. A [`Region`] of it is plain bytes, of any length.
//! Pages that have not been touched for a while are compressed, then written to the disk, encrypted
//! and authenticated; a touch faults them in. This is what `softswap run` does for unmodified
//! programs, under a program's own control.
//!
//! ```
//! use softswap::{Advice, Pool};
//!
//! # fn main() -> softswap::Result<()> {
//! let pool = Pool::builder().memory("16M")?.swap("/var/tmp")?.build()?;
//! let mut region = pool.map(48 << 20)?;
//! region.advise(.., Advice::Sequential)?;
//! for page in region.chunks_mut(4096) {
//!     page[0] = 1;
//! }
//! assert_eq!(region.iter().step_by(4096).map(|byte| u64::from(*byte)).sum::<u64>(), 12288);
//! # Ok(())
//! # }
//! ```
//!
//! # Requirements
//!
//! Linux on x86_64: 4.18 or newer, better 6.8. `softswap doctor` lists what a machine lacks.
//!
//! # System calls
//!
//! The kernel does not wait for an absent page: a call that receives one fails with `EFAULT`.
//! [`Region::pin`] and [`Region::pin_mut`] keep a range in DRAM for a call. In a pool created with
//! [`Builder::guard_calls`] most calls fault pages in by themselves, as under `softswap run`.
//!
//! # Advice
//!
//! [`Region::advise`] declares the expected use of a region. Do not call `madvise` on a region with
//! advice that drops pages, such as `MADV_DONTNEED`: it destroys content that only DRAM holds. A
//! later touch then kills the program, possibly after seconds of futile reclaim.
//!
//! # Signals
//!
//! A touch of an absent page raises SIGBUS, or SIGSEGV where userfaultfd is refused, as in
//! containers. The program does not notice it. The first pool installs the handler; signals for
//! other reasons are passed to the previous handler. A program that needs its own handler of this
//! signal installs it before its first pool, or passes signals on to the handler that it replaces.
//! The handler runs on the stack of the touching thread and needs 64 KiB of it
//! ([`STACK_NEEDED_BYTES`]). Alternate signal stacks are not changed, so a signal handler on a small
//! one must not touch a region. A thread that touches a region must not block the signal.
//!
//! A page that cannot be faulted in, because the disk failed or returned other data than was
//! written, never reads as zeroes. A line on standard error states the reason, and the touch raises
//! SIGBUS for the program's own handler, without which the program is killed.
//!
//! A dropped pool closes its io_uring rings. Some time later the kernel interrupts, once, the
//! threads that used them, as by a signal without a handler: a system call that the kernel does not
//! restart may transfer less than requested, or fail with `EINTR`.
//!
//! # fork
//!
//! A forked child does not inherit pools: a touch of a region is a segmentation fault,
//! never zeroes, and all calls fail ([`Error::OtherProcess`]). Dropping regions and pools there has
//! no effect. The child may create its own pools. A fork waits while another thread creates or
//! drops a pool.
//!
//! # With `softswap run`
//!
//! A program may have pools while `softswap run` manages the rest of its memory: each engine serves
//! its own memory.
//!
//! # As an allocator
//!
//! With the feature `allocator-api2` a `&Pool` is an `Allocator` of that crate, for its own and
//! other collections. A pool cannot be a global allocator, because it allocates for itself.
#![warn(missing_docs)]

mod error;
mod size;
mod stats;
mod fork;
mod running;
mod bytes;
mod pin;
mod region;
mod pool;
mod builder;
#[cfg(feature = "allocator-api2")]
mod allocator;

pub use builder::Builder;
pub use error::{Error, Result};
pub use pin::{Pin, PinMut};
pub use pool::Pool;
pub use region::{Advice, PinOwned, Region};
pub use stats::Stats;

/// Free stack that a thread needs when it touches a region, in bytes.
///
/// ```
/// std::thread::Builder::new().stack_size(4 * softswap::STACK_NEEDED_BYTES);
/// ```
pub const STACK_NEEDED_BYTES: usize = softswap_sys::touches::STACK_NEEDED_BYTES;

/// Compiles the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
