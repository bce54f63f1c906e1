//! Mark of a swap file whose blocks are written through the device: it is immutable.
//!
//! An immutable file (`chattr +i`) cannot be opened for writing, unlinked, renamed or truncated,
//! and neither `e4defrag` nor `xfs_fsr` moves its blocks, unless a program opened it before
//! ([`other_opens`]). An extended attribute records that softswap set the flag, not the file's
//! owner.
//!
//! A mark is stale if no process has the file's lock ([`crate::exclusive_file`]): all processes
//! that inherited the claim have exited, and their rings are closed.

use crate::file::errno;
use crate::raw;
use rustix::fs::{FlockOperation, IFlags, Mode, OFlags, XattrFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

const ATTRIBUTE: &str = "user.softswap.raw";
/// Longest wait for processes that have been killed, and their rings, to release the file.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(10);

/// A mark that is removed when dropped, if no other process has the claim.
#[derive(Debug)]
pub struct RawMark {
    /// Refers to the file without opening it (O_PATH), so that [`other_opens`] does not count it.
    path: OwnedFd,
    is_immutable: bool,
}

impl RawMark {
    /// Marks a file, which becomes immutable only if user and file system may set that flag.
    pub fn set(claimed: BorrowedFd<'_>) -> io::Result<RawMark> {
        let path = format!("/proc/self/fd/{}", claimed.as_raw_fd());
        let path = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let mut mark = RawMark { path, is_immutable: false };
        let file = mark.open()?;
        mark.is_immutable = mark_immutable(file.as_fd()).is_ok();
        Ok(mark)
    }

    /// Opens the file separately, so that it can be locked once the claim is released.
    fn open(&self) -> io::Result<OwnedFd> {
        let path = format!("/proc/self/fd/{}", self.path.as_raw_fd());
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY;
        Ok(rustix::fs::open(path, flags, Mode::empty())?)
    }

    pub fn is_immutable(&self) -> bool {
        self.is_immutable
    }

    /// Runs `body` while the file is not immutable: ext4 refuses writes even through descriptors
    /// opened before. Fails if the flag cannot be removed (`body` does not run), or set again.
    pub fn lifted<R>(&self, body: impl FnOnce() -> R) -> io::Result<R> {
        if !self.is_immutable {
            return Ok(body());
        }
        let file = self.open()?;
        // With the attribute: after a kill, the owner's own flag must not look like this mark.
        clear(file.as_fd())?;
        let result = body();
        mark_immutable(file.as_fd())?;
        Ok(result)
    }

    /// Removes the mark while this process alone has the claim.
    pub fn remove(mut self) -> io::Result<()> {
        if !self.is_immutable {
            return Ok(());
        }
        // On an error the drop tries again.
        let file = self.open()?;
        self.is_immutable = false;
        clear(file.as_fd())
    }
}

impl Drop for RawMark {
    fn drop(&mut self) {
        if !self.is_immutable {
            return;
        }
        let Ok(file) = self.open() else { return };
        let until = Instant::now() + RELEASE_TIMEOUT;
        while clear_unlocked(file.as_fd()).is_ok_and(|mark| mark == Mark::InUse)
            && Instant::now() < until
        {
            std::thread::sleep(PAUSE);
        }
    }
}

/// Returns true if any process has opened the file more often: the kernel refuses a write lease.
/// `None` if this user may not take one, because another user owns the file.
pub fn other_opens(claimed: BorrowedFd<'_>) -> Option<bool> {
    /// Command of `fcntl` that sets the signal for an open that conflicts with the lease.
    const F_SETSIG: i32 = 10;
    let set = |command: i32, value: i32| {
        let arguments = [claimed.as_raw_fd() as usize, command as usize, value as usize, 0, 0, 0];
        // SAFETY: the call takes no pointers.
        raw::check(unsafe { raw::syscall(libc::SYS_fcntl, arguments) })
    };
    // Without this the kernel would send SIGIO, which ends the process; SIGURG is ignored.
    set(F_SETSIG, libc::SIGURG).ok()?;
    let opens = match set(libc::F_SETLEASE, libc::F_WRLCK) {
        Ok(_) => {
            let _ = set(libc::F_SETLEASE, libc::F_UNLCK);
            Some(false)
        }
        Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => Some(true),
        Err(_) => None,
    };
    let _ = set(F_SETSIG, 0);
    opens
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    None,
    InUse,
    Cleared,
    /// The file stays immutable: its owner set the flag, or this user may not remove it.
    Kept,
}

pub fn clear_stale(path: &Path) -> io::Result<Mark> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    match is_immutable(file.as_fd()) {
        false => Ok(Mark::None),
        true if is_named(file.as_fd()) => Ok(clear_unlocked(file.as_fd()).unwrap_or(Mark::Kept)),
        true => Ok(Mark::Kept),
    }
}

