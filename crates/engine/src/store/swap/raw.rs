//! Swap files as `swapon` uses them: pages are written to the file's blocks on the device, and not
//! through the file system.
//!
//! A wrong block would overwrite another file. Therefore three steps precede the first use:
//!
//! 1. [`claim`] claims the file, reads the block map and checks file system, extents and device.
//! 2. The mark of [`RawMark`] keeps defragmenters away.
//! 3. [`RawFile::prove`] compares the first and last page of each extent in both directions, and
//!    checks that no other program has the file open.
//!
//! Before step 3 all writes pass through the file. Afterwards [`MapGuard`] compares the map.

use super::FixedPages;
use super::header::Header;
use super::named::{ActivateError, Activated, Storage};
use crate::store::io::{Device, FileDevice, MapGuard};
use ring::rand::{SecureRandom, SystemRandom};
use softswap_shared::cluster_table::ClusterTable;
use softswap_sys::block_map::{self, BlockExtent, Fingerprint, Unfit};
use softswap_sys::file::{SwapFile, errno, plain};
use softswap_sys::raw_device::{self, RawError};
use softswap_sys::raw_mark::{self, RawMark};
use softswap_sys::{PAGE_SIZE, Page, open_mark};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const PAGE_BYTES: u64 = PAGE_SIZE as u64;

/// Reason why a swap file cannot be used by its blocks. If [`RawFile::prove`] failed, it may have
/// written through the device, but only to blocks of the file that it had verified before.
#[derive(Debug, thiserror::Error)]
pub enum RawRefusal {
    #[error(transparent)]
    Area(#[from] ActivateError),
    #[error("{} is a device, which is used by its blocks anyway: leave out `raw`", path.display())]
    IsDevice { path: PathBuf },
    #[error(
        "{} cannot be used raw: {cause}; to use it through its file system, leave out `raw`",
        path.display()
    )]
    Below { path: PathBuf, cause: RawError },
    #[error(
        "{} cannot be used raw: {}; to use it through its file system, leave out `raw`",
        path.display(), why_unfit(path, unfit)
    )]
    Unfit { path: PathBuf, unfit: Unfit },
    #[error("{} cannot be used raw: it refuses direct I/O; leave out `raw`", path.display())]
    NotDirect { path: PathBuf },
    #[error(
        "{} cannot be used raw: the file system reports blocks beyond the end of its device; leave \
         out `raw`",
        path.display()
    )]
    Beyond { path: PathBuf },
    #[error(
        "{} cannot be used raw: page {page}, written {}, differs from the page read {}, so its \
         blocks are not where the file system reports them; leave out `raw`",
        path.display(), way(*through_device), way(!*through_device)
    )]
    Differs { path: PathBuf, page: u64, through_device: bool },
    #[error(
        "{} cannot be used raw: the file system moved its blocks during the check; try again, or \
         leave out `raw`",
        path.display()
    )]
    Changed { path: PathBuf },
    #[error(
        "{} cannot be used raw: another program has opened it, and could move its blocks; close \
         it there (`fuser -v {}` names the program), or leave out `raw`",
        path.display(), path.display()
    )]
    Open { path: PathBuf },
    #[error("{} cannot be used raw ({}): leave out `raw`", path.display(), plain(cause))]
    Io { path: PathBuf, cause: io::Error },
}

fn way(through_device: bool) -> &'static str {
    if through_device { "through the device" } else { "through the file" }
}

fn why_unfit(path: &Path, unfit: &Unfit) -> String {
    let shown = path.display();
    match unfit {
        Unfit::Hole(at) => format!("it has a hole at byte {at}; create it again with `fallocate`"),
        Unfit::Unwritten(at) => format!(
            "it was never written at byte {at}, so the file system would read zeroes there; format \
             it again with `softswap mkswap --raw --force {shown}`"
        ),
        Unfit::Shared(at) => format!(
            "it shares storage with another file from byte {at} on (a reflink or a snapshot); make \
             a file of its own with `fallocate`"
        ),
        Unfit::Flags(at, flags) => format!(
            "its extent at byte {at} is not plain storage (FIEMAP flags {flags:#x}: inline, \
             compressed, encrypted, not yet placed or unknown)"
        ),
        Unfit::Unaligned(at) => format!("its extent at byte {at} does not consist of whole pages"),
    }
}

