//! `/proc/self/mem`: this process's memory, read and written without regard to its protection.

use crate::memory::PAGE_SIZE;
use crate::{descriptor, raw};
use rustix::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use std::io;
use std::sync::atomic::{AtomicI32, Ordering};

const PATH: &str = "/proc/thread-self/mem";

/// The open file. In a forked child it names the parent's memory until it is opened again.
#[derive(Debug)]
pub(crate) struct SelfMemory(AtomicI32);

fn open() -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(PATH, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}

impl SelfMemory {
    pub(crate) fn open() -> io::Result<SelfMemory> {
        Ok(SelfMemory(AtomicI32::new(descriptor::move_high(open()?).into_raw_fd())))
    }

    /// Opens this process's own memory in a forked child, which has one thread.
    pub(crate) fn reopen(&self) -> io::Result<()> {
        let fresh = descriptor::with_room(open).or_else(|error| {
            if error.raw_os_error() != Some(libc::EMFILE) {
                return Err(error);
            }
            // All numbers are in use: its own serves.
            self.close();
            open()
        })?;
        let fresh = descriptor::move_high(fresh);
        self.close();
        self.0.store(fresh.into_raw_fd(), Ordering::Release);
        Ok(())
    }

    fn close(&self) {
        let number = self.0.swap(-1, Ordering::AcqRel);
        if number >= 0 {
            // SAFETY: the descriptor was this value's, which has forgotten its number.
            descriptor::release(unsafe { OwnedFd::from_raw_fd(number) });
        }
    }

    /// Copies `len` bytes between `address` and a buffer.
    fn transfer(&self, call: i64, buffer: usize, len: usize, address: usize) -> io::Result<()> {
        let mut done = 0;
        while done < len {
            let fd = self.0.load(Ordering::Relaxed) as usize;
            let args = [fd, buffer + done, len - done, address + done, 0, 0];
            // SAFETY: `read` and `write` name a buffer of `len` bytes, and memory at `address`
            // to which no Rust reference points. For what is not mapped the kernel answers EIO.
            match raw::check(unsafe { raw::syscall(call, args) }) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.raw_os_error() == Some(libc::EBADF) => {
                    descriptor::lost("the file of its memory")
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Copies what is at `address` to `to`.
    pub(crate) fn read(&self, address: usize, to: &mut [u8]) -> io::Result<()> {
        self.transfer(libc::SYS_pread64, to.as_mut_ptr() as usize, to.len(), address)
    }

    /// Writes `bytes` to `address`, which is in the window.
    pub(crate) fn write(&self, address: usize, bytes: &[u8]) -> io::Result<()> {
        self.transfer(libc::SYS_pwrite64, bytes.as_ptr() as usize, bytes.len(), address)
    }
}

impl Drop for SelfMemory {
    fn drop(&mut self) {
        self.close();
    }
}

/// Checks that inaccessible memory of this process can be written and read through the file.
pub(crate) fn try_out() -> io::Result<()> {
    let file = open()?;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let args = [0, PAGE_SIZE, libc::PROT_NONE as usize, flags as usize, usize::MAX, 0];
    // SAFETY: a mapping of its own, at a place of the kernel's choice.
    let page = raw::check(unsafe { raw::syscall(libc::SYS_mmap, args) })?;
    let memory = SelfMemory(AtomicI32::new(file.as_raw_fd()));
    let (written, mut read) = ([0x5a_u8; 8], [0; 8]);
    let result = memory.write(page, &written).and_then(|()| memory.read(page, &mut read));
    // `file` closes the descriptor.
    memory.0.store(-1, Ordering::Relaxed);
    // SAFETY: the page was mapped above, and nothing refers to it.
    unsafe { raw::syscall(libc::SYS_munmap, [page, PAGE_SIZE, 0, 0, 0, 0]) };
    result?;
    if read == written { Ok(()) } else { Err(io::ErrorKind::Unsupported.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inaccessible_memory_is_written_and_read() {
        try_out().unwrap();
    }
}
