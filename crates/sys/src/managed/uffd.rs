//! userfaultfd by its ioctls; without a crate, because the engine needs exact partial results.

use crate::descriptor;
use crate::memory::PAGE_SIZE;
use crate::registered_file::RegisteredFile;
use crate::{futex, raw};
use rustix::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::io;
use std::sync::atomic::{AtomicI32, Ordering};

const API: u64 = 0xAA;
pub(crate) const IOCTL_API: usize = 0xc018_aa3f;
pub(crate) const IOCTL_REGISTER: usize = 0xc020_aa00;
pub(crate) const IOCTL_COPY: usize = 0xc028_aa03;
pub(crate) const IOCTL_ZEROPAGE: usize = 0xc020_aa04;
pub(crate) const IOCTL_MOVE: usize = 0xc028_aa05;
pub(crate) const IOCTL_WRITEPROTECT: usize = 0xc018_aa06;

const USER_MODE_ONLY: usize = 1;
pub(crate) const OPEN_FLAGS: usize = (libc::O_CLOEXEC | libc::O_NONBLOCK) as usize | USER_MODE_ONLY;
const REGISTER_MISSING: u64 = 1;
const REGISTER_WP: u64 = 2;
const WRITEPROTECT_ON: u64 = 1;
const COPY_PROTECTED: u64 = 2;
/// In SIGBUS mode no thread sleeps on a message, so no wake-up is needed.
const DONTWAKE: u64 = 1;
const WRITEPROTECT_DONTWAKE: u64 = 2;

/// Faults raise SIGBUS in the faulting thread.
pub const FEATURE_SIGBUS: u64 = 1 << 7;
pub const FEATURE_PAGEFAULT_FLAG_WP: u64 = 1;
/// UFFDIO_MOVE is supported (Linux 6.8).
pub const FEATURE_MOVE: u64 = 1 << 16;
/// The kernel resolves write-protect faults; PAGEMAP_SCAN reports them (Linux 6.7).
pub const FEATURE_WP_ASYNC: u64 = 1 << 15;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Privilege {
    /// Faults from user mode only: needs no privilege.
    UserModeOnly,
    /// Includes faults inside system calls, which needs a privilege or a sysctl.
    KernelToo,
}

/// The effect of a write to an installed page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writes {
    Allowed,
    /// The write faults until the protection is removed; in a system call it fails.
    Caught,
}

#[derive(Debug)]
pub struct Uffd {
    /// Owned; replaced in a forked child.
    fd: AtomicI32,
    features: u64,
    /// Keeps memory registered if the program closes `fd`, so that no absent page reads as zeroes.
    registered: RegisteredFile,
}

fn open(privilege: Privilege) -> io::Result<OwnedFd> {
    let flags = match privilege {
        Privilege::UserModeOnly => OPEN_FLAGS,
        Privilege::KernelToo => OPEN_FLAGS & !USER_MODE_ONLY,
    };
    // SAFETY: the call takes no pointers, and opens a new descriptor.
    let fd = raw::check(unsafe { raw::syscall(libc::SYS_userfaultfd, [flags, 0, 0, 0, 0, 0]) })?;
    // SAFETY: the descriptor was opened just now and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

fn agree(fd: &OwnedFd, features: u64) -> io::Result<u64> {
    // `struct uffdio_api`: version, features, operations.
    let mut arg = [API, features, 0];
    ioctl(fd.as_raw_fd(), IOCTL_API, &mut arg)?;
    Ok(arg[1])
}

fn ioctl(fd: i32, request: usize, arg: &mut [u64]) -> io::Result<()> {
    debug_assert_eq!(raw::ioctl_bytes(request), size_of_val(arg));
    let args = [fd as usize, request, arg.as_mut_ptr() as usize, 0, 0, 0];
    // SAFETY: the kernel reads and writes `arg`, whose length the functions of this file choose by
    // `request`. It installs pages only in ranges that were registered through `Uffd::register`,
    // which hold no Rust objects, and returns ENOENT for others. It only reads the source of a
    // copy, or returns EFAULT.
    match raw::check(unsafe { raw::syscall(libc::SYS_ioctl, args) }) {
        // The program closed the descriptor, or replaced it by another file.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EBADF | libc::ENOTTY)) => {
            descriptor::lost("the userfaultfd of its memory")
        }
        result => result.map(drop),
    }
}

