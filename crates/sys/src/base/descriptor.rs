//! Descriptors of the engine's own, kept out of the program's reach.
//!
//! What is open stays usable when the soft limit on descriptors
//! (RLIMIT_NOFILE) lies below its number, and from there on the program can
//! neither be given a number nor put anything under one. So the engine's lie
//! just above the soft limit, where the hard one leaves room: they are opened
//! and moved there while the limit is raised for a moment. Not further up than
//! needed, because fork copies the table up to the highest number in use.
//! Where there is no room above, they lie high below the limit.

use crate::own_descriptors;
use crate::program_filter;
use crate::raw;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use std::io;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

/// Numbers from here on make each fork slower than the program would expect.
const FARTHEST: u64 = 4096;
/// By how much the limit is raised: more than the engine ever has.
const ABOVE: u64 = own_descriptors::MOST as u64;
/// Below this limit the engine has no rings: the program needs the numbers.
const FEW: u64 = 256;
/// What part of the numbers below the limit the engine may take.
const SHARE: u64 = 4;
const UNLIMITED: u64 = 1 << 20;

/// How many have raised the limit, one inside the other.
static RAISED: AtomicU32 = AtomicU32::new(0);
/// The soft limit meanwhile, as the program knows it.
static SOFT_BEFORE: AtomicI32 = AtomicI32::new(0);

/// The soft and the hard limit, after `new` was set if there is one; `None`
/// where that is refused.
fn rlimit(new: Option<[u64; 2]>) -> Option<[u64; 2]> {
    let mut now = [UNLIMITED; 2];
    let set = new.as_ref().map_or(0, |new| new.as_ptr() as usize);
    let get = if new.is_none() { now.as_mut_ptr() as usize } else { 0 };
    let args = [0, libc::RLIMIT_NOFILE as usize, set, get, 0, 0];
    // SAFETY: the kernel reads two words from `new` and writes two to `now`; either
    // pointer may be null.
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
    // SAFETY: the call takes no pointers, and opens a new descriptor.
    let made = raw::check(unsafe { raw::syscall(libc::SYS_fcntl, args) }).ok()?;
    // SAFETY: the descriptor was opened just now, and is owned by nobody else.
    Some(unsafe { OwnedFd::from_raw_fd(made as i32) })
}

/// The soft limit put back when this is dropped.
struct Raised {
    before: u64,
    raised: u64,
}

impl Drop for Raised {
    fn drop(&mut self) {
        // Unless the program has set another meanwhile.
        if self.raised > self.before && limits().0 == self.raised {
            set_soft(self.before);
        }
    }
}

/// Runs `body`, in which descriptors can be opened even where the program has
/// as many as it may have, if the hard limit has room for more. Within `body` it
/// may be called again.
///
/// The limit is the process's, and so is what [`move_high`] leaves at low numbers
/// for a moment. So descriptors of the engine's are made only while no thread of
/// the program's runs: at its start, and in a child just forked. Under a filter of
/// the program's own the limit is left alone.
pub fn with_room<R>(body: impl FnOnce() -> R) -> R {
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

/// Moves a descriptor out of the program's way, close-on-exec: see above. From
/// then on it is kept (see [`crate::own_descriptors`]); what is not meant to last ends
/// with [`release`].
#[must_use]
pub fn move_high(fd: OwnedFd) -> OwnedFd {
    let moved = with_room(|| {
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

/// Closes a descriptor by the engine's instruction: the C library's are the
/// program's, which its own filters judge.
fn close(fd: OwnedFd) {
    // SAFETY: the call takes no pointers, and nobody else owns the descriptor.
    unsafe { raw::syscall(libc::SYS_close, [fd.into_raw_fd() as usize, 0, 0, 0, 0, 0]) };
}

/// The lowest number under which the engine's descriptors may lie: those that it
/// has, and those of programs that this one becomes.
#[must_use]
pub(crate) fn first_high() -> u32 {
    let [below, ..] = floors_below(limits().0);
    below.min(own_descriptors::lowest()).max(0) as u32
}

/// Where to look for free numbers below a limit: far up first.
fn floors_below(limit: u64) -> [i32; 3] {
    let top = limit.min(FARTHEST);
    [top - top / SHARE, top / 2, top / SHARE].map(|floor| floor as i32)
}

/// How many descriptors the engine may take for its rings.
#[must_use]
pub fn room() -> usize {
    let (soft, hard) = limits();
    let room = match hard.saturating_sub(soft) {
        above if soft <= FARTHEST && above >= FEW => above.min(ABOVE / 2),
        _ if soft < FEW => 0,
        _ => soft.min(UNLIMITED) / SHARE,
    };
    room as usize
}

/// The program has closed a descriptor of the engine's by an instruction of its
/// own, past all that keeps it. What was swapped out cannot be reached any
/// more, and must not read as zeroes.
#[cold]
pub(crate) fn lost(what: &str) -> ! {
    raw::write_stderr(
        b"softswap: stopping the program: it closed descriptors that it did not open, among them ",
    );
    raw::write_stderr(what.as_bytes());
    raw::write_stderr(b", by a system call of its own making; close them through the C library\n");
    std::process::abort()
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
            // SAFETY: the kernel writes at most `text.len()` bytes to `text`, which is
            // borrowed exclusively.
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

/// Closes a descriptor that was kept.
pub fn release(fd: OwnedFd) {
    own_descriptors::forget(fd.as_raw_fd());
    close(fd);
}
