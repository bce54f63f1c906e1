//! The swap file, to which pages are written when they are evicted.
//!
//! The file has no name that another program could open, so swapped-out content disappears with the
//! process. It is opened with O_DIRECT if possible: in the page cache, a copy of a page would take
//! the DRAM that its eviction freed. Reads and writes are raw system calls: the C library's are
//! cancellation points and may be interposed.

use super::unnamed_file::open_unnamed;
use crate::descriptor::{move_high, release};
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

const PROBE: [u8; PAGE_SIZE] = [0x5a; PAGE_SIZE];

/// Returns device and inode; `None` if the descriptor is not open.
pub fn identity_of(number: i32) -> Option<(u64, u64)> {
    let stat = raw::file_status(usize::try_from(number).ok()?).ok()?;
    Some((stat.st_dev, stat.st_ino))
}

/// Opens the file behind a descriptor a second time. Needs `/proc`.
fn open_again(number: i32, access: OFlags, direct: bool) -> Result<OwnedFd, Errno> {
    let direct = if direct { OFlags::DIRECT } else { OFlags::empty() };
    let flags = access | OFlags::CLOEXEC | OFlags::NOCTTY | direct;
    rustix::fs::open(format!("/proc/self/fd/{number}"), flags, Mode::empty())
}

/// A file or device that holds swapped pages.
#[derive(Debug)]
pub struct SwapFile {
    /// Closed in a child that has become a reader.
    fd: ManuallyDrop<OwnedFd>,
    /// The same file, opened read-only: the descriptor that a forked child reads through.
    reader: Option<OwnedFd>,
    is_reader: AtomicBool,
    is_unnamed: bool,
    direct: bool,
    /// Device and inode, to recognize that the descriptor's number was reused.
    identity: (u64, u64),
    is_device: bool,
}

/// Returns true if the kernel refuses to allocate in its own swap file (ETXTBSY). The range is
/// invalid, so nothing is ever allocated. Unlike a write, the call waits for nothing.
pub(crate) fn is_kernel_swap(file: BorrowedFd<'_>) -> bool {
    const BEYOND: usize = i64::MAX as usize;
    let mode = libc::FALLOC_FL_KEEP_SIZE as usize;
    let args = [file.as_raw_fd() as usize, mode, BEYOND, 1, 0, 0];
    // SAFETY: the call takes numbers.
    let result = unsafe { raw::syscall(libc::SYS_fallocate, args) };
    result == -(libc::ETXTBSY as isize)
}

impl SwapFile {
    /// Opens an unnamed file, with O_DIRECT if supported. Fails if a test page cannot be read back;
    /// no test if the file system is full or reports support for direct I/O.
    pub fn open(directory: &Path) -> Result<Self, FileError> {
        let explain = |errno| FileError::new(directory, errno);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = rustix::fs::open(directory, flags, Mode::empty()).map_err(explain)?;
        // If the file system is broken, the buffered open fails as well, and its error is reported.
        match Self::open_with(&parent, true) {
            Ok(file) => Ok(file),
            Err(_) => Self::open_with(&parent, false).map_err(explain),
        }
    }

    fn open_with(parent: &OwnedFd, direct: bool) -> Result<Self, Errno> {
        let fd = move_high(open_unnamed(parent, direct)?);
        // Open it now and not in the child: the program may change its user before it forks.
        let reader = match open_again(fd.as_raw_fd(), OFlags::RDONLY, direct) {
            // Without `reader` a forked child could not read the file, so do not use it.
            Err(Errno::MFILE) => {
                release(fd);
                return Err(Errno::MFILE);
            }
            reader => reader.ok().map(move_high),
        };
        let mut file = Self::of(fd, direct);
        (file.reader, file.is_unnamed) = (reader, true);
        // A test would wait for the disk three times at the start of every program.
        if direct && file.reports_direct_io() {
            return Ok(file);
        }
        if let Err(error) = file.probe() {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            // A full file system cannot be tested. Buffered transfers need no test.
            if direct || !matches!(errno, Errno::NOSPC | Errno::DQUOT) {
                return Err(errno);
            }
        }
        if !direct {
            // Neighbouring slots are unrelated: readahead would only fill the page cache.
            for fd in [Some(file.descriptor()), file.reader.as_ref()].into_iter().flatten() {
                let _ = rustix::fs::fadvise(fd, 0, None, Advice::Random);
            }
        }
        Ok(file)
    }

