//! Content of a file or device, recognised by magic numbers in its first bytes.

use softswap_sys::PAGE_SIZE;
use std::ops::Range;

/// Bytes that must be read: up to the end of the btrfs superblock, the last one known.
pub const HEAD_BYTES: usize = 0x1_1000;
const _: () = assert!(HEAD_BYTES.is_multiple_of(PAGE_SIZE));

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Data,
    Swap,
    /// Can coexist with a swap area, which does not use its first 1024 bytes.
    BootSector,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Magic {
    /// Name of the format, with its article.
    pub name: &'static str,
    pub offset: usize,
    pub bytes: &'static [u8],
    pub(crate) kind: Kind,
}

const fn data(name: &'static str, offset: usize, bytes: &'static [u8]) -> Magic {
    Magic { name, offset, bytes, kind: Kind::Data }
}

const fn swap(name: &'static str, offset: usize, bytes: &'static [u8]) -> Magic {
    Magic { name, offset, bytes, kind: Kind::Swap }
}

/// The most specific come first: many formats include a boot sector.
static MAGICS: &[Magic] = &[
    data("an ext2/3/4 file system", 0x438, b"\x53\xef"),
    data("an XFS file system", 0, b"XFSB"),
    data("a JFS file system", 0x8000, b"JFS1"),
    data("a ReiserFS file system", 0x1_0034, b"ReIsEr"),
    data("a UDF file system", 0x8001, b"BEA01"),
    data("an APFS container", 0x20, b"NXSB"),
    data("an HFS+ file system", 0x400, b"H+\0\x04"),
    data("an HFSX file system", 0x400, b"HX\0\x05"),
    data("a NILFS2 file system", 0x406, b"\x34\x34"),
    data("a Minix file system", 0x410, b"\x7f\x13"),
    data("a Minix file system", 0x410, b"\x8f\x13"),
    data("a Minix file system", 0x410, b"\x68\x24"),
    data("a Minix file system", 0x410, b"\x78\x24"),
    data("a Minix file system", 0x418, b"\x5a\x4d"),
    data("a Ceph block store", 0, b"bluestore block device"),
    data("a btrfs file system", 0x1_0040, b"_BHRfS_M"),
    data("an F2FS file system", 0x400, b"\x10\x20\xf5\xf2"),
    data("an EROFS file system", 0x400, b"\xe2\xe1\xf5\xe0"),
    data("a bcachefs file system", 0x1018, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca"),
    data("a squashfs file system", 0, b"hsqs"),
    data("an ISO 9660 file system", 0x8001, b"CD001"),
    data("an NTFS file system", 3, b"NTFS    "),
    data("an exFAT file system", 3, b"EXFAT   "),
    data("a FAT file system", 0x52, b"FAT32"),
    data("a FAT file system", 0x36, b"FAT1"),
    data("a hibernated system", PAGE_SIZE - 10, b"S1SUSPEND"),
    data("a hibernated system", PAGE_SIZE - 10, b"S2SUSPEND"),
    data("a hibernated system", PAGE_SIZE - 10, b"ULSUSPEND"),
    data("a hibernated system", PAGE_SIZE - 10, b"LINHIB0001"),
    data("a LUKS-encrypted volume", 0, b"LUKS\xba\xbe"),
    data("an LVM physical volume", 0x218, b"LVM2 001"),
    data("a RAID member", 0, b"\xfc\x4e\x2b\xa9"),
    data("a RAID member", 0x1000, b"\xfc\x4e\x2b\xa9"),
    data("a partition table", 0x200, b"EFI PART"),
    swap("a swap area", PAGE_SIZE - 10, b"SWAPSPACE2"),
    swap("a swap area", PAGE_SIZE - 10, b"SWAP-SPACE"),
    swap("a swap area for pages of 8 KiB", 0x1ff6, b"SWAPSPACE2"),
    swap("a swap area for pages of 16 KiB", 0x3ff6, b"SWAPSPACE2"),
    swap("a swap area for pages of 32 KiB", 0x7ff6, b"SWAPSPACE2"),
    swap("a swap area for pages of 64 KiB", 0xfff6, b"SWAPSPACE2"),
    Magic { name: "a partition table", offset: 0x1fe, bytes: b"\x55\xaa", kind: Kind::BootSector },
];

/// Iterates over magic numbers, the most specific first. `head` should have [`HEAD_BYTES`].
pub fn recognise(head: &[u8]) -> impl Iterator<Item = &'static Magic> {
    /// Numbers, identifier and label in the header of a swap area, which may have any content.
    const HEADER_FIELDS: Range<usize> = 0x404..0x42c;
    let has = |magic: &Magic| {
        let end = magic.offset + magic.bytes.len();
        head.get(magic.offset..end).is_some_and(|bytes| bytes == magic.bytes)
    };
    let is_swap = MAGICS.iter().any(|magic| magic.kind == Kind::Swap && has(magic));
    MAGICS
        .iter()
        .filter(move |magic| has(magic) && !(is_swap && HEADER_FIELDS.contains(&magic.offset)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_magic_is_recognised_at_its_offset() {
        for magic in MAGICS {
            let mut head = vec![0; HEAD_BYTES];
            head[magic.offset..][..magic.bytes.len()].copy_from_slice(magic.bytes);
            assert_eq!(recognise(&head).collect::<Vec<_>>(), [magic]);
        }
    }

    #[test]
    fn identifier_of_swap_area_may_look_like_a_magic() {
        let mut head = vec![0; HEAD_BYTES];
        head[PAGE_SIZE - 10..PAGE_SIZE].copy_from_slice(b"SWAPSPACE2");
        head[0x406..0x408].copy_from_slice(b"\x34\x34");
        head[0x410..0x412].copy_from_slice(b"\x7f\x13");
        let names: Vec<_> = recognise(&head).map(|magic| magic.name).collect();
        assert_eq!(names, ["a swap area"]);
    }

    #[test]
    fn no_magic_spans_two_pages() {
        for magic in MAGICS {
            let last = magic.offset + magic.bytes.len() - 1;
            assert_eq!(magic.offset / PAGE_SIZE, last / PAGE_SIZE, "{}", magic.name);
            assert!(last < HEAD_BYTES);
        }
    }

    #[test]
    fn empty_input_is_not_recognised() {
        assert!(recognise(&[]).next().is_none());
        assert!(recognise(&vec![0; HEAD_BYTES]).next().is_none());
        assert!(recognise(b"XFS").next().is_none());
    }
}
