//! The swap file: where a page goes when it leaves DRAM.
//!
//! The file never has a name that another program could open: it is made
//! unnamed, or unlinked at once where the file system cannot do that, so what
//! was swapped out disappears with the process. It is opened past the page
//! cache where possible, because a cached copy of a page that was just evicted
//! would take the very DRAM that the eviction freed.
//!
//! Reads and writes are raw system calls: the C library's wrappers are
//! cancellation points and may be interposed, and this code runs in a fault
//! handler.

use super::unnamed_file::open_unnamed;
use crate::descriptor::move_high;
use crate::memory::{PAGE_SIZE, Page};
use crate::own_descriptors;
use crate::program_filter;
use crate::raw;
use rustix::fs::{Advice, AtFlags, FallocateFlags, Mode, OFlags, StatxFlags};
use rustix::io::{Errno, retry_on_intr};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

pub use super::file_error::{FileError, errno, plain};
pub use super::unnamed_file::{is_in_memory, may_make_files, on_disk};

/// What is written to try a file out.
const PROBE: [u8; PAGE_SIZE] = [0x5a; PAGE_SIZE];

/// Device and inode of what a descriptor leads to; `None` where there is no such descriptor.
#[must_use]
pub fn identity_of(number: i32) -> Option<(u64, u64)> {
    let stat = raw::file_status(usize::try_from(number).ok()?).ok()?;
    Some((stat.st_dev, stat.st_ino))
}

/// Opens what is open under a number once more. It takes `/proc`.
fn open_again(number: i32, access: OFlags, direct: bool) -> Result<OwnedFd, Errno> {
    let direct = if direct { OFlags::DIRECT } else { OFlags::empty() };
    let flags = access | OFlags::CLOEXEC | OFlags::NOCTTY | direct;
    rustix::fs::open(format!("/proc/self/fd/{number}"), flags, Mode::empty())
}

/// An unnamed file that holds swapped pages.
///
/// ```
/// use softswap_sys::file::SwapFile;
/// use softswap_sys::memory::reserve_pages;
///
/// let page = &mut reserve_pages(1)?[0];
/// let file = SwapFile::open(&std::env::temp_dir())?;
/// page.0.fill(7);
/// assert_eq!(file.write_at(&page.0, 0)?, 4096);
/// page.0.fill(0);
/// assert_eq!(file.read_at(&mut page.0, 0)?, 4096);
/// assert_eq!(page.0, [7; 4096]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct SwapFile {
    /// Closed in a child that has become a reader.
    fd: ManuallyDrop<OwnedFd>,
    /// The same file, opened for reading only: what a forked child reads by.
    reader: Option<OwnedFd>,
    is_reader: AtomicBool,
    is_unnamed: bool,
    direct: bool,
    /// Device and inode: what the descriptor's number is to mean.
    identity: (u64, u64),
    is_device: bool,
}

impl SwapFile {
    /// Opens an unnamed file in `directory`, past the page cache if the file
    /// system can do that.
    ///
    /// # Errors
    /// When the directory does not take a file, or the file does not return
    /// what was written to it: that is tried where the file system does not say
    /// that it takes direct I/O.
    pub fn open(directory: &Path) -> Result<Self, FileError> {
        let explain = |errno| FileError::new(directory, errno);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = rustix::fs::open(directory, flags, Mode::empty()).map_err(explain)?;
        // Whatever is wrong with direct I/O here is no reason to have no swap:
        // if it is the file system that is broken, buffered I/O says so too.
        match Self::open_with(&parent, true) {
            Ok(file) => Ok(file),
            Err(_) => Self::open_with(&parent, false).map_err(explain),
        }
    }

    fn open_with(parent: &OwnedFd, direct: bool) -> Result<Self, Errno> {
        let fd = move_high(open_unnamed(parent, direct)?);
        // Now, and not in the child: the program may change its user before it forks.
        let reader = open_again(fd.as_raw_fd(), OFlags::RDONLY, direct).ok().map(move_high);
        let mut file = Self::of(fd, direct);
        (file.reader, file.is_unnamed) = (reader, true);
        // What says that it takes direct I/O need not be tried, which waits for
        // the disk three times at the start of every program.
        if direct && file.says_it_is_direct() {
            return Ok(file);
        }
        file.probe().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        if !direct {
            // Neighbouring slots hold unrelated pages: the kernel's readahead
            // would only fill the page cache. A refusal costs memory, not data.
            for fd in [Some(file.descriptor()), file.reader.as_ref()].into_iter().flatten() {
                let _ = rustix::fs::fadvise(fd, 0, None, Advice::Random);
            }
        }
        Ok(file)
    }

