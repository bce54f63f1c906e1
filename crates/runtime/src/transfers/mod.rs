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
//! pieces ([`pieces`]) is only what may be cut: a stream of bytes, the reading of
//! a part of a file that the call has claimed ([`reading`], [`writing`]).
//!
//! The filter sees the outermost pointer only. The calls whose buffers lie behind
//! it are interposed ([`interposed`]) and look inside before they let a call go;
//! they read the program's structures as the kernel would ([`user`]).

mod buffers;
mod filled;
mod interposed;
mod kinds;
mod messages;
mod pieces;
mod reading;
pub(crate) mod spare;
pub(crate) mod user;
mod vectors;
mod writing;

pub(crate) use buffers::{before_filter, set_up};
pub(crate) use filled::Filled;
pub(crate) use interposed::room_of;

use crate::guard::Arguments;
use softswap_engine::door::engine::Engine;

/// As many vectors as the kernel takes.
const MAX_VECTORS: usize = 1024;
/// The kernel cuts transfers here.
const MAX_TRANSFER_BYTES: usize = 0x7fff_f000;
/// No pointer of a program's is larger.
const END_OF_MEMORY: usize = 0x7fff_ffff_f000;

/// Answers a call that moves data; `None` for other calls.
pub(crate) fn answer(engine: &Engine, number: i64, arguments: Arguments) -> Option<isize> {
    Some(match number {
        libc::SYS_read
        | libc::SYS_pread64
        | libc::SYS_recvfrom
        | libc::SYS_getrandom
        | libc::SYS_write
        | libc::SYS_pwrite64
        | libc::SYS_sendto => vectors::answer_buffer(engine, number, arguments),
        libc::SYS_readv
        | libc::SYS_writev
        | libc::SYS_preadv
        | libc::SYS_pwritev
        | libc::SYS_preadv2
        | libc::SYS_pwritev2
        | libc::SYS_vmsplice
        | libc::SYS_process_vm_readv
        | libc::SYS_process_vm_writev => vectors::answer_vectors(engine, number, arguments),
        libc::SYS_sendmsg => messages::send(engine, arguments),
        libc::SYS_recvmsg => messages::receive(engine, arguments),
        libc::SYS_sendmmsg => messages::send_all(engine, arguments),
        libc::SYS_recvmmsg => messages::receive_all(engine, arguments),
        _ => return None,
    })
}
