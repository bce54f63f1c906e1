//! Descriptors of the engine's own, kept out of the program's way.

use crate::kept;
use crate::raw;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use std::io;

/// Moves a descriptor to a high number, close-on-exec: shells and daemons
/// close or redirect low ones without asking. Where RLIMIT_NOFILE leaves no
/// room above, it stays where it is. From then on it is kept (see
/// [`crate::kept`]); what is not meant to last ends with [`release`].
#[must_use]
pub fn move_high(fd: OwnedFd) -> OwnedFd {
    let limit = limit() as i32;
    for floor in [900, 200, 60, 20] {
        if floor < limit
            && let Ok(moved) = rustix::io::fcntl_dupfd_cloexec(&fd, floor)
        {
            kept::keep(moved.as_raw_fd());
            return moved;
        }
    }
    kept::keep(fd.as_raw_fd());
    fd
}

/// Opens a file to be read for as long as the engine runs; kept like what
/// [`move_high`] returns.
pub(crate) fn open_high(path: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    Ok(move_high(rustix::fs::open(path, flags, Mode::empty())?))
}

/// What [`open_high`] opens, kept until it is dropped.
#[derive(Debug)]
pub(crate) struct KeptFile(OwnedFd);

impl KeptFile {
    pub(crate) fn open(path: &str) -> io::Result<KeptFile> {
        open_high(path).map(KeptFile)
    }

    /// What it says now, from its start, as far as there is room for it.
    pub(crate) fn read<'t>(&self, text: &'t mut [u8]) -> Option<&'t [u8]> {
        let buffer = text.as_mut_ptr() as usize;
        let args = [self.0.as_raw_fd() as usize, buffer, text.len(), 0, 0, 0];
        loop {
            // SAFETY: `text` may be written to for its length.
            match unsafe { raw::syscall(libc::SYS_pread64, args) } {
                len @ 0.. => return Some(&text[..len as usize]),
                error if error == -(libc::EINTR as isize) => {}
                _ => return None,
            }
        }
    }
}

impl AsFd for KeptFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for KeptFile {
    fn drop(&mut self) {
        kept::forget(self.0.as_raw_fd());
    }
}

/// How many descriptors this process may have.
#[must_use]
pub fn limit() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.unwrap_or(1 << 20).min(1 << 20) as usize
}

/// Closes a descriptor that was kept.
pub fn release(fd: OwnedFd) {
    kept::forget(fd.as_raw_fd());
    drop(fd);
}

/// Makes `old`'s number mean what `new` means, in one step.
pub fn replace(old: &OwnedFd, new: OwnedFd) -> io::Result<()> {
    let args = [new.as_raw_fd() as usize, old.as_raw_fd() as usize, libc::O_CLOEXEC as usize];
    let [new_fd, old_fd, flags] = args;
    // SAFETY: both are live descriptors; whoever owns `old` keeps owning its
    // number, which is never free in between.
    let done = crate::raw::check(unsafe {
        crate::raw::syscall(libc::SYS_dup3, [new_fd, old_fd, flags, 0, 0, 0])
    });
    release(new);
    done.map(drop)
}
