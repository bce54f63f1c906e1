//! What a file or device holds, by its first bytes. Read only, never touched.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Reaches past the btrfs superblock, the last of those known here.
const READ_BYTES: u64 = 0x1_1000;

/// Where a kind of contents has its magic number.
const MAGICS: &[(&str, usize, &[u8])] = &[
    ("an ext2/3/4 file system", 0x438, b"\x53\xef"),
    ("an XFS file system", 0, b"XFSB"),
    ("a btrfs file system", 0x1_0040, b"_BHRfS_M"),
    ("an F2FS file system", 0x400, b"\x10\x20\xf5\xf2"),
    ("an EROFS file system", 0x400, b"\xe2\xe1\xf5\xe0"),
    ("a bcachefs file system", 0x1018, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca"),
    ("a squashfs file system", 0, b"hsqs"),
    ("an ISO 9660 file system", 0x8001, b"CD001"),
    ("an NTFS file system", 3, b"NTFS    "),
    ("an exFAT file system", 3, b"EXFAT   "),
    ("a FAT file system", 0x52, b"FAT32"),
    ("a FAT file system", 0x36, b"FAT1"),
    ("a swap area", 4096 - 10, b"SWAPSPACE2"),
    ("a swap area", 4096 - 10, b"SWAP-SPACE"),
    ("a LUKS-encrypted volume", 0, b"LUKS\xba\xbe"),
    ("an LVM physical volume", 0x218, b"LVM2 001"),
    ("a RAID member", 0x1000, b"\xfc\x4e\x2b\xa9"),
    ("a partition table", 0x200, b"EFI PART"),
    ("a partition table", 0x1fe, b"\x55\xaa"),
];

/// What `path` holds, as far as it can be recognised.
pub(crate) fn of_path(path: &Path) -> io::Result<Option<&'static str>> {
    let file = fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)?;
    let mut head = Vec::new();
    file.take(READ_BYTES).read_to_end(&mut head)?;
    Ok(recognise(&head))
}

fn recognise(head: &[u8]) -> Option<&'static str> {
    let has = |&&(_, at, magic): &&(&str, usize, &[u8])| {
        head.get(at..at + magic.len()).is_some_and(|bytes| bytes == magic)
    };
    MAGICS.iter().find(has).map(|(name, ..)| *name)
}

/// How a file or device is in use right now: mounted, or active swap.
pub(crate) fn use_of(path: &Path) -> Option<String> {
    let meta = fs::metadata(path).ok()?;
    let canonical = path.canonicalize().ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    if meta.file_type().is_block_device() {
        let device = meta.rdev();
        let number = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
        let mounted = mounts.lines().find_map(|line| {
            let mut fields = line.split(' ').skip(2);
            (fields.next()? == number).then(|| fields.nth(1).map(str::to_string))?
        });
        if let Some(point) = mounted {
            return Some(format!("mounted at {point}"));
        }
    }
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let active = swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    active.map(Path::new).any(|swap| swap == canonical).then(|| "active kernel swap".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_magic_is_recognised_where_it_belongs() {
        for &(name, at, magic) in MAGICS {
            let mut head = vec![0; READ_BYTES as usize];
            head[at..at + magic.len()].copy_from_slice(magic);
            assert_eq!(recognise(&head), Some(name));
        }
    }

    #[test]
    fn nothing_is_recognised_in_nothing() {
        assert_eq!(recognise(&[]), None);
        assert_eq!(recognise(&vec![0; READ_BYTES as usize]), None);
        assert_eq!(recognise(b"XFS"), None);
    }
}
