//! Calls that move data between the program's memory and the kernel.
//!
//! **One call of the program is one kernel call**, unless the difference cannot be observed. A
//! transfer with boundaries is never split: a datagram, a packet of a pipe, a write to a terminal
//! or a device. The kernel reports bad pointers.
//!
//! Buffers are pinned, or split into pieces that are pinned one after the other ([`chunks`]):
//! streams, disks, and the part of a file that a call has claimed ([`reading`], [`file_writing`]).
//! A receive call may get untouched memory outside the window ([`buffers`]). A call that allows
//! none of these fails with ENOMEM. No copy reaches a disk, where it would be unsealed.
//!
//! Calls with nested buffers are interposed, because the filter sees the outermost pointer only
//! ([`interposed`]). They read structures with the kernel's checks ([`crate::base::uaccess`]).

pub(crate) mod buffers;
mod descriptor_kind;
mod chunks;
mod transfer_call;
pub(crate) mod output_array;
mod reading;
mod file_writing;
mod writing;
mod messages;
mod vectors;
pub(crate) mod dispatch;
pub(super) mod other_process;
pub(crate) mod interposed;