pub fn offered_features(privilege: Privilege) -> io::Result<u64> {
    agree(&open(privilege)?, 0)
}

const NEEDED: u64 = FEATURE_SIGBUS | FEATURE_PAGEFAULT_FLAG_WP;

pub fn is_allowed() -> bool {
    try_out().is_ok()
}

/// Checks that this process may create a window now. The error is the reason for a refusal.
pub(crate) fn try_out() -> io::Result<()> {
    match offered_features(Privilege::UserModeOnly)? & NEEDED {
        NEEDED => Ok(()),
        _ => Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)),
    }
}

/// Returns true if the kernel, or an emulator in front of it, lacks the call (`ENOSYS`).
pub fn is_unknown() -> bool {
    let offered = offered_features(Privilege::UserModeOnly);
    offered.is_err_and(|error| error.raw_os_error() == Some(libc::ENOSYS))
}

#[derive(Debug)]
pub struct Partial {
    /// Completed pages, from the start of the range.
    pub pages: usize,
    pub error: Option<io::Error>,
}

impl Uffd {
    pub fn open_sigbus() -> io::Result<Uffd> {
        let offered = offered_features(Privilege::UserModeOnly)?;
        if offered & NEEDED != NEEDED {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        let fd = descriptor::move_high(open(Privilege::UserModeOnly)?);
        let features = NEEDED | (offered & FEATURE_MOVE);
        agree(&fd, features)?;
        let registered = RegisteredFile::new(&fd);
        Ok(Uffd { fd: AtomicI32::new(fd.into_raw_fd()), features, registered })
    }

    /// Replaces the descriptor, which acts on the parent's memory, in a forked child of one thread.
    pub fn reopen(&self) -> io::Result<()> {
        let fresh =
            descriptor::with_raised_limit(|| open(Privilege::UserModeOnly)).or_else(|error| {
                if error.raw_os_error() != Some(libc::EMFILE) {
                    return Err(error);
                }
                // All descriptor numbers are in use, so reuse this value's number.
                self.close();
                open(Privilege::UserModeOnly)
            })?;
        agree(&fresh, self.features)?;
        let fresh = descriptor::move_high(fresh);
        self.registered.renew(&fresh);
        self.close();
        // Does not reuse the old number, because the limit may be lower now.
        self.fd.store(fresh.into_raw_fd(), Ordering::Release);
        Ok(())
    }

    fn close(&self) {
        let number = self.fd.swap(-1, Ordering::AcqRel);
        if number >= 0 {
            // SAFETY: the descriptor belonged to this value, which has cleared its number.
            descriptor::release(unsafe { OwnedFd::from_raw_fd(number) });
        }
    }

    fn ioctl(&self, request: usize, arg: &mut [u64]) -> io::Result<()> {
        ioctl(self.fd.load(Ordering::Relaxed), request, arg)
    }

    pub fn has_move(&self) -> bool {
        self.features & FEATURE_MOVE != 0
    }

    /// # Safety
    /// The range must not hold Rust objects: its pages are removed and replaced.
    pub unsafe fn register(&self, start: usize, len: usize) -> io::Result<()> {
        // `struct uffdio_register`: range, mode, operations.
        let mode = REGISTER_MISSING | REGISTER_WP;
        self.ioctl(IOCTL_REGISTER, &mut [start as u64, len as u64, mode, 0])
    }

    pub(crate) fn copy(&self, to: usize, bytes: &[u8], writes: Writes) -> Partial {
        debug_assert!(bytes.len().is_multiple_of(PAGE_SIZE));
        let mode = DONTWAKE | if writes == Writes::Caught { COPY_PROTECTED } else { 0 };
        let from = bytes.as_ptr() as usize;
        retrying(bytes.len(), |done| self.transfer(IOCTL_COPY, to, from, bytes.len(), mode, done))
    }

    /// Maps the shared zero page at missing pages.
    pub(crate) fn zero(&self, start: usize, len: usize) -> Partial {
        retrying(len, |done| {
            // `struct uffdio_zeropage`: range, mode, result.
            let mut arg = [(start + done) as u64, (len - done) as u64, DONTWAKE, 0];
            let result = self.ioctl(IOCTL_ZEROPAGE, &mut arg);
            (result, arg[3] as i64)
        })
    }

    /// Copies or moves the bytes after the first `done`. Also returns the kernel's result field.
    fn transfer(
        &self,
        request: usize,
        to: usize,
        from: usize,
        len: usize,
        mode: u64,
        done: usize,
    ) -> (io::Result<()>, i64) {
        // `struct uffdio_copy`, `struct uffdio_move`: target, source, length, mode, result.
        let mut arg = [(to + done) as u64, (from + done) as u64, (len - done) as u64, mode, 0];
        let result = self.ioctl(request, &mut arg);
        (result, arg[4] as i64)
    }

    /// Moves present pages to missing pages at `to`, which no other thread fills meanwhile. The
    /// kernel's result of an unfinished move is unreliable (Linux 6.18): if it waited for a page
    /// (compaction), it may still move that page and later ones, but return EAGAIN with the smaller
    /// count, or EEXIST for a page that it has moved. So this function checks which pages are
    /// present. The kernel's count is never too large, and includes swapped pages, which are not
    /// present.
    pub(crate) fn move_pages(&self, to: usize, from: usize, len: usize) -> Partial {
        retrying(len, |done| {
            let (result, moved) = self.transfer(IOCTL_MOVE, to, from, len, DONTWAKE, done);
            let Err(error) = result else { return (result, moved) };
            let seen = leading_moved(to + done, from + done, len - done).unwrap_or(0);
            let moved = moved.max(seen);
            let has_moved = moved > 0 && error.raw_os_error() == Some(libc::EEXIST);
            let eagain = || io::Error::from_raw_os_error(libc::EAGAIN);
            (Err(if has_moved { eagain() } else { error }), moved)
        })
    }

    pub(crate) fn write_protect(&self, start: usize, len: usize, on: bool) -> io::Result<()> {
        // `struct uffdio_writeprotect`: range, mode.
        let mode = if on { WRITEPROTECT_ON } else { WRITEPROTECT_DONTWAKE };
        let mut turns = 0;
        loop {
            match self.ioctl(IOCTL_WRITEPROTECT, &mut [start as u64, len as u64, mode]) {
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {
                    futex::relax(&mut turns);
                }
                result => return result,
            }
        }
    }
}

impl Drop for Uffd {
    fn drop(&mut self) {
        self.close();
    }
}

/// Returns the length of the leading part that is mapped at `to` and not at `from`.
fn leading_moved(to: usize, from: usize, len: usize) -> Option<i64> {
    const AT_ONCE: usize = 64;
    let mut done = 0;
    while done < len {
        let part = (len - done).min(AT_ONCE * PAGE_SIZE);
        let (mut at_target, mut at_source) = ([0u8; AT_ONCE], [0u8; AT_ONCE]);
        present(to + done, part, &mut at_target).ok()?;
        present(from + done, part, &mut at_source).ok()?;
        let pages = part / PAGE_SIZE;
        let moved =
            |(at_target, at_source): &(&u8, &u8)| **at_target & 1 == 1 && **at_source & 1 == 0;
        let found = at_target[..pages].iter().zip(&at_source).take_while(moved).count();
        done += found * PAGE_SIZE;
        if found < pages {
            break;
        }
    }
    Some(done as i64)
}

/// Sets bit 0 of each page's byte in `out` if the page is mapped.
pub(crate) fn present(start: usize, len: usize, out: &mut [u8]) -> io::Result<()> {
    assert!(len.div_ceil(PAGE_SIZE) <= out.len());
    let args = [start, len, out.as_mut_ptr() as usize, 0, 0, 0];
    // SAFETY: the kernel writes one byte to `out` for each page, and `out` is long enough. If
    // nothing is mapped, it returns ENOMEM.
    raw::check(unsafe { raw::syscall(libc::SYS_mincore, args) }).map(drop)
}

/// Repeats an ioctl until all pages are done. While the address space changes (fork, mremap), the
/// kernel returns EAGAIN with a partial count, 0 or -EAGAIN in the result field.
fn retrying(len: usize, mut attempt: impl FnMut(usize) -> (io::Result<()>, i64)) -> Partial {
    let (mut done, mut turns) = (0, 0);
    loop {
        let (result, count) = attempt(done);
        if count > 0 {
            done += count as usize;
        }
        let error = match result {
            Ok(()) => None,
            // Complete in spite of the error.
            Err(_) if done == len => None,
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {
                futex::relax(&mut turns);
                continue;
            }
            Err(error) => Some(error),
        };
        return Partial { pages: done / PAGE_SIZE, error };
    }
}
