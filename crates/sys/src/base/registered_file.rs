//! A file kept open without a descriptor, which the program could close by a raw system call: it is
//! registered with an io_uring, which a mapping of the ring's queue keeps.

use crate::memory::{PAGE_SIZE, advise, unmap};
use crate::program_filter;
use crate::raw;
use rustix::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Address of the mapping; 0 if this process may not create rings.
#[derive(Debug)]
pub(crate) struct RegisteredFile(AtomicUsize);

impl RegisteredFile {
    pub(crate) fn new(file: &OwnedFd) -> RegisteredFile {
        RegisteredFile(AtomicUsize::new(map(file).unwrap_or(0)))
    }

    pub(crate) fn renew(&self, file: &OwnedFd) {
        self.0.store(map(file).unwrap_or(0), Ordering::Relaxed);
    }
}

impl Drop for RegisteredFile {
    fn drop(&mut self) {
        let mapping = *self.0.get_mut();
        if mapping != 0 {
            // SAFETY: the mapping belongs to this value; it is never read or written.
            unsafe { unmap(mapping, PAGE_SIZE) };
        }
    }
}

fn map(file: &OwnedFd) -> io::Result<usize> {
    if program_filter::is_in_force() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    const PARAMETER_BYTES: usize = 120;
    const REGISTER_FILES: usize = 2;
    let mut parameters = [0u8; PARAMETER_BYTES];
    let args = [1, parameters.as_mut_ptr() as usize, 0, 0, 0, 0];
    let ring = crate::descriptor::with_raised_limit(|| {
        // SAFETY: the kernel reads and writes `struct io_uring_params`, of 120 bytes, and opens a
        // new descriptor.
        raw::check(unsafe { raw::syscall(libc::SYS_io_uring_setup, args) })
    })?;
    // SAFETY: the descriptor was opened just now and has no other owner.
    let ring = unsafe { OwnedFd::from_raw_fd(ring as i32) };
    let number = ring.as_raw_fd() as usize;
    let files = [file.as_raw_fd()];
    let args = [number, REGISTER_FILES, files.as_ptr() as usize, files.len(), 0, 0];
    // SAFETY: the kernel reads `files.len()` numbers from `files`, and keeps references of its own.
    raw::check(unsafe { raw::syscall(libc::SYS_io_uring_register, args) })?;
    let flags = libc::MAP_SHARED as usize;
    // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
    let mapping = raw::check(unsafe {
        raw::syscall(libc::SYS_mmap, [0, PAGE_SIZE, libc::PROT_READ as usize, flags, number, 0])
    })?;
    // A child registers its own file; a copy of the mapping would keep the parent's open.
    // SAFETY: only this function knows the mapping; the advice keeps it out of children.
    let _ = unsafe { advise(mapping, PAGE_SIZE, libc::MADV_DONTFORK) };
    Ok(mapping)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registered_file_outlives_descriptor() {
        let (read, write) = rustix::pipe::pipe().unwrap();
        let registered = RegisteredFile::new(&write);
        if registered.0.load(Ordering::Relaxed) == 0 {
            return;
        }
        drop(write);
        rustix::fs::fcntl_setfl(&read, rustix::fs::OFlags::NONBLOCK).unwrap();
        // Not end-of-file: a writer still exists.
        assert_eq!(rustix::io::read(&read, &mut [0; 1]), Err(rustix::io::Errno::AGAIN));
        drop(registered);
    }
}