    /// Opens a file or device that exists for reading, past the page cache if
    /// it can do that. What is to be written to is claimed ([`crate::exclusive_file`]).
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open_existing(path: &Path) -> Result<Self, FileError> {
        let open = |direct| {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC | direct;
            rustix::fs::open(path, flags, Mode::empty()).map(move_high)
        };
        match open(OFlags::DIRECT) {
            Ok(fd) => Ok(Self::of(fd, true)),
            Err(Errno::INVAL) => open(OFlags::empty())
                .map(|fd| Self::of(fd, false))
                .map_err(|errno| FileError::new(path, errno)),
            Err(errno) => Err(FileError::new(path, errno)),
        }
    }

    /// What an inherited descriptor leads to, by an open file of this process's own.
    ///
    /// # Errors
    /// Where this process may not open it, or there is no /proc.
    pub fn reopened(number: i32) -> io::Result<Self> {
        let inherited = Self::inherited(number)?;
        let fd = open_again(number, OFlags::RDWR, inherited.direct)?;
        let own = Self::of(move_high(fd), inherited.direct);
        if own.identity == inherited.identity { Ok(own) } else { Err(Errno::STALE.into()) }
    }

    /// What an inherited descriptor leads to, by the open file that all have who inherit it.
    ///
    /// # Errors
    /// Where there is no such descriptor, or none is left for another.
    pub fn inherited(number: i32) -> io::Result<Self> {
        let args = [number as usize, libc::F_DUPFD_CLOEXEC as usize, 0, 0, 0, 0];
        // SAFETY: the call takes no pointers, and opens a new descriptor.
        let made = raw::check(unsafe { raw::syscall(libc::SYS_fcntl, args) })?;
        // SAFETY: the descriptor was opened just now, and is owned by nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(made as i32) };
        let direct = rustix::fs::fcntl_getfl(&fd)?.contains(OFlags::DIRECT);
        Ok(Self::of(move_high(fd), direct))
    }