#[derive(Debug)]
pub struct RawFile {
    path: PathBuf,
    /// The device, open for direct I/O.
    pub device: SwapFile,
    pub file_system: &'static str,
    pub map: Vec<BlockExtent>,
}

/// Claims a file, reads its block map, and checks file system, extents and device.
pub fn claim(path: &Path) -> Result<(Activated, RawFile), RawRefusal> {
    let storage = Storage::open_area(path, true)?;
    let path = || path.to_owned();
    if storage.is_device() {
        return Err(RawRefusal::IsDevice { path: path() });
    }
    let below = |cause| RawRefusal::Below { path: path(), cause };
    // Before other checks, whose remedies need a suitable file system and device.
    let file_system = raw_device::check_file_system(storage.file()).map_err(below)?;
    let device = raw_device::open_below(storage.file()).map_err(below)?;
    let area = storage.activate(true)?;
    let map = block_map::read(area.file.as_fd(), area.header.pages())
        .map_err(|cause| RawRefusal::Io { path: path(), cause })?
        .map_err(|unfit| RawRefusal::Unfit { path: path(), unfit })?;
    if !area.file.is_direct() {
        return Err(RawRefusal::NotDirect { path: path() });
    }
    let device_bytes =
        device.len_bytes().map_err(|cause| RawRefusal::Io { path: path(), cause })?;
    let is_within = |extent: &BlockExtent| {
        let end = extent.block.checked_add(extent.pages);
        end.is_some_and(|end| end <= device_bytes / PAGE_BYTES)
    };
    match map.iter().all(is_within) {
        true => Ok((area, RawFile { path: path(), device, file_system, map })),
        false => Err(RawRefusal::Beyond { path: path() }),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sample {
    page: u64,
    block: u64,
}

impl RawFile {
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(&self.map)
    }

    /// Writes random content through the file to the first and last page of each extent, and reads
    /// it through the device, then the other way round. The header's page is only read. `mark` is
    /// lifted while the file is written.
    pub fn prove(&self, area: &Activated, mark: &RawMark) -> Result<(), RawRefusal> {
        let io = |cause| RawRefusal::Io { path: self.path.clone(), cause };
        let (file, device) = (&area.file, &self.device);
        let samples = samples(&self.map, &area.header);
        self.compare_header(file)
            .map_err(io)?
            .then_some(())
            .ok_or_else(|| self.differs(0, false))?;
        let differs = |sample: Sample, through_device| self.differs(sample.page, through_device);

        let content = Content::new().map_err(io)?;
        let write = |sample: Sample, page: &Page| {
            whole(file.write_at(&page.0, sample.page * PAGE_BYTES)).map(|()| true)
        };
        let written = mark.lifted(|| each(&samples, content, write).and_then(|_| file.sync()));
        written.and_then(|result| result).map_err(io)?;
        // Before a write through the device: blocks of an immutable file that no other program has
        // open stay where they are.
        self.check_not_open(area)?;
        self.check_unchanged(area)?;
        let read = |sample: Sample, page: &Page| is_at(device, sample.block, page);
        let different = each(&samples, content, read).map_err(io)?;
        different.map_or(Ok(()), |sample| Err(differs(sample, false)))?;

        let content = Content::new().map_err(io)?;
        let write = |sample: Sample, page: &Page| {
            whole(device.write_at(&page.0, sample.block * PAGE_BYTES)).map(|()| true)
        };
        each(&samples, content, write).map_err(io)?;
        device.sync().map_err(io)?;
        let read = |sample: Sample, page: &Page| is_at(file, sample.page, page);
        let different = each(&samples, content, read).map_err(io)?;
        different.map_or(Ok(()), |sample| Err(differs(sample, true)))?;
        self.check_not_open(area)?;
        self.check_unchanged(area)
    }

    /// Fails if another program keeps the file open: it could still move its blocks.
    pub fn check_not_open(&self, area: &Activated) -> Result<(), RawRefusal> {
        // Attempts, 50 ms apart: a program may just look at the file.
        const ATTEMPTS: usize = 40;
        for _ in 0..ATTEMPTS {
            // A user who does not own the file cannot find out.
            if raw_mark::other_opens(area.file.as_fd()) != Some(true) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Err(RawRefusal::Open { path: self.path.clone() })
    }

    fn differs(&self, page: u64, through_device: bool) -> RawRefusal {
        RawRefusal::Differs { path: self.path.clone(), page, through_device }
    }

    fn compare_header(&self, file: &SwapFile) -> io::Result<bool> {
        let mut page = Box::new(Page([0; PAGE_SIZE]));
        whole(file.read_at(&mut page.0, 0))?;
        is_at(&self.device, self.map.first().map_or(0, |extent| extent.block), &page)
    }

    pub fn check_unchanged(&self, area: &Activated) -> Result<(), RawRefusal> {
        let path = || self.path.clone();
        let now = block_map::read(area.file.as_fd(), area.header.pages());
        match now.map_err(|cause| RawRefusal::Io { path: path(), cause })? {
            Ok(map) if map == self.map => Ok(()),
            _ => Err(RawRefusal::Changed { path: path() }),
        }
    }
}

pub(crate) fn pages_of(header: &Header, map: &[BlockExtent]) -> FixedPages {
    FixedPages {
        pages: header.pages(),
        spans: map.iter().map(|extent| (extent.page, extent.pages, extent.block)).collect(),
        bad_pages: header.bad_pages.iter().map(|page| u64::from(*page)).collect(),
    }
}

/// The device of an area that a tree of processes shares, opened for this process.
pub(crate) struct SharedDevice {
    pub(crate) device: Arc<SwapFile>,
    pub(crate) mark: u64,
}

impl SharedDevice {
    /// Opens the device below `file`, marked in `table`. Fails if it cannot, or no mark is free.
    pub(crate) fn open(file: &SwapFile, table: &ClusterTable) -> Result<SharedDevice, RawError> {
        let device = raw_device::open_below(file)?;
        // Put the mark on the device, because requests to the device must keep it alive.
        let mark = table.mark(|mark| open_mark::put(&device, mark).ok());
        let mark = mark.ok_or(io::Error::from_raw_os_error(errno::EAGAIN))?;
        Ok(SharedDevice { device: Arc::new(device), mark })
    }

    pub(crate) fn guarded(
        &self,
        file: &Arc<SwapFile>,
        (pages, verified): (u64, Fingerprint),
        table: ClusterTable,
        avoid_io_uring: bool,
    ) -> Box<dyn Device> {
        let guard = MapGuard::new(Arc::clone(file), pages, verified, Some(table));
        Box::new(FileDevice::guarded(Arc::clone(&self.device), Some(guard), avoid_io_uring))
    }
}

/// Returns the first and last page of each extent, without the header and bad pages.
fn samples(map: &[BlockExtent], header: &Header) -> Vec<Sample> {
    let mut bad_pages = header.bad_pages.clone();
    bad_pages.sort_unstable();
    let is_usable = |page: &u64| {
        let number = u32::try_from(*page);
        *page > 0 && number.is_ok_and(|page| bad_pages.binary_search(&page).is_err())
    };
    let ends = map.iter().flat_map(|extent| {
        let pages = extent.page..extent.page + extent.pages;
        let first = pages.clone().find(is_usable);
        let last = pages.rev().find(is_usable).filter(|last| Some(*last) != first);
        let sample = |page| Sample { page, block: extent.block + (page - extent.page) };
        [first, last].into_iter().flatten().map(sample)
    });
    ends.collect()
}

/// Random content that differs for each page and each use.
#[derive(Debug, Clone, Copy)]
struct Content([u64; 2]);

impl Content {
    fn new() -> io::Result<Content> {
        let mut bytes = [0; 16];
        SystemRandom::new().fill(&mut bytes).map_err(|_| io::Error::other("no random numbers"))?;
        let (words, _) = bytes.as_chunks();
        Ok(Content([u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1])]))
    }

    fn fill(self, number: u64, page: &mut Page) {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut state = self.0[0] ^ number.wrapping_mul(STEP);
        let (words, _) = page.0.as_chunks_mut();
        for word in words {
            state = state.wrapping_add(STEP);
            let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            *word = (mixed ^ (mixed >> 31) ^ self.0[1]).to_le_bytes();
        }
    }
}

