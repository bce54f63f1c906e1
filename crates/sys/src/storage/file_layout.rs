//! Checks that a file has its own storage for every page: a hole, a shared extent or a compressed
//! one needs new space on write, but evicting a page must not fail.

use crate::fiemap::{self, FileExtent};
use crate::file::SwapFile;
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::io;
use std::os::fd::AsFd;

/// A reason why a file cannot hold pages, with the byte at which it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    Hole(u64),
    /// Storage shared with other files: reflinks, snapshots.
    Shared(u64),
    /// Compressed, encrypted, or packed together with other data.
    Packed(u64),
}

/// Returns the number of contiguous pieces; `None` if the file system does not report extents.
pub fn examine(file: &SwapFile, bytes: u64) -> io::Result<Result<Option<u64>, Flaw>> {
    match fiemap::extents(file.as_fd()) {
        Ok(extents) => Ok(check_layout(&extents, bytes).map(Some)),
        Err(error) if has_no_map(&error) => Ok(match first_hole(file)? {
            Some(hole) if hole < bytes => Err(Flaw::Hole(hole)),
            _ => Ok(None),
        }),
        Err(error) => Err(error),
    }
}

fn has_no_map(error: &io::Error) -> bool {
    // EBADR is the answer to an unknown flag.
    let answers = [libc::EOPNOTSUPP, libc::ENOTTY, libc::EINVAL, libc::EBADR];
    error.raw_os_error().is_some_and(|errno| answers.contains(&errno))
}

/// Returns the offset of the first hole. The end of a file counts as a hole.
fn first_hole(file: &SwapFile) -> io::Result<Option<u64>> {
    match rustix::fs::seek(file, SeekFrom::Hole(0)) {
        Ok(hole) => Ok(Some(hole)),
        // An empty file, or a kernel without support for holes.
        Err(Errno::NXIO | Errno::INVAL) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Returns the number of physically contiguous pieces within the first `bytes`.
pub fn check_layout(extents: &[FileExtent], bytes: u64) -> Result<u64, Flaw> {
    let (mut covered, mut pieces, mut physical) = (0, 0, None);
    for extent in extents {
        if covered >= bytes {
            break;
        }
        if extent.logical > covered {
            return Err(Flaw::Hole(covered));
        }
        if extent.is_shared() {
            return Err(Flaw::Shared(extent.logical));
        }
        if !extent.is_placed() {
            return Err(Flaw::Packed(extent.logical));
        }
        // File systems split long contiguous pieces into several extents.
        pieces += u64::from(physical != Some(extent.physical));
        physical = Some(extent.physical + extent.length);
        covered = extent.end();
    }
    if covered < bytes { Err(Flaw::Hole(covered)) } else { Ok(pieces) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fiemap::flags::{DATA_INLINE, ENCODED, SHARED, UNWRITTEN};

    fn at(logical: u64, physical: u64, length: u64, flags: u32) -> FileExtent {
        FileExtent::new(logical, physical, length, flags).unwrap()
    }

    #[test]
    fn pieces_are_counted_by_position() {
        let extents = [at(0, 100, 10, 0), at(10, 110, 10, UNWRITTEN), at(20, 500, 10, 0)];
        assert_eq!(check_layout(&extents, 30), Ok(2));
        assert_eq!(check_layout(&extents, 20), Ok(1), "extents beyond the area are ignored");
        assert_eq!(check_layout(&[], 0), Ok(0));
    }

    #[test]
    fn flaws_are_reported_with_offset() {
        assert_eq!(check_layout(&[], 10), Err(Flaw::Hole(0)));
        assert_eq!(check_layout(&[at(5, 0, 10, 0)], 10), Err(Flaw::Hole(0)));
        let hole = [at(0, 0, 10, 0), at(20, 20, 10, 0)];
        assert_eq!(check_layout(&hole, 30), Err(Flaw::Hole(10)));
        assert_eq!(check_layout(&hole, 10), Ok(1));
        assert_eq!(check_layout(&hole[..1], 11), Err(Flaw::Hole(10)));
        for (flag, flaw) in [
            (SHARED, Flaw::Shared(10)),
            (ENCODED, Flaw::Packed(10)),
            (DATA_INLINE, Flaw::Packed(10)),
        ] {
            let extents = [at(0, 0, 10, 0), at(10, 10, 10, flag)];
            assert_eq!(check_layout(&extents, 20), Err(flaw));
            assert_eq!(check_layout(&extents, 10), Ok(1));
        }
    }
}
