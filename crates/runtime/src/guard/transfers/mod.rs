//! Calls that move data between the program's memory and the kernel.
//!
//! **One call of the program's is one call of the kernel's**, unless nobody can
//! tell. What has boundaries is never cut: a datagram, a packet of a pipe, a
//! record that is appended to a file, what a terminal or a device takes at once.
//! What a call finds at a bad pointer, the kernel says.
//!
//! Buffers that fit what may be pinned are pinned, and the kernel gets them as
//! they are. Of others it gets a copy outside the window ([`buffers`]): one that
//! takes DRAM only for what arrives, or lies in the page cache of a file. Cut into
//! chunks ([`chunks`]) is only what may be cut: a stream of bytes, the reading of
//! a part of a file that the call has claimed ([`reading`], [`writing`]).
//!
//! The filter sees the outermost pointer only. The calls whose buffers lie behind
//! it are interposed ([`interposed`]) and look inside before they let a call go;
//! they read the program's structures as the kernel would ([`crate::base::uaccess`]).

pub(crate) mod buffers;
mod descriptor_kind;
mod transfer_call;
mod chunks;
pub(crate) mod output_array;
mod reading;
mod writing;
mod messages;
mod vectors;
pub(crate) mod dispatch;
pub(crate) mod interposed;