    /// Opens for reading, with O_DIRECT if supported. For writing, use [`crate::exclusive_file`].
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

    /// Opens the file of an inherited descriptor again, as a separate open file.
    pub fn reopened(number: i32) -> io::Result<Self> {
        let inherited = Self::inherited(number)?;
        let fd = open_again(number, OFlags::RDWR, inherited.direct)?;
        let own = Self::of(move_high(fd), inherited.direct);
        if own.identity == inherited.identity { Ok(own) } else { Err(Errno::STALE.into()) }
    }

    /// Duplicates an inherited descriptor: the open file is shared with other processes.
    pub fn inherited(number: i32) -> io::Result<Self> {
        let args = [number as usize, libc::F_DUPFD_CLOEXEC as usize, 0, 0, 0, 0];
        // SAFETY: the call takes no pointers, and opens a new descriptor.
        let duplicate = raw::check(unsafe { raw::syscall(libc::SYS_fcntl, args) })?;
        // SAFETY: the descriptor was opened just now and has no other owner.
        let fd = unsafe { OwnedFd::from_raw_fd(duplicate as i32) };
        let direct = rustix::fs::fcntl_getfl(&fd)?.contains(OFlags::DIRECT);
        Ok(Self::of(move_high(fd), direct))
    }

    pub(crate) fn of(fd: OwnedFd, direct: bool) -> Self {
        let stat = rustix::fs::fstat(&fd).ok();
        let kind = stat.map(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode));
        let identity = stat.map(|stat| (stat.st_dev, stat.st_ino)).unwrap_or_default();
        let is_device = kind.is_some_and(|kind| kind.is_block_device());
        let (fd, is_reader) = (ManuallyDrop::new(fd), AtomicBool::new(false));
        Self { fd, reader: None, is_reader, is_unnamed: false, direct, identity, is_device }
    }

    /// Closes the writable descriptor in a forked child; false if there is none for reading.
    pub fn become_reader(&self) -> bool {
        if !self.is_reader.swap(true, Ordering::AcqRel) {
            let number = self.fd.as_raw_fd();
            own_descriptors::forget(number);
            // SAFETY: the call takes no pointers, and the number is not used any more.
            unsafe { raw::syscall(libc::SYS_close, [number as usize, 0, 0, 0, 0, 0]) };
        }
        self.reader.is_some()
    }

    fn descriptor(&self) -> &OwnedFd {
        match &self.reader {
            Some(reader) if self.is_reader.load(Ordering::Relaxed) => reader,
            _ => &self.fd,
        }
    }

    pub fn is_unnamed(&self) -> bool {
        self.is_unnamed
    }

    pub fn identity(&self) -> (u64, u64) {
        self.identity
    }

    pub fn is_device(&self) -> bool {
        self.is_device
    }

    /// Fails with ESTALE if the number refers to another file: a program can close the engine's
    /// descriptors and open its own files under their numbers.
    fn for_changing(&self) -> io::Result<&OwnedFd> {
        if self.is_reader.load(Ordering::Relaxed) {
            return Err(Errno::BADF.into());
        }
        let stat = raw::file_status(self.descriptor().as_raw_fd() as usize)?;
        let is_same_file = (stat.st_dev, stat.st_ino) == self.identity;
        if is_same_file { Ok(self.descriptor()) } else { Err(Errno::STALE.into()) }
    }

    /// Returns true if the kernel swaps to the file; always false if the file is immutable.
    pub fn is_kernel_swap(&self) -> bool {
        is_kernel_swap(self.as_fd())
    }

    /// Returns true if the file system reports direct I/O of pages (Linux 6.1).
    fn reports_direct_io(&self) -> bool {
        const PAGE: std::ops::RangeInclusive<u32> = 1..=PAGE_SIZE as u32;
        let mask = StatxFlags::DIOALIGN;
        rustix::fs::statx(self.descriptor(), c"", AtFlags::EMPTY_PATH, mask).is_ok_and(|stat| {
            stat.stx_mask & mask.bits() != 0
                && PAGE.contains(&stat.stx_dio_mem_align)
                && PAGE.contains(&stat.stx_dio_offset_align)
        })
    }

    pub fn disable_direct_io(&mut self) -> io::Result<()> {
        let flags = rustix::fs::fcntl_getfl(self.descriptor())?;
        rustix::fs::fcntl_setfl(self.descriptor(), flags - OFlags::DIRECT)?;
        self.direct = false;
        Ok(())
    }

    /// Waits until all data is on the device. After an error part of it may be lost.
    pub fn sync(&self) -> io::Result<()> {
        Ok(retry_on_intr(|| rustix::fs::fsync(self.descriptor()))?)
    }

    /// Returns true if the files are in DRAM, so that swapping to them frees no memory.
    pub fn is_in_memory(&self) -> bool {
        rustix::fs::fstatfs(self.descriptor()).is_ok_and(|stat| is_in_memory(stat.f_type))
    }

    /// Returns true if changed data is written to a new location, which takes free space.
    pub fn is_copied_on_write(&self) -> bool {
        const BTRFS: i64 = 0x9123_683e;
        let on_btrfs =
            rustix::fs::fstatfs(self.descriptor()).is_ok_and(|stat| stat.f_type == BTRFS);
        let flags = || rustix::fs::ioctl_getflags(self.descriptor());
        on_btrfs && flags().is_ok_and(|flags| !flags.contains(rustix::fs::IFlags::NOCOW))
    }

    /// Writes a page, runs `body`, and truncates the file. Only for an empty file.
    pub fn with_a_page<R>(&self, body: impl FnOnce() -> R) -> io::Result<R> {
        self.check_limit(PAGE_SIZE as u64)?;
        let page = Page(PROBE);
        let sent = retry_on_intr(|| rustix::io::pwrite(self.descriptor(), &page.0, 0))?;
        if sent != PAGE_SIZE {
            return Err(Errno::IO.into());
        }
        let result = body();
        retry_on_intr(|| rustix::fs::ftruncate(self.descriptor(), 0))?;
        Ok(result)
    }

    pub fn len_bytes(&self) -> io::Result<u64> {
        // Seeks, because `fstat` reports size 0 for devices.
        Ok(rustix::fs::seek(self.descriptor(), rustix::fs::SeekFrom::End(0))?)
    }

    /// Returns `None` if the kernel does not report whether the device's queue supports polling.
    pub fn queue_polls(&self) -> Option<bool> {
        let stat = rustix::fs::fstat(self.descriptor()).ok()?;
        let is_device = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_block_device();
        let device = if is_device { stat.st_rdev } else { stat.st_dev };
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        // A partition has no queue; its disk has one.
        ["queue/io_poll", "../queue/io_poll"].iter().find_map(|place| {
            let path = format!("/sys/dev/block/{major}:{minor}/{place}");
            std::fs::read_to_string(path).ok().map(|text| text.trim() == "1")
        })
    }

    /// Writes a page and reads it back: with O_DIRECT transfers can fail after a successful open.
    fn probe(&self) -> io::Result<()> {
        let mut read = Page([0; PAGE_SIZE]);
        match self.with_a_page(|| self.read_at(&mut read.0, 0))?? {
            PAGE_SIZE if read.0 == PROBE => Ok(()),
            _ => Err(Errno::IO.into()),
        }
    }

    /// Reads once, maybe less than the buffer; retries interruptions.
    pub fn read_at(&self, buf: &mut [u8], offset_bytes: u64) -> io::Result<usize> {
        let buffer = (buf.as_mut_ptr() as usize, buf.len());
        // SAFETY: the kernel writes at most `buf.len()` bytes to the exclusively borrowed `buf`.
        unsafe { self.transfer(libc::SYS_pread64, buffer, offset_bytes) }
    }

    /// Writes once, maybe less than the buffer; retries interruptions.
    pub fn write_at(&self, buf: &[u8], offset_bytes: u64) -> io::Result<usize> {
        self.check_limit(offset_bytes + buf.len() as u64)?;
        self.for_changing()?;
        let buffer = (buf.as_ptr() as usize, buf.len());
        // SAFETY: the kernel reads at most `buf.len()` bytes from `buf`.
        unsafe { self.transfer(libc::SYS_pwrite64, buffer, offset_bytes) }
    }

    /// # Safety
    /// `number` is `SYS_pread64` or `SYS_pwrite64`. The buffer (address, length) is writable if the
    /// call writes to it.
    unsafe fn transfer(&self, number: i64, buffer: (usize, usize), at: u64) -> io::Result<usize> {
        let args = [self.descriptor().as_raw_fd() as usize, buffer.0, buffer.1, at as usize, 0, 0];
        // SAFETY: the caller promises that the buffer is writable if the call writes to it.
        uninterrupted(|| unsafe { raw::syscall(number, args) })
    }

    /// Fails with EFBIG beyond the largest file size (`ulimit -f`): the kernel would send SIGXFSZ,
    /// which is meant for the program's own writes. Not cached: the program may change its limit.
    pub fn check_limit(&self, end_bytes: u64) -> io::Result<()> {
        let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: 0 };
        let args = [0, libc::RLIMIT_FSIZE as usize, 0, &raw mut limit as usize, 0, 0];
        // SAFETY: the call changes no limit; the kernel writes one `rlimit` to `limit`.
        unsafe { raw::syscall(libc::SYS_prlimit64, args) };
        if end_bytes > limit.rlim_cur && !self.is_device {
            return Err(io::Error::from_raw_os_error(libc::EFBIG));
        }
        Ok(())
    }

    /// Allocates storage, so that later writes have space. If the file system cannot do that, only
    /// extends the file, and a later write may fail with ENOSPC.
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

    /// Makes a range read as zeroes. Fails with EOPNOTSUPP if the file system has no holes.
    pub fn punch(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let fd = self.for_changing()?;
        fallocate(fd, flags, offset_bytes, length_bytes)
    }

    pub fn truncate(&self, offset_bytes: u64) -> io::Result<()> {
        let fd = self.for_changing()?;
        ftruncate(fd, offset_bytes)
    }

    /// Discards on a device, punches a hole in a file. Fails with EOPNOTSUPP without support.
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

    /// Returns the number of bytes that this user may still allocate on the file system.
    pub fn free_bytes(&self) -> io::Result<u64> {
        let mut stat: libc::statfs = crate::AnyBits::zeroed();
        let args = [self.descriptor().as_raw_fd() as usize, &raw mut stat as usize, 0, 0, 0, 0];
        // SAFETY: the kernel writes one `struct statfs` to `stat`.
        uninterrupted(|| unsafe { raw::syscall(libc::SYS_fstatfs, args) })?;
        let block = if stat.f_frsize > 0 { stat.f_frsize } else { stat.f_bsize };
        Ok(stat.f_bavail.saturating_mul(block as u64))
    }

    /// Returns true if transfers bypass the page cache, and so need aligned buffers.
    pub fn is_direct(&self) -> bool {
        self.direct
    }
}

