//! Memory regions larger than DRAM.
//!
//! A [`Pool`] is a budget of DRAM with disk behind it. A [`Region`] of it is plain bytes, of any
//! length: pages that have not been touched for a while are compressed, then written to the
//! disk, encrypted and authenticated; a touch brings them back. It is what `softswap run` does
//! for programs that cannot be changed, under a program's own control.
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
//! # What it needs
//!
//! Linux on x86_64 with userfaultfd: 5.11 or newer, better 6.8. `softswap doctor` tells what a
//! machine lacks.
//!
//! # System calls
//!
//! The kernel does not wait for a page that is out: a call that is handed one fails with
//! `EFAULT`. [`Region::pin`] and [`Region::pin_mut`] keep a range in DRAM for a call. In a pool made
//! with [`Builder::guard_calls`] most calls see to it by themselves, as under `softswap run`.
//!
//! # Advice
//!
//! What is expected of a region is said by [`Region::advise`]. A `madvise` of the program's own
//! that drops pages of one, as `MADV_DONTNEED` does, takes away what only DRAM holds: a later touch
//! ends the program, perhaps only after seconds in which others make room in vain.
//!
//! # Signals
//!
//! A touch of a page that is out is a SIGBUS, of which the program sees nothing. The handler is
//! put in force by the first pool; SIGBUS for any other reason goes to the handler that was there
//! before. A program that wants one of its own sets it before its first pool, or passes on to the
//! one that it finds. The handler runs on the stack of the thread that touches, of which it needs
//! 64 KiB ([`STACK_NEEDED_BYTES`]); alternate signal stacks are left alone, so a signal handler on
//! a small one must not touch a region. SIGBUS must not be blocked by a thread that touches one.
//!
//! A page that cannot be had, because the disk failed or brought something else than was
//! written, is never zeroes: a line on standard error says why, and the touch is a SIGBUS for
//! the program's own handler, without which it ends.
//!
//! A pool that is dropped closes its io_uring rings. Some time later the kernel interrupts, once, what
//! the threads do that used them, as by a signal without a handler: a call that it does not begin
//! anew by itself may do less than it was asked, or fail with `EINTR`.
//!
//! # fork
//!
//! A forked child has nothing of its parent's pools: a touch of a region there is a segmentation
//! fault, never zeroes, and all calls are refused ([`Error::OtherProcess`]). Dropping regions and
//! pools there does nothing. It may make pools of its own. A fork waits while another thread makes
//! or drops a pool.
//!
//! # Beside `softswap run`
//!
//! A program may have pools while `softswap run` manages the rest of its memory: each engine
//! serves what is its own.
//!
//! # As an allocator
//!
//! With the feature `allocator-api2` a `&Pool` is an `Allocator` of that crate, for its own and
//! other collections. A pool is no global allocator: it allocates for itself.
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

/// What a thread must have left of its stack where it touches a region, in bytes.
///
/// ```
/// std::thread::Builder::new().stack_size(4 * softswap::STACK_NEEDED_BYTES);
/// ```
pub const STACK_NEEDED_BYTES: usize = softswap_sys::touches::STACK_NEEDED_BYTES;

/// The examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
