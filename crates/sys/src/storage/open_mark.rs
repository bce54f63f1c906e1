//! Marks of open files, by which others tell whether one is still open.
//!
//! Of processes that share a file each has opened it for itself. A mark is a lock (F_OFD_SETLK) of
//! one byte that the file does not have. The kernel gives it back when the open file is gone, and
//! no earlier: when all have closed it that inherited its descriptor by fork, and the last
//! request of a ring is done that was under way when its process was killed. So a mark says
//! exactly whether somebody can still read or write by that open file, and needs neither process
//! numbers nor name spaces.

use crate::program_filter;
use crate::shared_locks;
use rustix::fd::AsFd;
use std::io;

/// Marks begin beyond all that a file can have.
const FIRST_BYTE: u64 = 1 << 62;
/// Numbers of marks are below this.
pub const MOST_MARKS: u64 = 1 << 32;

/// The byte that stands for a mark.
fn byte_of(number: u64) -> io::Result<u64> {
    match number < MOST_MARKS {
        true => Ok(FIRST_BYTE + number),
        false => Err(io::Error::from_raw_os_error(libc::EINVAL)),
    }
}

/// Puts a mark on an open file, for as long as it is open; false where another open file of
/// the same file has it.
///
/// # Errors
/// What the kernel reported: the file may not be open for writing, or its file system has no
/// locks.
pub fn put(file: impl AsFd, number: u64) -> io::Result<bool> {
    shared_locks::try_take(file.as_fd(), byte_of(number)?)
}

/// Whether no other open file of the same file has a mark: what had it is gone. False where
/// that cannot be told, also under a filter of the program's.
#[must_use]
pub fn is_gone(file: impl AsFd, number: u64) -> bool {
    !program_filter::is_in_force()
        && byte_of(number)
            .and_then(|byte| shared_locks::is_taken(file.as_fd(), byte))
            .is_ok_and(|is_taken| !is_taken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::{Ended, in_child};
    use std::fs::{File, OpenOptions};

    fn open(path: &std::path::Path) -> File {
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
    }

    #[test]
    fn a_mark_lasts_as_long_as_any_copy_of_its_open_file() {
        let path = std::env::temp_dir().join(format!("softswap-mark-{}", std::process::id()));
        let (one, other) = (open(&path), open(&path));
        std::fs::remove_file(&path).unwrap();
        assert!(put(&one, 7).unwrap() && put(&one, 7).unwrap(), "its own is no obstacle");
        assert!(!put(&other, 7).unwrap() && put(&other, 8).unwrap());
        assert!(!is_gone(&other, 7) && is_gone(&other, 9));
        let copy = one.try_clone().unwrap();
        drop(one);
        assert!(!is_gone(&other, 7));
        drop(copy);
        // Other tests fork: their children have copies, too, for a moment.
        let is_freed = (0..1000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            is_gone(&other, 7)
        });
        assert!(is_freed);
        assert!(put(&other, MOST_MARKS).is_err() && !is_gone(&other, MOST_MARKS));
    }

    #[test]
    fn a_forked_child_keeps_what_its_parent_has_marked() {
        let path = std::env::temp_dir().join(format!("softswap-heir-{}", std::process::id()));
        let (one, other) = (open(&path), open(&path));
        std::fs::remove_file(&path).unwrap();
        assert!(put(&one, 3).unwrap());
        // The child closes its copy, which is not the last one.
        let seen = in_child(|| {
            drop(std::os::fd::OwnedFd::from(one.try_clone().unwrap()));
            i32::from(is_gone(&other, 3))
        });
        assert_eq!(seen.unwrap(), Ended::Exit(0));
        assert!(!is_gone(&other, 3));
    }
}
