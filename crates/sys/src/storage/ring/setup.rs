//! Making a ring: `io_uring_setup`, with its descriptor out of the program's way.

use crate::descriptor::move_high;
use crate::file::errno;
use crate::{own_descriptors, program_filter, raw};
use io_uring::{IoUring, Parameters};
use std::io;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd, RawFd};

// <linux/io_uring.h>: flags of IORING_SETUP.
pub(super) const IOPOLL: u32 = 1 << 0;
pub(super) const CLAMP: u32 = 1 << 4;
const SUBMIT_ALL: u32 = 1 << 7;
const COOP_TASKRUN: u32 = 1 << 8;
const TASKRUN_FLAG: u32 = 1 << 9;
pub(super) const HYBRID_IOPOLL: u32 = 1 << 17;

pub(super) fn build(entries: u32) -> io::Result<IoUring> {
    // No interrupt of the owner when a completion comes in, since it waits or
    // looks for it anyway; one refused request does not hold back the ones
    // after it.
    match set_up(entries, CLAMP | COOP_TASKRUN | TASKRUN_FLAG | SUBMIT_ALL) {
        // Older kernels answer so to flags they do not know.
        Err(error) if error.raw_os_error() == Some(errno::EINVAL) => set_up(entries, 0),
        result => result,
    }
}

/// A ring whose descriptor is out of the way of programs that close low ones
/// before its queues are mapped: a program that starts makes many rings, and
/// mapping them twice is what would take longest.
pub(super) fn set_up(entries: u32, flags: u32) -> io::Result<IoUring> {
    // Where in the 120 bytes of the parameters the flags are.
    const FLAGS_AT: usize = 2;
    if program_filter::is_in_force() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    const PARAMETER_WORDS: usize = size_of::<Parameters>() / size_of::<u32>();
    let mut words = [0u32; PARAMETER_WORDS];
    words[FLAGS_AT] = flags;
    let args = [entries as usize, words.as_mut_ptr() as usize, 0, 0, 0, 0];
    // SAFETY: the kernel reads and writes `struct io_uring_params`, for which there is
    // room, and opens a new descriptor.
    let fd = raw::check(unsafe { raw::syscall(libc::SYS_io_uring_setup, args) })?;
    // SAFETY: the descriptor was opened just now, and is owned by nobody else.
    let fd = move_high(unsafe { OwnedFd::from_raw_fd(fd as RawFd) }).into_raw_fd();
    // SAFETY: the library's type is a transparent wrapper of what the kernel
    // has filled in, all of it integers, of the same size.
    let params = unsafe { std::mem::transmute::<[u32; PARAMETER_WORDS], Parameters>(words) };
    // SAFETY: the descriptor is a ring's, nobody else owns it, and these are its
    // parameters. The library closes it where the queues cannot be mapped.
    unsafe { IoUring::from_fd(fd, params) }.inspect_err(|_| own_descriptors::forget(fd))
}
