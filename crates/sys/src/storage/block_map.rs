//! Map of a swap file's pages to blocks of its device, for I/O that bypasses the file system: runs
//! like the kernel's `swap_extent`, by FIEMAP. Only extents that are written, in whole pages, and
//! used by this file alone are accepted.

use crate::fiemap::{FileExtent, Reader, flags};
use crate::memory::PAGE_SIZE;
use std::io;
use std::os::fd::BorrowedFd;

const PAGE_BYTES: u64 = PAGE_SIZE as u64;

/// A run of pages of the file that is contiguous on the device. All numbers in pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockExtent {
    pub page: u64,
    pub pages: u64,
    pub block: u64,
}

impl BlockExtent {
    fn is_continued_by(&self, next: &BlockExtent) -> bool {
        self.page + self.pages == next.page && self.block + self.pages == next.block
    }
}

/// A reason not to write the device in place of the file, with the byte at which it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfit {
    Hole(u64),
    /// Allocated storage that the file system reads as zeroes, regardless of the device's content.
    Unwritten(u64),
    /// Storage shared with other files: reflinks, snapshots.
    Shared(u64),
    /// Extents with other flags, whose `FIEMAP_EXTENT_` bits are the second number.
    Flags(u64, u32),
    /// Storage that does not consist of whole, aligned pages.
    Unaligned(u64),
}

struct Builder {
    pages: u64,
    covered: u64,
    last: Option<BlockExtent>,
    unfit: Option<Unfit>,
}

impl Builder {
    fn new(pages: u64) -> Builder {
        Builder { pages, covered: 0, last: None, unfit: None }
    }

    /// Adds an extent. If the extent does not continue the last run, calls `each` with that run.
    fn add(&mut self, extent: &FileExtent, each: &mut impl FnMut(BlockExtent)) {
        let end = self.pages * PAGE_BYTES;
        if self.unfit.is_some() || self.covered >= end {
            return;
        }
        let at = extent.logical;
        let unsupported = extent.unsupported_flags();
        self.unfit = if at > self.covered {
            Some(Unfit::Hole(self.covered))
        } else if extent.is_shared() {
            Some(Unfit::Shared(at))
        } else if unsupported == flags::UNWRITTEN {
            Some(Unfit::Unwritten(at))
        } else if unsupported != 0 {
            Some(Unfit::Flags(at, unsupported))
        } else {
            let length = extent.length.min(end - at);
            let is_whole = [at, extent.physical, length].iter().all(|it| it % PAGE_BYTES == 0);
            (!is_whole || extent.physical == 0).then_some(Unfit::Unaligned(at))
        };
        if self.unfit.is_some() {
            return;
        }
        let length = extent.length.min(end - at);
        let next = BlockExtent {
            page: at / PAGE_BYTES,
            pages: length / PAGE_BYTES,
            block: extent.physical / PAGE_BYTES,
        };
        self.covered = at + length;
        match &mut self.last {
            Some(last) if last.is_continued_by(&next) => last.pages += next.pages,
            last => last.replace(next).into_iter().for_each(each),
        }
    }

    fn end(self, each: &mut impl FnMut(BlockExtent)) -> Result<(), Unfit> {
        match self.unfit {
            Some(unfit) => Err(unfit),
            None if self.covered < self.pages * PAGE_BYTES => Err(Unfit::Hole(self.covered)),
            None => {
                self.last.into_iter().for_each(each);
                Ok(())
            }
        }
    }
}

pub fn check_layout(extents: &[FileExtent], pages: u64) -> Result<Vec<BlockExtent>, Unfit> {
    let (mut builder, mut found) = (Builder::new(pages), Vec::new());
    let mut each = |extent| found.push(extent);
    extents.iter().for_each(|extent| builder.add(extent, &mut each));
    builder.end(&mut each).map(|()| found)
}

/// Reads the map of a file. Fails with EOPNOTSUPP if the file system does not report extents.
pub fn read(file: BorrowedFd<'_>, pages: u64) -> io::Result<Result<Vec<BlockExtent>, Unfit>> {
    let mut extents = Vec::new();
    Reader::default().read(file, |extent| extents.push(extent))?;
    Ok(check_layout(&extents, pages))
}

/// A digest of a map: different if one number differs, and almost certainly for other changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint(u128);