/// Calls `act` for each sample, on several threads. Returns one for which it returned false.
fn each(
    samples: &[Sample],
    content: Content,
    act: impl Fn(Sample, &Page) -> io::Result<bool> + Sync,
) -> io::Result<Option<Sample>> {
    let run = |samples: &[Sample]| {
        let mut page = Box::new(Page([0; PAGE_SIZE]));
        for &sample in samples {
            content.fill(sample.page, &mut page);
            if !act(sample, &page)? {
                return Ok(Some(sample));
            }
        }
        Ok(None)
    };
    // Most of the time the threads wait for the device.
    let part = samples.len().div_ceil(8).max(1);
    let results: Vec<io::Result<Option<Sample>>> = std::thread::scope(|scope| {
        let started: Vec<_> =
            samples.chunks(part).map(|samples| scope.spawn(move || run(samples))).collect();
        let died = |_| Err(io::Error::other("a thread of the check died"));
        started.into_iter().map(|thread| thread.join().unwrap_or_else(died)).collect()
    });
    results.into_iter().find(|result| !matches!(result, Ok(None))).unwrap_or(Ok(None))
}

fn is_at(storage: &SwapFile, number: u64, expected: &Page) -> io::Result<bool> {
    let mut page = Page([0; PAGE_SIZE]);
    whole(storage.read_at(&mut page.0, number * PAGE_BYTES))?;
    Ok(page.0 == expected.0)
}

