//! Marks of open files: the second rule of liveness, for files that forked children inherit.
//!
//! A forked child reads its parent's swap slots through the inherited open file, so these slots
//! must outlive the parent ([`crate::process_identity`]). A mark is a lock (`F_OFD_SETLK`) on one
//! byte beyond the end of a file. The kernel releases it with the open file: when all processes
//! have closed the inherited descriptor (`exec` closes it), and all requests of a ring have
//! completed, including those in flight when its process was killed.

use crate::{program_filter, raw};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use std::io;

/// Byte of mark 0: beyond the end of any file.
const FIRST_BYTE: u64 = 1 << 62;
/// Exclusive upper bound of marks.
pub const MAX_MARKS: u64 = 1 << 32;

/// Returns false if another open file has the mark. Fails without write access or locks.
pub fn put(file: impl AsFd, mark: u64) -> io::Result<bool> {
    match control(file.as_fd(), libc::F_OFD_SETLK, mark) {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Returns false also if this cannot be determined, as under the program's own filter.
pub fn is_released(file: impl AsFd, mark: u64) -> bool {
    let is_free = |lock: libc::flock| i32::from(lock.l_type) == libc::F_UNLCK;
    !program_filter::is_in_force()
        && control(file.as_fd(), libc::F_OFD_GETLK, mark).is_ok_and(is_free)
}

fn control(fd: BorrowedFd<'_>, command: i32, mark: u64) -> io::Result<libc::flock> {
    if mark >= MAX_MARKS {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut lock = libc::flock {
        l_type: libc::F_WRLCK as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: (FIRST_BYTE + mark) as i64,
        l_len: 1,
        l_pid: 0,
    };
    let place = &raw mut lock as usize;
    let args = [fd.as_raw_fd() as usize, command as usize, place, 0, 0, 0];
    // SAFETY: the kernel reads and writes one `flock`, which nothing else refers to.
    raw::check(unsafe { raw::syscall(libc::SYS_fcntl, args) })?;
    Ok(lock)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::{Ended, in_child};
    use crate::waiting::eventually;
    use std::fs::File;
    use tempfile::NamedTempFile;

    fn opened_twice() -> (File, File) {
        let file = NamedTempFile::new().unwrap();
        (file.reopen().unwrap(), file.reopen().unwrap())
    }

    #[test]
    fn mark_lasts_until_open_file_closes() {
        let (one, other) = opened_twice();
        assert!(
            put(&one, 7).unwrap() && put(&one, 7).unwrap(),
            "an open file may set its own mark again"
        );
        assert!(!put(&other, 7).unwrap() && put(&other, 8).unwrap());
        assert!(!is_released(&other, 7) && is_released(&other, 9));
        let copy = one.try_clone().unwrap();
        drop(one);
        assert!(!is_released(&other, 7));
        drop(copy);
        // Children that other tests fork also hold copies for a moment.
        eventually("the mark is released", || is_released(&other, 7));
        assert!(put(&other, MAX_MARKS).is_err() && !is_released(&other, MAX_MARKS));
    }

    #[test]
    fn forked_child_keeps_parent_marks() {
        let (one, other) = opened_twice();
        assert!(put(&one, 3).unwrap());
        // Closing a duplicate does not release the mark: the open file has other descriptors.
        let seen = in_child(|| {
            drop(std::os::fd::OwnedFd::from(one.try_clone().unwrap()));
            i32::from(is_released(&other, 3))
        });
        assert_eq!(seen.unwrap(), Ended::Exit(0));
        assert!(!is_released(&other, 3));
    }
}
