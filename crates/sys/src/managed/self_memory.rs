//! `/proc/self/mem`, which accesses this process's memory regardless of protection, and `maps`.

use crate::memory::{PAGE_SIZE, RESERVE, map, unmap};
use crate::{descriptor, program_filter, raw};
use rustix::fd::{FromRawFd, IntoRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use std::io;
use std::sync::atomic::{AtomicI32, Ordering};

/// A file of `/proc/self`. In a forked child it refers to the parent until it is reopened.
#[derive(Debug)]
struct SelfFile {
    number: AtomicI32,
    path: &'static str,
    flags: OFlags,
}

impl SelfFile {
    fn open(path: &'static str, flags: OFlags) -> io::Result<SelfFile> {
        let file = SelfFile { number: AtomicI32::new(-1), path, flags };
        match file.open_fresh() {
            Ok(fd) => {
                let fd = descriptor::move_high(fd);
                file.number.store(fd.into_raw_fd(), Ordering::Relaxed);
            }
            Err(_) if program_filter::is_in_force() => {}
            Err(error) => return Err(error),
        }
        Ok(file)
    }

    fn open_fresh(&self) -> io::Result<OwnedFd> {
        if program_filter::is_in_force() {
            return Err(io::Error::from_raw_os_error(libc::EPERM));
        }
        Ok(rustix::fs::open(self.path, self.flags | OFlags::CLOEXEC, Mode::empty())?)
    }

    /// Reopens the file in a forked child with one thread. Without permission it stays closed.
    fn reopen(&self) {
        let fresh = descriptor::with_raised_limit(|| self.open_fresh()).or_else(|error| {
            // All descriptor numbers are in use: free this value's number and use it.
            self.close();
            if error.raw_os_error() == Some(libc::EMFILE) { self.open_fresh() } else { Err(error) }
        });
        self.close();
        if let Ok(fresh) = fresh {
            let fresh = descriptor::move_high(fresh);
            self.number.store(fresh.into_raw_fd(), Ordering::Release);
        }
    }

    fn close(&self) {
        let number = self.number.swap(-1, Ordering::AcqRel);
        if number >= 0 {
            // SAFETY: the descriptor belonged to this value, which has cleared its number.
            descriptor::release(unsafe { OwnedFd::from_raw_fd(number) });
        }
    }

    fn transfer(&self, call: i64, buffer: usize, len: usize, at: usize) -> io::Result<usize> {
        if self.number.load(Ordering::Relaxed) < 0 {
            return Err(io::ErrorKind::NotConnected.into());
        }
        loop {
            let args = [self.number.load(Ordering::Relaxed) as usize, buffer, len, at, 0, 0];
            // SAFETY: the callers pass a buffer of `len` bytes, writable if the call reads the
            // file. Such a call changes only the buffer. A write changes memory to which no Rust
            // reference points, as the caller of `SelfMemory::write` promises. For unmapped memory
            // the kernel returns EIO.
            match raw::check(unsafe { raw::syscall(call, args) }) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.raw_os_error() == Some(libc::EBADF) => {
                    descriptor::lost(self.path)
                }
                result => return result,
            }
        }
    }
}

impl Drop for SelfFile {
    fn drop(&mut self) {
        self.close();
    }
}

#[derive(Debug)]
pub(crate) struct SelfMemory(SelfFile);

impl SelfMemory {
    pub(crate) fn open() -> io::Result<SelfMemory> {
        SelfFile::open("/proc/thread-self/mem", OFlags::RDWR).map(SelfMemory)
    }

    pub(crate) fn reopen(&self) {
        self.0.reopen();
    }

    /// Returns false in a process that may not open the file.
    pub(crate) fn is_open(&self) -> bool {
        self.0.number.load(Ordering::Relaxed) >= 0
    }

    fn transfer(&self, call: i64, buffer: usize, len: usize, address: usize) -> io::Result<()> {
        let mut done = 0;
        while done < len {
            match self.0.transfer(call, buffer + done, len - done, address + done)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => done += count,
            }
        }
        Ok(())
    }

    pub(crate) fn read(&self, address: usize, to: &mut [u8]) -> io::Result<()> {
        self.transfer(libc::SYS_pread64, to.as_mut_ptr() as usize, to.len(), address)
    }

    /// # Safety
    /// No Rust reference points to the memory: it is in a window, or a mapping of the caller's own.
    pub(crate) unsafe fn write(&self, address: usize, bytes: &[u8]) -> io::Result<()> {
        self.transfer(libc::SYS_pwrite64, bytes.as_ptr() as usize, bytes.len(), address)
    }
}

#[derive(Debug)]
pub(crate) struct SelfMaps(SelfFile);

impl SelfMaps {
    pub(crate) fn open() -> io::Result<SelfMaps> {
        SelfFile::open("/proc/thread-self/maps", OFlags::RDONLY).map(SelfMaps)
    }

    pub(crate) fn reopen(&self) {
        self.0.reopen();
    }

    pub(crate) fn count(&self) -> io::Result<usize> {
        let (mut text, mut at, mut lines) = ([0; PAGE_SIZE], 0, 0);
        loop {
            let buffer = text.as_mut_ptr() as usize;
            match self.0.transfer(libc::SYS_pread64, buffer, PAGE_SIZE, at)? {
                0 => return Ok(lines),
                len => {
                    lines += text[..len].iter().filter(|byte| **byte == b'\n').count();
                    at += len;
                }
            }
        }
    }
}

/// Checks that inaccessible memory of this process can be written and read through the file.
pub(crate) fn try_out() -> io::Result<()> {
    if program_filter::is_in_force() {
        return Ok(());
    }
    let memory = SelfMemory::open()?;
    // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
    let page = unsafe { map(0, PAGE_SIZE, libc::PROT_NONE, RESERVE)? };
    let (written, mut read) = ([0x5a_u8; 8], [0; 8]);
    // SAFETY: the page was mapped above, and nothing refers to it.
    let wrote = unsafe { memory.write(page, &written) };
    let result = wrote.and_then(|()| memory.read(page, &mut read));
    // SAFETY: the page was mapped above, and nothing refers to it.
    unsafe { unmap(page, PAGE_SIZE) };
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