    /// A file that is open already.
    pub(crate) fn of(fd: OwnedFd, direct: bool) -> Self {
        let stat = rustix::fs::fstat(&fd).ok();
        let kind = stat.map(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode));
        let identity = stat.map(|stat| (stat.st_dev, stat.st_ino)).unwrap_or_default();
        let is_device = kind.is_some_and(|kind| kind.is_block_device());
        let (fd, is_reader) = (ManuallyDrop::new(fd), AtomicBool::new(false));
        Self { fd, reader: None, is_reader, is_unnamed: false, direct, identity, is_device }
    }

    /// In a forked child: gives the descriptor that could write up for one that can only read.
    /// Returns false if the file could not be opened again ([`SwapFile::open`]): then it cannot
    /// be read either.
    pub fn become_reader(&self) -> bool {
        if !self.is_reader.swap(true, Ordering::AcqRel) {
            let number = self.fd.as_raw_fd();
            own_descriptors::forget(number);
            // SAFETY: the call takes no pointers, and the number is not used any more.
            unsafe { raw::syscall(libc::SYS_close, [number as usize, 0, 0, 0, 0, 0]) };
        }
        self.reader.is_some()
    }

    /// The open descriptor.
    fn descriptor(&self) -> &OwnedFd {
        match &self.reader {
            Some(reader) if self.is_reader.load(Ordering::Relaxed) => reader,
            _ => &self.fd,
        }
    }

    /// True if it was made in a directory, without a name.
    #[must_use]
    pub fn is_unnamed(&self) -> bool {
        self.is_unnamed
    }

    /// Device and inode.
    #[must_use]
    pub fn identity(&self) -> (u64, u64) {
        self.identity
    }

    /// A block device, not a file.
    #[must_use]
    pub fn is_device(&self) -> bool {
        self.is_device
    }

    /// The descriptor, for what changes the file: a program can close numbers
    /// behind the engine's back, and have files of its own under them by then.
    /// (What a ring writes goes to the file that was attached to it.)
    fn for_changing(&self) -> io::Result<&OwnedFd> {
        if self.is_reader.load(Ordering::Relaxed) {
            return Err(Errno::BADF.into());
        }
        let stat = raw::file_status(self.descriptor().as_raw_fd() as usize)?;
        let is_ours = (stat.st_dev, stat.st_ino) == self.identity;
        if is_ours { Ok(self.descriptor()) } else { Err(Errno::STALE.into()) }
    }

    /// Whether the file system says that pages can go past the page cache
    /// (Linux 6.1).
    fn says_it_is_direct(&self) -> bool {
        const PAGE: std::ops::RangeInclusive<u32> = 1..=PAGE_SIZE as u32;
        let mask = StatxFlags::DIOALIGN;
        rustix::fs::statx(self.descriptor(), c"", AtFlags::EMPTY_PATH, mask).is_ok_and(|stat| {
            stat.stx_mask & mask.bits() != 0
                && PAGE.contains(&stat.stx_dio_mem_align)
                && PAGE.contains(&stat.stx_dio_offset_align)
        })
    }

    /// From now on transfers go through the page cache.
    ///
    /// # Errors
    /// What the kernel reported.
    pub fn leave_direct(&mut self) -> io::Result<()> {
        let flags = rustix::fs::fcntl_getfl(self.descriptor())?;
        rustix::fs::fcntl_setfl(self.descriptor(), flags - OFlags::DIRECT)?;
        self.direct = false;
        Ok(())
    }

    /// Waits until everything written so far is on the device.
    ///
    /// # Errors
    /// What the kernel reported: part of it may be lost.
    pub fn sync(&self) -> io::Result<()> {
        Ok(retry_on_intr(|| rustix::fs::fsync(self.descriptor()))?)
    }

    /// Whether the file system keeps its files in DRAM, so that swapping to
    /// one frees none.
    #[must_use]
    pub fn is_in_memory(&self) -> bool {
        rustix::fs::fstatfs(self.descriptor()).is_ok_and(|stat| is_in_memory(stat.f_type))
    }

    /// Whether the file system writes what changes to a new place, which takes
    /// free space, and can be told not to.
    #[must_use]
    pub fn is_copied_on_write(&self) -> bool {
        const BTRFS: i64 = 0x9123_683e;
        let on_btrfs =
            rustix::fs::fstatfs(self.descriptor()).is_ok_and(|stat| stat.f_type == BTRFS);
        let flags = || rustix::fs::ioctl_getflags(self.descriptor());
        on_btrfs && flags().is_ok_and(|flags| !flags.contains(rustix::fs::IFlags::NOCOW))
    }

    /// Writes a page, runs `body`, and makes the file empty again. Only for a
    /// file that is empty.
    ///
    /// # Errors
    /// What the kernel reported.
    pub fn with_a_page<R>(&self, body: impl FnOnce() -> R) -> io::Result<R> {
        let page = Page(PROBE);
        let sent = retry_on_intr(|| rustix::io::pwrite(self.descriptor(), &page.0, 0))?;
        if sent != PAGE_SIZE {
            return Err(Errno::IO.into());
        }
        let result = body();
        retry_on_intr(|| rustix::fs::ftruncate(self.descriptor(), 0))?;
        Ok(result)
    }

    /// Bytes in the file or device.
    ///
    /// # Errors
    /// What the kernel reported.
    pub fn len_bytes(&self) -> io::Result<u64> {
        // A device's size is where its end is; its status says 0.
        Ok(rustix::fs::seek(self.descriptor(), rustix::fs::SeekFrom::End(0))?)
    }

    /// Whether the queue of the device under the file has poll support;
    /// `None` where the kernel does not tell.
    #[must_use]
    pub fn queue_polls(&self) -> Option<bool> {
        let stat = rustix::fs::fstat(self.descriptor()).ok()?;
        let is_device = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_block_device();
        let device = if is_device { stat.st_rdev } else { stat.st_dev };
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        // A partition has no queue of its own, but the disk it lies in.
        ["queue/io_poll", "../queue/io_poll"].iter().find_map(|place| {
            let path = format!("/sys/dev/block/{major}:{minor}/{place}");
            std::fs::read_to_string(path).ok().map(|text| text.trim() == "1")
        })
    }

    /// Writes a page and reads it back: opening with O_DIRECT can succeed
    /// where the transfers then fail.
    fn probe(&self) -> io::Result<()> {
        let mut read = Page([0; PAGE_SIZE]);
        match self.with_a_page(|| self.read_at(&mut read.0, 0))?? {
            PAGE_SIZE if read.0 == PROBE => Ok(()),
            _ => Err(Errno::IO.into()),
        }
    }

    /// One read; returns the bytes read, which may be fewer than asked for.
    ///
    /// # Errors
    /// What the kernel reported; interruptions are retried.
    pub fn read_at(&self, buf: &mut [u8], offset_bytes: u64) -> io::Result<usize> {
        let buffer = (buf.as_mut_ptr() as usize, buf.len());
        // SAFETY: the kernel writes at most `buf.len()` bytes to `buf`, which is borrowed
        // exclusively.
        unsafe { self.transfer(libc::SYS_pread64, buffer, offset_bytes) }
    }

    /// One write; returns the bytes written, which may be fewer than asked for.
    ///
    /// # Errors
    /// What the kernel reported; interruptions are retried.
    pub fn write_at(&self, buf: &[u8], offset_bytes: u64) -> io::Result<usize> {
        self.check_limit(offset_bytes + buf.len() as u64)?;
        self.for_changing()?;
        let buffer = (buf.as_ptr() as usize, buf.len());
        // SAFETY: the kernel reads at most `buf.len()` bytes from `buf`.
        unsafe { self.transfer(libc::SYS_pwrite64, buffer, offset_bytes) }
    }

    /// A call of pread's or pwrite's kind; interruptions are retried.
    ///
    /// # Safety
    /// `number` is that of such a call, and the buffer (address, length) may be written to
    /// if the call does that.
    unsafe fn transfer(&self, number: i64, buffer: (usize, usize), at: u64) -> io::Result<usize> {
        let args = [self.descriptor().as_raw_fd() as usize, buffer.0, buffer.1, at as usize, 0, 0];
        // SAFETY: the call reads the buffer, or writes it where it may be written to, as
        // asked for above.
        uninterrupted(|| unsafe { raw::syscall(number, args) })
    }

    /// Whether the process may write to the file up to `end_bytes`: beyond the largest
    /// size of a file (`ulimit -f`) the kernel would send it SIGXFSZ, which is for writes
    /// of the program's own. Asked each time, because a program may change its limit.
    ///
    /// # Errors
    /// EFBIG.
    pub fn check_limit(&self, end_bytes: u64) -> io::Result<()> {
        let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: 0 };
        let args = [0, libc::RLIMIT_FSIZE as usize, 0, &raw mut limit as usize, 0, 0];
        // SAFETY: without new limits the call changes none; the kernel writes one `rlimit`
        // to `limit`.
        unsafe { raw::syscall(libc::SYS_prlimit64, args) };
        if end_bytes > limit.rlim_cur && !self.is_device {
            return Err(io::Error::from_raw_os_error(libc::EFBIG));
        }
        Ok(())
    }

    /// Claims storage for a range, so that later writes to it find room.
    ///
    /// Where the file system cannot promise room ahead of time the file is
    /// only made long enough, and a later write may report ENOSPC.
    ///
    /// # Errors
    /// ENOSPC, EDQUOT, EFBIG, or what else the kernel reported.
    pub fn allocate(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        self.check_limit(offset_bytes + length_bytes)?;
        let fd = self.for_changing()?;
        match fallocate(fd, FallocateFlags::empty(), offset_bytes, length_bytes) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS)) => {
                self.extend(offset_bytes + length_bytes)
            }
            result => result,
        }
    }

    fn extend(&self, end_bytes: u64) -> io::Result<()> {
        let stat = raw::file_status(self.descriptor().as_raw_fd() as usize)?;
        if (stat.st_size as u64) < end_bytes {
            ftruncate(self.descriptor(), end_bytes)
        } else {
            Ok(())
        }
    }

    /// Gives the storage behind a range back to the file system; it reads as
    /// zeroes afterwards.
    ///
    /// # Errors
    /// EOPNOTSUPP where the file system has no holes, or what else the kernel
    /// reported.
    pub fn punch(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let fd = self.for_changing()?;
        fallocate(fd, flags, offset_bytes, length_bytes)
    }

    /// Makes the file end at `offset_bytes`.
    ///
    /// # Errors
    /// What the kernel reported.
    pub fn truncate(&self, offset_bytes: u64) -> io::Result<()> {
        let fd = self.for_changing()?;
        ftruncate(fd, offset_bytes)
    }

    /// Tells the storage that a range is not needed: a device is told to
    /// discard it, a file gives it back to the file system.
    ///
    /// # Errors
    /// EOPNOTSUPP where it cannot do that, or what else the kernel reported.
    pub fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        const BLKDISCARD: usize = 0x1277;
        if !self.is_device {
            return self.punch(offset_bytes, length_bytes);
        }
        if program_filter::is_in_force() {
            return Err(Errno::OPNOTSUPP.into());
        }
        let fd = self.for_changing()?;
        let range = [offset_bytes, length_bytes];
        let args = [fd.as_raw_fd() as usize, BLKDISCARD, range.as_ptr() as usize, 0, 0, 0];
        // SAFETY: the kernel reads two words of 64 bits from `range`.
        raw::check(unsafe { raw::syscall(libc::SYS_ioctl, args) }).map(drop)
    }

    /// Bytes that this user may still claim on the file system.
    ///
    /// # Errors
    /// What the kernel reported.
    pub fn free_bytes(&self) -> io::Result<u64> {
        // SAFETY: integers, for which zero is valid.
        let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
        let args = [self.descriptor().as_raw_fd() as usize, &raw mut stat as usize, 0, 0, 0, 0];
        // SAFETY: the kernel writes one `struct statfs` to `stat`.
        uninterrupted(|| unsafe { raw::syscall(libc::SYS_fstatfs, args) })?;
        let block = if stat.f_frsize > 0 { stat.f_frsize } else { stat.f_bsize };
        Ok(stat.f_bavail.saturating_mul(block as u64))
    }

    /// Whether transfers bypass the page cache, and so need aligned buffers.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.direct
    }
}