pub fn is_immutable(file: BorrowedFd<'_>) -> bool {
    rustix::fs::ioctl_getflags(file).is_ok_and(|it| it.contains(IFlags::IMMUTABLE))
}

/// Returns the inode number, so that a copy of the file does not count as marked.
fn name_of(file: BorrowedFd<'_>) -> io::Result<[u8; 8]> {
    Ok(rustix::fs::fstat(file)?.st_ino.to_ne_bytes())
}

fn is_named(file: BorrowedFd<'_>) -> bool {
    let mut value = [0_u8; 8];
    rustix::fs::fgetxattr(file, ATTRIBUTE, &mut value[..]).is_ok_and(|len| len == value.len())
        && name_of(file).is_ok_and(|name| name == value)
}

/// Sets the attribute first: a killed process must not leave an immutable file without it.
fn mark_immutable(file: BorrowedFd<'_>) -> io::Result<()> {
    rustix::fs::fsetxattr(file, ATTRIBUTE, &name_of(file)?, XattrFlags::empty())?;
    set_immutable(file, true).inspect_err(|_| {
        let _ = rustix::fs::fremovexattr(file, ATTRIBUTE);
    })
}

fn clear_unlocked(file: BorrowedFd<'_>) -> io::Result<Mark> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => return Ok(Mark::InUse),
        result => result?,
    }
    let result = clear(file);
    let _ = rustix::fs::flock(file, FlockOperation::Unlock);
    result.map(|()| Mark::Cleared)
}

fn clear(file: BorrowedFd<'_>) -> io::Result<()> {
    set_immutable(file, false)?;
    // Remove the attribute last: without the flag, it has no effect.
    let _ = rustix::fs::fremovexattr(file, ATTRIBUTE);
    Ok(())
}

fn set_immutable(file: BorrowedFd<'_>, on: bool) -> io::Result<()> {
    let mut flags = rustix::fs::ioctl_getflags(file)?;
    flags.set(IFlags::IMMUTABLE, on);
    rustix::fs::ioctl_setflags(file, flags)?;
    let now = rustix::fs::ioctl_getflags(file)?;
    match now.contains(IFlags::IMMUTABLE) == on {
        true => Ok(()),
        false => Err(io::Error::from_raw_os_error(errno::EOPNOTSUPP)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exclusive_file::{ClaimError, claim_at_once};

    #[test]
    fn mark_is_removed_with_claim_or_by_next_claim() {
        let directory = Path::new("/var/tmp");
        let path = directory.join(format!("softswap-raw-mark-{}", std::process::id()));
        std::fs::write(&path, vec![7; 8192]).unwrap();
        let claimed = claim_at_once(&path).unwrap();
        let mark = RawMark::set(claimed.file.as_fd()).unwrap();
        if !mark.is_immutable() {
            std::fs::remove_file(&path).unwrap();
            return eprintln!("skipped: this user or file system cannot make files immutable");
        }
        assert!(std::fs::remove_file(&path).is_err());
        assert!(
            mark.lifted(|| std::fs::OpenOptions::new().write(true).open(&path)).unwrap().is_ok()
        );
        assert_eq!(clear_stale(&path).unwrap(), Mark::InUse);
        mark.remove().unwrap();
        assert_eq!(clear_stale(&path).unwrap(), Mark::None);
        let mark = RawMark::set(claimed.file.as_fd()).unwrap();
        drop((claimed, mark));
        assert_eq!(clear_stale(&path).unwrap(), Mark::None);
        let claimed = claim_at_once(&path).unwrap();
        std::mem::forget(RawMark::set(claimed.file.as_fd()).unwrap());
        drop(claimed);
        drop(claim_at_once(&path).unwrap());
        assert_eq!(clear_stale(&path).unwrap(), Mark::None);
        let file = std::fs::File::open(&path).unwrap();
        set_immutable(file.as_fd(), true).unwrap();
        let refused = claim_at_once(&path).unwrap_err();
        assert!(matches!(refused, ClaimError::Immutable { .. }), "{refused}");
        set_immutable(file.as_fd(), false).unwrap();
        // Also with the attribute of another file, of which this one is a copy.
        rustix::fs::fsetxattr(&file, ATTRIBUTE, &1_u64.to_ne_bytes(), XattrFlags::empty()).unwrap();
        set_immutable(file.as_fd(), true).unwrap();
        assert_eq!(clear_stale(&path).unwrap(), Mark::Kept);
        set_immutable(file.as_fd(), false).unwrap();
        std::fs::remove_file(&path).unwrap();
    }
}