impl Fingerprint {
    /// FNV-1a's start and factor for 128 bits.
    const START: Fingerprint = Fingerprint(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
    const FACTOR: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;

    pub fn of(map: &[BlockExtent]) -> Fingerprint {
        map.iter().fold(Self::START, |fingerprint, extent| fingerprint.with(extent))
    }

    fn with(self, extent: &BlockExtent) -> Fingerprint {
        let words = [extent.page, extent.pages, extent.block];
        Fingerprint(words.iter().fold(self.0, |sum, word| {
            (sum ^ u128::from(*word)).wrapping_mul(Self::FACTOR).rotate_left(64)
        }))
    }

    /// Reads the digest without allocating; `None` if the file has become unfit.
    pub fn read(
        reader: &mut Reader,
        file: BorrowedFd<'_>,
        pages: u64,
    ) -> io::Result<Option<Fingerprint>> {
        let (mut builder, mut fingerprint) = (Builder::new(pages), Self::START);
        let mut each = |extent| fingerprint = fingerprint.with(&extent);
        reader.read(file, |extent| builder.add(&extent, &mut each))?;
        let is_fit = builder.end(&mut each).is_ok();
        Ok(is_fit.then_some(fingerprint))
    }
}

impl std::fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl std::str::FromStr for Fingerprint {
    type Err = ();

    fn from_str(text: &str) -> Result<Fingerprint, ()> {
        u128::from_str_radix(text, 16).map(Fingerprint).map_err(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(page: u64, block: u64, pages: u64, flags: u32) -> FileExtent {
        let [logical, physical, length] = [page, block, pages].map(|it| it * PAGE_BYTES);
        FileExtent::new(logical, physical, length, flags).unwrap()
    }

    #[test]
    fn extents_that_continue_each_other_are_merged_and_the_rest_of_the_file_is_ignored() {
        let extents = [at(0, 100, 10, flags::MERGED), at(10, 110, 5, 0), at(15, 40, 10, 0)];
        let first = BlockExtent { page: 0, pages: 15, block: 100 };
        let second = BlockExtent { page: 15, pages: 10, block: 40 };
        assert_eq!(check_layout(&extents, 25), Ok(vec![first, second]));
        assert_eq!(check_layout(&extents, 15), Ok(vec![first]));
        assert_eq!(check_layout(&extents, 17), Ok(vec![first, BlockExtent { pages: 2, ..second }]));
        assert_eq!(check_layout(&extents, 26), Err(Unfit::Hole(25 * PAGE_BYTES)));
    }

    #[test]
    fn every_flag_but_last_and_merged_is_refused() {
        for bit in 0..32 {
            let extents = [at(0, 100, 10, 0), at(10, 200, 10, 1 << bit)];
            let is_fit = check_layout(&extents, 20).is_ok();
            assert_eq!(is_fit, [flags::LAST, flags::MERGED].contains(&(1 << bit)), "bit {bit}");
            assert!(check_layout(&extents, 10).is_ok(), "bit {bit} is outside the area");
        }
        let unwritten = check_layout(&[at(0, 100, 10, flags::UNWRITTEN)], 10);
        assert_eq!(unwritten, Err(Unfit::Unwritten(0)));
        let both = check_layout(&[at(0, 100, 10, flags::UNWRITTEN | flags::SHARED)], 10);
        assert_eq!(both, Err(Unfit::Shared(0)));
    }

    #[test]
    fn only_whole_pages_at_a_place_other_than_zero_are_accepted() {
        let shifted = FileExtent::new(0, 100 * PAGE_BYTES + 1024, 10 * PAGE_BYTES, 0).unwrap();
        assert_eq!(check_layout(&[shifted], 10), Err(Unfit::Unaligned(0)));
        let halves = [(0, 100), (PAGE_BYTES / 2, 300)]
            .map(|(at, block)| FileExtent::new(at, block * PAGE_BYTES, PAGE_BYTES / 2, 0).unwrap());
        assert_eq!(check_layout(&halves, 1), Err(Unfit::Unaligned(0)));
        assert_eq!(check_layout(&[at(0, 0, 10, 0)], 10), Err(Unfit::Unaligned(0)));
    }

    #[test]
    fn a_fingerprint_changes_with_every_number_and_the_order() {
        let map = [(0, 3, 70), (3, 1, 50), (4, 9, 900)].map(|(page, pages, block)| BlockExtent {
            page,
            pages,
            block,
        });
        let fingerprint = Fingerprint::of(&map);
        for index in 0..map.len() {
            for change in 0..3 {
                let mut other = map;
                let extent = &mut other[index];
                *[&mut extent.page, &mut extent.pages, &mut extent.block][change] += 1;
                assert_ne!(Fingerprint::of(&other), fingerprint);
            }
        }
        assert_ne!(Fingerprint::of(&[map[1], map[0], map[2]]), fingerprint);
        assert_ne!(Fingerprint::of(&map[..2]), fingerprint);
        assert_eq!(fingerprint.to_string().parse(), Ok(fingerprint));
        assert_eq!("x".parse::<Fingerprint>(), Err(()));
    }
}