// By the engine's instruction, as the program's own filters may forbid it these
// calls: rustix has instructions of its own.

/// Issues a call again for as long as signals interrupt it.
fn uninterrupted(call: impl Fn() -> isize) -> io::Result<usize> {
    loop {
        match call() {
            result if result == -(libc::EINTR as isize) => {}
            result => return raw::check(result),
        }
    }
}

/// `fallocate(2)`.
fn fallocate(fd: impl AsFd, flags: FallocateFlags, at: u64, len: u64) -> io::Result<()> {
    let fd = fd.as_fd().as_raw_fd() as usize;
    let args = [fd, flags.bits() as usize, at as usize, len as usize, 0, 0];
    // SAFETY: the call takes no pointers.
    uninterrupted(|| unsafe { raw::syscall(libc::SYS_fallocate, args) }).map(drop)
}

/// `ftruncate(2)`.
fn ftruncate(fd: impl AsFd, len: u64) -> io::Result<()> {
    let args = [fd.as_fd().as_raw_fd() as usize, len as usize, 0, 0, 0, 0];
    // SAFETY: the call takes no pointers.
    uninterrupted(|| unsafe { raw::syscall(libc::SYS_ftruncate, args) }).map(drop)
}

impl Drop for SwapFile {
    fn drop(&mut self) {
        self.reader.iter().for_each(|reader| own_descriptors::forget(reader.as_raw_fd()));
        if !*self.is_reader.get_mut() {
            own_descriptors::forget(self.fd.as_raw_fd());
            // SAFETY: it is dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.fd) };
        }
    }
}

