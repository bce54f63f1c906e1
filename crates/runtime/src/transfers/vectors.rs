//! Calls over one buffer, and over an array of them.

use super::buffers::{EMPTY, FEW, MOST_RANGES, cut, room};
use super::pieces::{Moved, in_pieces};
use super::{MAX_VECTORS, reading, user, writing};
use crate::guard::{Arguments, issue};
use crate::pins::Pins;
use libc::iovec;
use softswap_engine::door::engine::Engine;
use softswap_sys::syscall_table::{self, Pointee};

/// A call that moves data, without its buffers.
#[derive(Clone, Copy)]
pub(super) struct Call {
    pub(super) number: i64,
    pub(super) arguments: Arguments,
}

impl Call {
    pub(super) fn fd(&self) -> usize {
        self.arguments[0]
    }

    /// Flags of a call about a socket.
    pub(super) fn flags(&self) -> usize {
        match self.number {
            libc::SYS_recvfrom | libc::SYS_sendto => self.arguments[3],
            _ => 0,
        }
    }

    /// Where the buffer is named, if it is one.
    fn buffer_at(&self) -> Option<usize> {
        match self.number {
            libc::SYS_getrandom => Some(0),
            libc::SYS_read
            | libc::SYS_pread64
            | libc::SYS_recvfrom
            | libc::SYS_write
            | libc::SYS_pwrite64
            | libc::SYS_sendto => Some(1),
            _ => None,
        }
    }

    pub(super) fn writes(&self) -> bool {
        matches!(
            self.number,
            libc::SYS_write
                | libc::SYS_pwrite64
                | libc::SYS_sendto
                | libc::SYS_writev
                | libc::SYS_pwritev
                | libc::SYS_pwritev2
        )
    }

    /// The position that the call names; `None` when the file's own counts.
    pub(super) fn position(&self) -> Option<usize> {
        match self.number {
            libc::SYS_pread64 | libc::SYS_pwrite64 | libc::SYS_preadv | libc::SYS_pwritev => {
                Some(self.arguments[3])
            }
            libc::SYS_preadv2 | libc::SYS_pwritev2 => {
                Some(self.arguments[3]).filter(|position| *position != usize::MAX)
            }
            _ => None,
        }
    }

    /// The same transfer at a position.
    pub(super) fn at(&self, position: usize) -> Call {
        let mut call = *self;
        call.arguments[3] = position;
        call.number = match self.number {
            libc::SYS_read => libc::SYS_pread64,
            libc::SYS_write => libc::SYS_pwrite64,
            libc::SYS_readv => libc::SYS_preadv,
            libc::SYS_writev => libc::SYS_pwritev,
            other => other,
        };
        if matches!(call.number, libc::SYS_preadv | libc::SYS_pwritev) {
            // The position's upper half, which a 64-bit kernel shifts away.
            call.arguments[4] = 0;
        }
        call
    }

    /// Issues the call over other buffers.
    pub(super) fn go(&self, vectors: &[iovec]) -> isize {
        let mut arguments = self.arguments;
        match (self.buffer_at(), vectors) {
            (Some(at), [vector, ..]) => {
                arguments[at] = vector.iov_base as usize;
                arguments[at + 1] = vector.iov_len;
            }
            _ => {
                arguments[1] = vectors.as_ptr() as usize;
                arguments[2] = vectors.len();
            }
        }
        issue(self.number, arguments)
    }

    fn move_data(&self, engine: &Engine, originals: &mut [iovec]) -> isize {
        if self.writes() {
            writing::write(engine, self, originals)
        } else {
            reading::read(engine, self, originals)
        }
    }
}

/// Pins what surrounds the data: addresses of sockets and their lengths.
fn pin_others(pins: &mut Pins<'_, 4>, call: &Call, buffer_at: usize) {
    for (index, pointee) in syscall_table::pointers(call.number) {
        let (index, arguments) = (*index as usize, &call.arguments);
        match *pointee {
            Pointee::Struct(len) if index != buffer_at => {
                pins.add(arguments[index], len as usize, usize::MAX);
            }
            Pointee::Bytes(len) if index != buffer_at => {
                pins.add(arguments[index], arguments[len as usize], usize::MAX);
            }
            _ => {}
        }
    }
}

pub(super) fn answer_buffer(engine: &Engine, number: i64, arguments: Arguments) -> isize {
    let call = Call { number, arguments };
    let at = call.buffer_at().unwrap_or(1);
    let mut original = [iovec { iov_base: arguments[at] as *mut _, iov_len: arguments[at + 1] }];
    let mut pins = Pins::new(engine);
    pin_others(&mut pins, &call, at);
    if !cut(&mut original) {
        return issue(number, arguments);
    }
    call.move_data(engine, &mut original)
}

pub(super) fn answer_vectors(engine: &Engine, number: i64, arguments: Arguments) -> isize {
    let [_, address, count, ..] = arguments;
    let mut pins = Pins::<MOST_RANGES>::new(engine);
    let mut few = [EMPTY; FEW];
    if count > MAX_VECTORS {
        return issue(number, arguments);
    }
    let Some(originals) = room(&mut pins, &mut few, count) else {
        return -(libc::ENOMEM as isize);
    };
    // SAFETY: any bytes are a vector.
    if !unsafe { user::read_all(address, originals) } || !cut(originals) {
        // The kernel says what is wrong.
        return issue(number, arguments);
    }
    let call = Call { number, arguments };
    match number {
        libc::SYS_process_vm_readv | libc::SYS_process_vm_writev => {
            pins.add(arguments[3], arguments[4].saturating_mul(size_of::<iovec>()), usize::MAX);
            one_piece(engine, &call, originals)
        }
        libc::SYS_vmsplice => one_piece(engine, &call, originals),
        _ => call.move_data(engine, originals),
    }
}

/// As much as may be pinned at once: a call that may move less than it is asked to.
fn one_piece(engine: &Engine, call: &Call, originals: &[iovec]) -> isize {
    in_pieces(engine, originals, |vectors, _| Moved { result: call.go(vectors), goes_on: false })
}
