//! Locks on numbers, of those who share a [`crate::shared`] mapping: what tells whether anybody
//! still needs something.
//!
//! They are of the open file, as the kernel calls it (`F_OFD_SETLK`): forked children have them,
//! too, and one is gone with the last process that has a descriptor of that file, however that
//! ends. A program that the process becomes by exec has only those of descriptors that go on.

use crate::raw;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use std::io;

/// A file of its own on shared words, for locks.
///
/// ```
/// use softswap_sys::{shared, shared_locks::Locks};
/// use std::os::fd::AsRawFd;
/// let (fd, _) = shared::create(1).unwrap();
/// let [one, other] = [(); 2].map(|()| Locks::open(fd.as_raw_fd()).unwrap());
/// assert!(one.try_take(7).unwrap() && !other.try_take(7).unwrap());
/// assert!(other.is_taken(7).unwrap());
/// drop(one);
/// assert!(!other.is_taken(7).unwrap());
/// ```
#[derive(Debug)]
pub struct Locks {
    /// Always there, until it is dropped.
    fd: Option<OwnedFd>,
}

impl Locks {
    /// Opens what is open under a number once more. It takes `/proc`.
    pub fn open(number: i32) -> io::Result<Locks> {
        let path = format!("/proc/self/fd/{number}");
        let fd = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Locks { fd: Some(crate::descriptor::move_high(fd)) })
    }

    /// Takes a lock; false where another file has it.
    pub fn try_take(&self, number: u64) -> io::Result<bool> {
        match self.fd.as_ref() {
            Some(fd) => try_take(fd.as_fd(), number),
            None => Ok(false),
        }
    }

    /// Lets go of a lock.
    pub fn give_back(&self, number: u64) -> io::Result<()> {
        let mut lock = libc::flock { l_type: libc::F_UNLCK as i16, ..of(number) };
        match self.fd.as_ref() {
            Some(fd) => control(fd.as_fd(), libc::F_OFD_SETLK, &mut lock),
            None => Ok(()),
        }
    }

    /// Whether another file has a lock.
    pub fn is_taken(&self, number: u64) -> io::Result<bool> {
        self.fd.as_ref().map_or(Ok(true), |fd| is_taken(fd.as_fd(), number))
    }
}

impl Drop for Locks {
    fn drop(&mut self) {
        self.fd.take().into_iter().for_each(crate::descriptor::release);
    }
}

/// Takes a lock for the file of a descriptor that others have, too; false where another file
/// has it.
pub fn try_take(fd: BorrowedFd<'_>, number: u64) -> io::Result<bool> {
    match control(fd, libc::F_OFD_SETLK, &mut of(number)) {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Whether another file than that of the descriptor has a lock.
pub fn is_taken(fd: BorrowedFd<'_>, number: u64) -> io::Result<bool> {
    let mut lock = of(number);
    control(fd, libc::F_OFD_GETLK, &mut lock)?;
    Ok(i32::from(lock.l_type) != libc::F_UNLCK)
}

/// What is asked for: to be the only one with that number.
fn of(number: u64) -> libc::flock {
    libc::flock {
        l_type: libc::F_WRLCK as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: number as i64,
        l_len: 1,
        l_pid: 0,
    }
}

fn control(fd: BorrowedFd<'_>, how: i32, lock: &mut libc::flock) -> io::Result<()> {
    let lock = std::ptr::from_mut(lock) as usize;
    let args = [fd.as_raw_fd() as usize, how as usize, lock, 0, 0, 0];
    // SAFETY: the kernel reads one `flock` at `lock`, and may write one: it is borrowed
    // exclusively.
    raw::check(unsafe { raw::syscall(libc::SYS_fcntl, args) }).map(drop)
}