impl AsFd for SwapFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor().as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// A directory of this test's own, gone when it is dropped.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("softswap-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&path);
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn page_of(byte: u8) -> Page {
        Page([byte; PAGE_SIZE])
    }

    #[test]
    fn what_is_written_is_read_back_and_leaves_no_name() {
        let scratch = Scratch::new("round-trip");
        let file = SwapFile::open(&scratch.0).unwrap();
        assert_eq!(std::fs::read_dir(&scratch.0).unwrap().count(), 0);
        file.allocate(0, 1 << 20).unwrap();
        assert_eq!(file.write_at(&page_of(7).0, 8192).unwrap(), PAGE_SIZE);
        let mut read = page_of(0);
        assert_eq!(file.read_at(&mut read.0, 8192).unwrap(), PAGE_SIZE);
        assert!(read.0 == page_of(7).0);
    }

    #[test]
    fn a_reader_reads_what_was_written_and_can_change_nothing() {
        let scratch = Scratch::new("reader");
        let file = SwapFile::open(&scratch.0).unwrap();
        assert_eq!(file.write_at(&page_of(7).0, 0).unwrap(), PAGE_SIZE);
        assert!(file.become_reader() && file.become_reader());
        let mut read = page_of(0);
        assert_eq!(file.read_at(&mut read.0, 0).unwrap(), PAGE_SIZE);
        assert!(read.0 == page_of(7).0);
        assert!(file.write_at(&page_of(8).0, 0).is_err() && file.truncate(0).is_err());
        let access = rustix::fs::fcntl_getfl(&file).unwrap() & OFlags::RWMODE;
        assert_eq!(access, OFlags::RDONLY);
        assert!(rustix::io::pwrite(&file, &[0; PAGE_SIZE], 0).is_err());
    }

    #[test]
    fn a_fresh_file_is_empty_although_it_was_probed() {
        let scratch = Scratch::new("empty");
        let file = SwapFile::open(&scratch.0).unwrap();
        assert_eq!(file.read_at(&mut page_of(1).0, 0).unwrap(), 0);
    }

    #[test]
    fn buffered_files_round_trip_too() {
        let scratch = Scratch::new("buffered");
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = rustix::fs::open(&scratch.0, flags, Mode::empty()).unwrap();
        let file = SwapFile::open_with(&parent, false).unwrap();
        assert!(!file.is_direct());
        // No alignment is asked for.
        assert_eq!(file.write_at(b"abc", 5).unwrap(), 3);
        let mut read = [0; 3];
        assert_eq!(file.read_at(&mut read, 5).unwrap(), 3);
        assert_eq!(&read, b"abc");
    }

    #[test]
    fn the_descriptor_is_high_and_closes_on_exec() {
        let scratch = Scratch::new("high");
        let file = SwapFile::open(&scratch.0).unwrap();
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let fd = file.as_fd().as_raw_fd();
        assert!(fd >= 900 || limit.is_some_and(|limit| limit < 1800));
        assert!(own_descriptors::is_kept(fd));
        let flags = rustix::io::fcntl_getfd(&file).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    }

    #[test]
    fn a_punched_range_reads_as_zeroes() {
        let scratch = Scratch::new("punch");
        let file = SwapFile::open(&scratch.0).unwrap();
        file.write_at(&page_of(9).0, 0).unwrap();
        match file.punch(0, PAGE_SIZE as u64) {
            Ok(()) => {
                let mut read = page_of(1);
                assert_eq!(file.read_at(&mut read.0, 0).unwrap(), PAGE_SIZE);
                assert!(read.0 == page_of(0).0);
            }
            Err(error) => assert_eq!(error.raw_os_error(), Some(errno::EOPNOTSUPP)),
        }
    }

    #[test]
    fn extending_never_shortens() {
        let scratch = Scratch::new("extend");
        let file = SwapFile::open(&scratch.0).unwrap();
        file.extend(1 << 20).unwrap();
        file.extend(4096).unwrap();
        assert_eq!(rustix::fs::fstat(&file).unwrap().st_size, 1 << 20);
        assert!(file.free_bytes().unwrap() > 0);
    }

    #[test]
    fn errors_name_the_path_and_the_way_out() {
        let scratch = Scratch::new("errors");
        let missing = scratch.0.join("missing");
        let error = SwapFile::open(&missing).unwrap_err();
        assert!(matches!(error, FileError::NoSuchDirectory { .. }));
        let text = error.to_string();
        assert!(text.contains(missing.to_str().unwrap()) && text.contains("create it"), "{text}");

        let plain = scratch.0.join("plain");
        std::fs::write(&plain, b"").unwrap();
        let error = SwapFile::open(&plain).unwrap_err();
        assert!(matches!(error, FileError::NotADirectory { .. }), "{error}");
    }

    #[test]
    fn a_directory_that_takes_no_files_is_refused() {
        // Not even root creates a file here.
        let error = SwapFile::open(Path::new("/proc/self")).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("/proc/self") && text.contains("another"), "{text}");
    }

    #[test]
    fn nothing_is_changed_in_a_file_that_got_the_number_meanwhile() {
        let scratch = Scratch::new("number");
        let mut file = SwapFile::open(&scratch.0).unwrap();
        file.allocate(0, 1 << 20).unwrap();
        let path = scratch.0.join("precious");
        std::fs::write(&path, [7; 8192]).unwrap();
        let other = OwnedFd::from(std::fs::File::options().write(true).open(&path).unwrap());
        rustix::io::dup2(&other, &mut file.fd).unwrap();
        let errors = [
            file.truncate(0),
            file.punch(0, 4096),
            file.discard(0, 4096),
            file.allocate(0, 1 << 20),
            file.write_at(&page_of(9).0, 0).map(drop),
        ];
        for error in errors.map(Result::unwrap_err) {
            assert_eq!(error.raw_os_error(), Some(errno::ESTALE));
        }
        assert_eq!(std::fs::read(&path).unwrap(), [7; 8192]);
    }
}