fn whole(transferred: io::Result<usize>) -> io::Result<()> {
    match transferred? {
        PAGE_SIZE => Ok(()),
        _ => Err(io::Error::from_raw_os_error(errno::EIO)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(bad_pages: &[u32]) -> Header {
        Header {
            last_page: 99,
            bad_pages: bad_pages.to_vec(),
            uuid: [7; 16],
            label: [0; 16],
            is_byte_swapped: false,
        }
    }

    fn map() -> Vec<BlockExtent> {
        [(0, 10, 500), (10, 1, 300), (11, 89, 1000)]
            .map(|(page, pages, block)| BlockExtent { page, pages, block })
            .to_vec()
    }

    #[test]
    fn both_ends_of_each_extent_are_compared_but_never_the_header_or_a_bad_page() {
        let of = |bad: &[u32]| -> Vec<(u64, u64)> {
            samples(&map(), &header(bad)).iter().map(|it| (it.page, it.block)).collect()
        };
        let ends = [(1, 501), (9, 509), (10, 300), (11, 1000), (99, 1088)];
        assert_eq!(of(&[]), ends);
        assert_eq!(of(&[99, 9, 10]), [(1, 501), (8, 508), (11, 1000), (98, 1087)]);
        let alone = [BlockExtent { page: 0, pages: 1, block: 8 }];
        assert_eq!(samples(&alone, &header(&[])), []);
    }

    #[test]
    fn content_differs_by_page_and_by_use() {
        let page = |content: Content, number| {
            let mut page = Page([0; PAGE_SIZE]);
            content.fill(number, &mut page);
            page.0
        };
        let (one, other) = (Content::new().unwrap(), Content::new().unwrap());
        assert_eq!(page(one, 3), page(one, 3));
        assert!(page(one, 3) != page(one, 4) && page(one, 3) != page(other, 3));
    }

    #[test]
    fn one_sample_that_differs_is_found_whichever_thread_has_it() {
        let samples: Vec<_> = (0..100).map(|page| Sample { page, block: page + 7 }).collect();
        let content = Content::new().unwrap();
        for different in [0, 50, 99] {
            let found = each(&samples, content, |sample, _| Ok(sample.page != different));
            assert_eq!(found.unwrap(), Some(samples[different as usize]));
        }
        assert_eq!(each(&samples, content, |_, _| Ok(true)).unwrap(), None);
        assert!(each(&samples, content, |_, _| Err(io::Error::other("broken"))).is_err());
    }
}
