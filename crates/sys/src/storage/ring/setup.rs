//! Creates rings by `io_uring_setup`, with high descriptor numbers.

use super::queues::{Parameters, Queues};
use crate::descriptor::move_high;
use crate::file::errno;
use crate::{program_filter, raw};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

// <linux/io_uring.h>: flags of IORING_SETUP.
pub(super) const IOPOLL: u32 = 1 << 0;
pub(super) const CLAMP: u32 = 1 << 4;
const SUBMIT_ALL: u32 = 1 << 7;
const COOP_TASKRUN: u32 = 1 << 8;
const TASKRUN_FLAG: u32 = 1 << 9;
pub(super) const HYBRID_IOPOLL: u32 = 1 << 17;

pub(super) fn build(entries: u32) -> io::Result<Queues> {
    // COOP_TASKRUN: a completion does not interrupt the owner, which waits or polls anyway.
    // SUBMIT_ALL: a refused request does not stop the submission of later ones.
    match set_up(entries, CLAMP | COOP_TASKRUN | TASKRUN_FLAG | SUBMIT_ALL) {
        // Older kernels return EINVAL for unknown flags.
        Err(error) if error.raw_os_error() == Some(errno::EINVAL) => set_up(entries, 0),
        result => result,
    }
}

pub(super) fn set_up(entries: u32, flags: u32) -> io::Result<Queues> {
    if program_filter::is_in_force() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let mut parameters = Parameters::of(flags);
    let args = [entries as usize, &raw mut parameters as usize, 0, 0, 0, 0];
    // SAFETY: the kernel reads and writes `struct io_uring_params`, and opens a new descriptor.
    let fd = raw::check(unsafe { raw::syscall(libc::SYS_io_uring_setup, args) })?;
    // SAFETY: the descriptor was opened just now and has no other owner.
    let ring = move_high(unsafe { OwnedFd::from_raw_fd(fd as RawFd) });
    Queues::map(ring, parameters)
}
