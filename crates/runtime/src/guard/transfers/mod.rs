//! Calls that move data between the program's memory and the kernel.
//!
//! **One call of the program's is one call of the kernel's**, unless the difference cannot be
//! observed. A transfer with boundaries is never cut: a datagram, a packet of a pipe, what a
//! terminal or a device takes at once. The kernel reports bad pointers.
//!
//! The kernel cannot fault on managed memory. So buffers are pinned, or cut into pieces that are
//! pinned one after the other ([`chunks`]): streams, disks, and the part of a file that a call
//! has claimed ([`reading`], [`file_writing`]). A call to receive may get untouched memory
//! outside the window, which takes DRAM only for the bytes that arrive ([`buffers`]). A call that
//! can be neither pinned nor cut fails with ENOMEM. No byte leaves DRAM here: only the swap areas
//! take the program's pages, sealed.
//!
//! The filter sees the outermost pointer only. The calls whose buffers lie behind
//! it are interposed ([`interposed`]) and look inside before they let a call go;
//! they read the program's structures as the kernel would ([`crate::base::uaccess`]).

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
mod other_process;
pub(crate) mod interposed;