// The calls below go through the engine's gate: the program's filters may refuse rustix's.

fn uninterrupted(call: impl Fn() -> isize) -> io::Result<usize> {
    loop {
        match call() {
            result if result == -(libc::EINTR as isize) => {}
            result => return raw::check(result),
        }
    }
}

fn fallocate(fd: impl AsFd, flags: FallocateFlags, at: u64, len: u64) -> io::Result<()> {
    let fd = fd.as_fd().as_raw_fd() as usize;
    let args = [fd, flags.bits() as usize, at as usize, len as usize, 0, 0];
    // SAFETY: the call takes no pointers.
    uninterrupted(|| unsafe { raw::syscall(libc::SYS_fallocate, args) }).map(drop)
}

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
            // SAFETY: `drop` runs once, and does not use `fd` afterwards.
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
    use tempfile::tempdir;

    fn page_of(byte: u8) -> Page {
        Page([byte; PAGE_SIZE])
    }

    #[test]
    fn unnamed_file_round_trips() {
        let scratch = tempdir().unwrap();
        let file = SwapFile::open(scratch.path()).unwrap();
        assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
        file.allocate(0, 1 << 20).unwrap();
        assert_eq!(file.write_at(&page_of(7).0, 8192).unwrap(), PAGE_SIZE);
        let mut read = page_of(0);
        assert_eq!(file.read_at(&mut read.0, 8192).unwrap(), PAGE_SIZE);
        assert!(read.0 == page_of(7).0);
    }

    #[test]
    fn reader_has_read_only_access() {
        let scratch = tempdir().unwrap();
        let file = SwapFile::open(scratch.path()).unwrap();
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
    fn probed_file_is_empty() {
        let scratch = tempdir().unwrap();
        let file = SwapFile::open(scratch.path()).unwrap();
        assert_eq!(file.read_at(&mut page_of(1).0, 0).unwrap(), 0);
    }

    #[test]
    fn buffered_files_round_trip() {
        let scratch = tempdir().unwrap();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = rustix::fs::open(scratch.path(), flags, Mode::empty()).unwrap();
        let file = SwapFile::open_with(&parent, false).unwrap();
        assert!(!file.is_direct());
        assert_eq!(file.write_at(b"abc", 5).unwrap(), 3);
        let mut read = [0; 3];
        assert_eq!(file.read_at(&mut read, 5).unwrap(), 3);
        assert_eq!(&read, b"abc");
    }

    #[test]
    fn descriptor_is_high_and_closes_on_exec() {
        let scratch = tempdir().unwrap();
        let file = SwapFile::open(scratch.path()).unwrap();
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let fd = file.as_fd().as_raw_fd();
        assert!(fd >= 900 || limit.is_some_and(|limit| limit < 1800));
        assert!(own_descriptors::contains(fd));
        let flags = rustix::io::fcntl_getfd(&file).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    }

    #[test]
    fn punched_range_reads_as_zeroes() {
        let scratch = tempdir().unwrap();
        let file = SwapFile::open(scratch.path()).unwrap();
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
        let scratch = tempdir().unwrap();
        let file = SwapFile::open(scratch.path()).unwrap();
        file.extend(1 << 20).unwrap();
        file.extend(4096).unwrap();
        assert_eq!(rustix::fs::fstat(&file).unwrap().st_size, 1 << 20);
        assert!(file.free_bytes().unwrap() > 0);
    }

    #[test]
    fn errors_contain_path_and_remedy() {
        let scratch = tempdir().unwrap();
        let missing = scratch.path().join("missing");
        let error = SwapFile::open(&missing).unwrap_err();
        assert!(matches!(error, FileError::NoSuchDirectory { .. }));
        let text = error.to_string();
        assert!(text.contains(missing.to_str().unwrap()) && text.contains("create it"), "{text}");

        let plain = scratch.path().join("plain");
        std::fs::write(&plain, b"").unwrap();
        let error = SwapFile::open(&plain).unwrap_err();
        assert!(matches!(error, FileError::NotADirectory { .. }), "{error}");
    }

    #[test]
    fn unwritable_directory_is_rejected() {
        // Not even root can create a file in this directory.
        let error = SwapFile::open(Path::new("/proc/self")).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("/proc/self") && text.contains("another"), "{text}");
    }

    #[test]
    fn reused_descriptor_number_is_not_touched() {
        let scratch = tempdir().unwrap();
        let mut file = SwapFile::open(scratch.path()).unwrap();
        file.allocate(0, 1 << 20).unwrap();
        let path = scratch.path().join("precious");
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
