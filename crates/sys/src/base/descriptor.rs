//! Places the engine's own descriptors at numbers that the program does not use.
//!
//! These are just above the program's soft limit (RLIMIT_NOFILE), which the engine raises
//! temporarily. Open descriptors stay usable there, and the kernel assigns the numbers to no other
//! file. The engine uses the lowest ones, because fork copies the table up to the highest number in
//! use. If the hard limit does not allow it, the engine uses high numbers below the limit.

use crate::own_descriptors;
use crate::program_filter;
use crate::raw;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use std::io;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

/// Limit on the engine's numbers, because higher ones slow down each fork noticeably.
const FARTHEST: u64 = 4096;
/// Amount by which the soft limit is raised; the engine never has more descriptors.
const ABOVE: u64 = own_descriptors::MAX as u64;
/// Soft limit below which the engine opens no rings, because the program needs the numbers.
const FEW: u64 = 256;
/// The engine may use 1/SHARE of the numbers below the limit.
const SHARE: u64 = 4;
const UNLIMITED: u64 = 1 << 20;

/// Nesting depth of [`with_raised_limit`].
static RAISED: AtomicU32 = AtomicU32::new(0);
/// The program's soft limit while it is raised; otherwise 0.
static SOFT_BEFORE: AtomicI32 = AtomicI32::new(0);

fn rlimit(new: Option<[u64; 2]>) -> Option<[u64; 2]> {
    let mut now = [UNLIMITED; 2];
    let set = new.as_ref().map_or(0, |new| new.as_ptr() as usize);
    let get = if new.is_none() { now.as_mut_ptr() as usize } else { 0 };
    let args = [0, libc::RLIMIT_NOFILE as usize, set, get, 0, 0];
    // SAFETY: the kernel reads two words from `new` and writes two to `now`; either may be null.
    raw::check(unsafe { raw::syscall(libc::SYS_prlimit64, args) }).ok()?;
    Some(new.unwrap_or(now))
}

fn limits() -> (u64, u64) {
    let [soft, hard] = rlimit(None).unwrap_or([UNLIMITED; 2]);
    (soft, hard)
}

fn set_soft(soft: u64) -> bool {
    rlimit(None).is_some_and(|[_, hard]| rlimit(Some([soft, hard])).is_some())
}

fn duplicate(fd: &OwnedFd, floor: i32) -> Option<OwnedFd> {
    let args = [fd.as_raw_fd() as usize, libc::F_DUPFD_CLOEXEC as usize, floor as usize, 0, 0, 0];
    // SAFETY: the call takes no pointers and opens a new descriptor.
    let duplicated = raw::check(unsafe { raw::syscall(libc::SYS_fcntl, args) }).ok()?;
    // SAFETY: the descriptor was opened just now and has no other owner.
    Some(unsafe { OwnedFd::from_raw_fd(duplicated as i32) })
}

struct Raised {
    before: u64,
    raised: u64,
}

impl Drop for Raised {
    fn drop(&mut self) {
        // Keep a limit that the program has set since.
        if self.raised > self.before && limits().0 == self.raised {
            set_soft(self.before);
        }
    }
}

/// Runs `body` with the soft limit raised if the hard limit allows it, except under the program's
/// own filter. Called while no program thread runs: the limit belongs to the process, and
/// [`move_high`] uses low numbers temporarily.
pub fn with_raised_limit<R>(body: impl FnOnce() -> R) -> R {
    if RAISED.fetch_add(1, Ordering::AcqRel) > 0 {
        let result = body();
        RAISED.fetch_sub(1, Ordering::AcqRel);
        return result;
    }
    let (soft, hard) = limits();
    let wanted = hard.min(soft.saturating_add(ABOVE));
    let may_raise = soft <= FARTHEST && soft < wanted && !program_filter::is_in_force();
    let above = may_raise && set_soft(wanted);
    let raised = Raised { before: soft, raised: if above { wanted } else { soft } };
    SOFT_BEFORE.store(if above { soft as i32 } else { 0 }, Ordering::Relaxed);
    let result = body();
    drop(raised);
    RAISED.fetch_sub(1, Ordering::AcqRel);
    result
}

/// Moves a descriptor above the program's numbers, with close-on-exec set, until [`release`].
#[must_use]
pub fn move_high(fd: OwnedFd) -> OwnedFd {
    let moved = with_raised_limit(|| {
        let soft = SOFT_BEFORE.load(Ordering::Relaxed);
        let floors = if soft > 0 { [soft; 3] } else { floors_below(limits().0) };
        floors.into_iter().find_map(|floor| duplicate(&fd, floor))
    });
    let fd = match moved {
        Some(moved) => {
            close(fd);
            moved
        }
        None => fd,
    };
    own_descriptors::keep(fd.as_raw_fd());
    fd
}

/// Closes through the engine's gate: the program's filters could refuse the C library's call.
fn close(fd: OwnedFd) {
    // SAFETY: the call takes no pointers, and the descriptor has no other owner.
    unsafe { raw::syscall(libc::SYS_close, [fd.into_raw_fd() as usize, 0, 0, 0, 0, 0]) };
}

/// Returns the lowest number that the engine's descriptors may have, here or after exec.
pub(crate) fn first_high() -> u32 {
    let [below, ..] = floors_below(limits().0);
    below.min(own_descriptors::lowest()).max(0) as u32
}

fn floors_below(limit: u64) -> [i32; 3] {
    let top = limit.min(FARTHEST);
    [top - top / SHARE, top / 2, top / SHARE].map(|floor| floor as i32)
}

/// Returns the number of descriptors that the engine may use for its rings.
pub fn free_numbers() -> usize {
    let (soft, hard) = limits();
    let count = match hard.saturating_sub(soft) {
        above if soft <= FARTHEST && above >= FEW => above.min(ABOVE / 2),
        _ if soft < FEW => 0,
        _ => soft.min(UNLIMITED) / SHARE,
    };
    count as usize
}

/// Aborts: swapped-out pages are inaccessible now, and must not read as zeroes.
#[cold]
pub(crate) fn lost(what: &str) -> ! {
    raw::write_stderr(
        b"softswap: stopping the program: it closed descriptors that it did not open, including ",
    );
    raw::write_stderr(what.as_bytes());
    raw::write_stderr(b", by a raw system call; close descriptors through the C library instead\n");
    std::process::abort()
}

pub(crate) fn open_high(path: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    Ok(move_high(rustix::fs::open(path, flags, Mode::empty())?))
}

#[derive(Debug)]
pub(crate) struct KeptFile(OwnedFd);

impl KeptFile {
    pub(crate) fn open(path: &str) -> io::Result<KeptFile> {
        open_high(path).map(KeptFile)
    }

    /// Reads the current content from offset 0, up to the length of `text`.
    pub(crate) fn read<'t>(&self, text: &'t mut [u8]) -> Option<&'t [u8]> {
        let buffer = text.as_mut_ptr() as usize;
        let args = [self.0.as_raw_fd() as usize, buffer, text.len(), 0, 0, 0];
        loop {
            // SAFETY: the kernel writes at most `text.len()` bytes to `text`, which is borrowed
            // exclusively.
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
        own_descriptors::forget(self.0.as_raw_fd());
    }
}

pub fn release(fd: OwnedFd) {
    own_descriptors::forget(fd.as_raw_fd());
    close(fd);
}
