//! A call that moves data, without its buffers.

use super::chunks::Step;
use crate::base::guarded_call::issue_waiting;
use crate::base::issue_call::{Arguments, issue};
use libc::iovec;
use softswap_sys::pointer_lookup::buffer_of;

#[derive(Clone, Copy)]
pub(super) struct Call {
    pub(super) number: i64,
    pub(super) arguments: Arguments,
}

impl Call {
    pub(super) fn fd(&self) -> usize {
        self.arguments[0]
    }

    pub(super) fn flags(&self) -> usize {
        match self.number {
            libc::SYS_recvfrom | libc::SYS_sendto => self.arguments[3],
            _ => 0,
        }
    }

    pub(super) fn write_flags(&self) -> usize {
        match self.number {
            libc::SYS_pwritev2 => self.arguments[5],
            _ => 0,
        }
    }

    /// Returns true if the device must write all or nothing.
    pub(super) fn is_atomic(&self) -> bool {
        const RWF_ATOMIC: usize = 0x40;
        self.write_flags() & RWF_ATOMIC != 0
    }

    pub(super) fn buffer_at(&self) -> Option<usize> {
        buffer_of(self.number)
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

    /// Returns the explicit position; `None` if the file's own position is used.
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
            // Upper half of the position, which a 64-bit kernel ignores.
            call.arguments[4] = 0;
        }
        call
    }

    pub(super) fn issue(&self, vectors: &[iovec]) -> isize {
        self.issue_by(vectors, issue_waiting)
    }

    /// After the first piece of a file or disk, signals do not interrupt the call.
    pub(super) fn issue_piece(&self, vectors: &[iovec], step: Step) -> isize {
        self.issue_by(vectors, if step.done > 0 { issue } else { issue_waiting })
    }

    fn issue_by(&self, vectors: &[iovec], issue: fn(i64, Arguments) -> isize) -> isize {
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
}
