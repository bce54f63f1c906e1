//! Where a file system keeps a file: FIEMAP.

use crate::raw;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// FS_IOC_FIEMAP, as `_IOWR('f', 11, struct fiemap)`.
const FS_IOC_FIEMAP: usize = 0xC020_660B;
/// Extents asked for at once.
const BATCH: usize = 256;
/// Write to the device first what has no place there yet.
const FLAG_SYNC: u32 = 1;

/// What the kernel says about an extent.
pub(crate) mod flags {
    pub(crate) const LAST: u32 = 0x1;
    pub(crate) const UNKNOWN: u32 = 0x2;
    pub(crate) const DELALLOC: u32 = 0x4;
    pub(crate) const ENCODED: u32 = 0x8;
    pub(crate) const DATA_ENCRYPTED: u32 = 0x80;
    pub(crate) const NOT_ALIGNED: u32 = 0x100;
    pub(crate) const DATA_INLINE: u32 = 0x200;
    pub(crate) const DATA_TAIL: u32 = 0x400;
    pub(crate) const UNWRITTEN: u32 = 0x800;
    pub(crate) const SHARED: u32 = 0x2000;
}
use flags::*;

/// A piece of a file that lies in one piece on the device. All in bytes.
///
/// ```
/// use softswap_sys::fiemap::FileExtent;
///
/// let extent = FileExtent::new(4096, 1 << 30, 8192, 0).unwrap();
/// assert!(extent.is_placed() && !extent.is_shared());
/// assert_eq!(extent.end(), 12288);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileExtent {
    /// Where it begins in the file.
    pub logical: u64,
    /// Where it begins on the device; of no use unless [`FileExtent::is_placed`].
    pub physical: u64,
    /// How long it is.
    pub length: u64,
    flags: u32,
}

impl FileExtent {
    /// What a file system says of a piece; `None` where it has no bytes, or
    /// reaches past where files, or devices, end.
    #[must_use]
    pub fn new(logical: u64, physical: u64, length: u64, flags: u32) -> Option<Self> {
        let most = i64::MAX as u64;
        let ends = |start: u64| start.checked_add(length).is_some_and(|end| end <= most);
        let extent = Self { logical, physical, length, flags };
        match extent.is_placed() {
            _ if length == 0 || !ends(logical) => None,
            true => ends(physical).then_some(extent),
            false => Some(Self { physical: 0, ..extent }),
        }
    }

    /// The first byte of the file behind it.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.logical + self.length
    }

    /// Claimed, but never written: reads as zeroes without the device.
    #[must_use]
    pub fn is_unwritten(&self) -> bool {
        self.flags & UNWRITTEN != 0
    }

    /// Other files (reflinks, snapshots) have it, too: writing moves it.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.flags & SHARED != 0
    }

    /// Lies in whole blocks of its own at a known place, as written.
    #[must_use]
    pub fn is_placed(&self) -> bool {
        const ELSEWHERE: u32 = UNKNOWN | DELALLOC | ENCODED | DATA_ENCRYPTED;
        self.flags & (ELSEWHERE | NOT_ALIGNED | DATA_INLINE | DATA_TAIL) == 0
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
struct RawExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

#[repr(C)]
struct Request {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
    extents: [RawExtent; BATCH],
}

const _: () = assert!(size_of::<RawExtent>() == 56 && size_of::<Request>() == 32 + 56 * BATCH);

/// The extents of an open file, in the order of the file; holes are left out.
///
/// # Errors
/// EOPNOTSUPP where the file system does not tell, or what else it reports.
pub fn extents(file: BorrowedFd<'_>) -> io::Result<Vec<FileExtent>> {
    const EMPTY: RawExtent = RawExtent {
        logical: 0,
        physical: 0,
        length: 0,
        reserved64: [0; 2],
        flags: 0,
        reserved: [0; 3],
    };
    let mut request = Box::new(Request {
        start: 0,
        length: u64::MAX,
        flags: FLAG_SYNC,
        mapped: 0,
        count: BATCH as u32,
        reserved: 0,
        extents: [EMPTY; BATCH],
    });
    let mut found = Vec::new();
    loop {
        let address = &raw mut *request as usize;
        let args = [file.as_raw_fd() as usize, FS_IOC_FIEMAP, address, 0, 0, 0];
        // SAFETY: the kernel reads and writes the head of `request`, and writes at most
        // `count` extents behind it, for which there is room.
        raw::check(unsafe { raw::syscall(libc::SYS_ioctl, args) })?;
        let mapped = &request.extents[..(request.mapped as usize).min(BATCH)];
        let is_last = mapped.last().is_none_or(|last| last.flags & LAST != 0);
        for raw in mapped {
            append(&mut found, FileExtent::new(raw.logical, raw.physical, raw.length, raw.flags))?;
        }
        match found.last() {
            Some(last) if !is_last => {
                request.start = last.end();
                request.length = u64::MAX - request.start;
            }
            _ => return Ok(found),
        }
    }
}

/// Adds what a file system says next. What is built on extents relies on their
/// order, and asking for the next ones on getting further.
///
/// # Errors
/// `InvalidData` where it is no extent, or does not lie behind the last one.
pub fn append(found: &mut Vec<FileExtent>, next: Option<FileExtent>) -> io::Result<()> {
    let end = found.last().map_or(0, FileExtent::end);
    match next.filter(|next| next.logical >= end) {
        Some(next) => found.push(next),
        None => {
            let why =
                "the file system tells of extents that no file has; was it changed meanwhile?";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    #[test]
    fn written_pieces_are_found_in_order_and_holes_are_not() {
        let path = std::env::temp_dir().join(format!("softswap-fiemap-{}", std::process::id()));
        let file = std::fs::File::create(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        // Every second 64 KiB: more extents than are asked for at once.
        const STEP: u64 = 128 << 10;
        let written = vec![7; 64 << 10];
        for piece in 0..300 {
            file.write_all_at(&written, piece * STEP).unwrap();
        }
        let found = match extents(file.as_fd()) {
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => return,
            result => result.unwrap(),
        };
        assert_eq!(found.iter().map(|extent| extent.length).sum::<u64>(), 300 * (64 << 10));
        for pair in found.windows(2) {
            assert!(pair[0].logical + pair[0].length <= pair[1].logical);
        }
        for extent in &found {
            assert!(extent.is_placed() && !extent.is_shared());
            assert!(extent.logical % STEP + extent.length <= 64 << 10);
        }
    }
}
