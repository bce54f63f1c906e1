//! The managed window: one large reservation in which all managed memory
//! lies, and the staging frames through which pages leave it.
//!
//! A page is named by its number in the window, so "is this pointer ours" is
//! one mask and "which entry" is one subtraction and a shift. The window lies
//! where the kernel does not place mappings by itself ([`crate::aslr`]), which
//! also keeps the guard's filter from matching in a program that has no window.
//!
//! Everything here is memory of the *program*: no Rust reference ever points
//! into the window, so taking pages out or putting them in cannot invalidate
//! one. Staging frames are the exception: a full frame is read through
//! [`StagedFrame`], which owns it while it lives.

mod reservation;
mod page_states;
mod page_moves;
mod mapping_budget;
mod page_access;
mod adoption;

use crate::faults::{self, Faults};
use crate::memory::{PAGE_SIZE, Page};
use crate::uffd::{self, Partial, Uffd};
use crate::{futex, program_filter, raw};
use page_access::PageAccess;
use reservation::{RESERVE, frame_states, mmap, reserve_range, settle};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering};

pub use crate::uffd::Writes;
pub use adoption::Occupied;
pub use mapping_budget::Crowding;
pub use reservation::{
    Part, Protection, READ_WRITE, WINDOW_SIZES, WindowError, among_many, longest_at, settle_gate,
    within,
};

/// Runs of pages that are dropped in one call.
const DISCARD_RUNS: usize = 64;

const EMPTY: u8 = 0;
const FULL: u8 = 1;
const CLAIMED: u8 = 2;

/// The managed window.
///
/// ```no_run
/// use softswap_sys::window::{Window, Writes};
///
/// let window = Window::reserve(1, false)?;
/// assert_eq!(window.install(3, &[7; 4096], Writes::Allowed).pages, 1);
/// assert!(window.is_present(3)?);
/// window.discard(3, 1)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Window {
    base: usize,
    len: usize,
    mechanism: Mechanism,
    use_move: bool,
    staging: usize,
    frames: &'static [AtomicU8],
    /// Memory that the program had there before; `None` for a window of its own.
    adopted: Option<Vec<Part>>,
}

/// How the faults of a window are taken.
#[derive(Debug)]
enum Mechanism {
    Userfaultfd(Uffd),
    Protection(PageAccess),
}

impl Mechanism {
    /// For the window of `len` bytes from `base`.
    fn open(base: usize, len: usize) -> Result<Mechanism, WindowError> {
        match faults::in_force() {
            Faults::Protection => PageAccess::open(base, len)
                .map(Mechanism::Protection)
                .map_err(WindowError::Protection),
            Faults::Userfaultfd | Faults::Auto => {
                Uffd::open_sigbus().map(Mechanism::Userfaultfd).map_err(WindowError::Userfaultfd)
            }
        }
    }

    fn has_move(&self) -> bool {
        match self {
            Mechanism::Userfaultfd(uffd) => uffd.has_move(),
            Mechanism::Protection(_) => false,
        }
    }

    /// The protection of memory in the window before a page is put in.
    fn protection_of_absent(&self) -> Protection {
        match self {
            Mechanism::Userfaultfd(_) => READ_WRITE,
            Mechanism::Protection(_) => libc::PROT_NONE,
        }
    }
}

/// How the program may access a page.
///
/// ```
/// use softswap_sys::window::Touch;
/// assert_ne!(Touch::Absent, Touch::Forbidden);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Touch {
    /// The page is out, or its writes are caught: the engine brings it in or lets it be written.
    Absent,
    /// The program itself has forbidden the access.
    Forbidden,
}

impl Window {
    /// Reserves the window and `staging_frames` frames, and opens userfaultfd
    /// on both. `avoid_move`: behave as on a kernel without UFFDIO_MOVE.
    pub fn reserve(staging_frames: usize, avoid_move: bool) -> Result<Window, WindowError> {
        let (base, len) = reserve_range(settle())?;
        let mechanism = match Mechanism::open(base, len) {
            Ok(mechanism) => mechanism,
            Err(error) => {
                // SAFETY: the range was mapped just now, and nothing refers to it.
                unsafe { raw::syscall(libc::SYS_munmap, [base, len, 0, 0, 0, 0]) };
                return Err(error);
            }
        };
        let staging_len = staging_frames * PAGE_SIZE;
        let fail = |error| WindowError::Reserve { bytes: staging_len, error };
        // SAFETY: without MAP_FIXED the mapping overlaps nothing.
        let staging = unsafe { mmap(0, staging_len, READ_WRITE, RESERVE) }.map_err(fail)?;
        let window = Window {
            base,
            len,
            use_move: mechanism.has_move() && !avoid_move,
            mechanism,
            staging,
            frames: frame_states(staging_frames).map_err(fail)?,
            adopted: None,
        };
        window.prepare().map_err(|error| window.refused(error))?;
        Ok(window)
    }

    /// Opens a fresh userfaultfd over the window and staging in a forked
    /// child: the kernel drops the registration on fork. `managed` lists the
    /// (first page, count) ranges of the window that no foreign mapping covers.
    ///
    /// # Errors
    /// The kernel's refusal; the child must then not touch the window.
    pub fn reopen_after_fork(&self, managed: &[(u64, usize)]) -> io::Result<()> {
        match &self.mechanism {
            Mechanism::Userfaultfd(uffd) => uffd.reopen()?,
            Mechanism::Protection(access) => {
                access.reopen();
                return Ok(());
            }
        }
        for (page, count) in managed {
            self.register(self.address(*page, *count), count * PAGE_SIZE)?;
        }
        self.register(self.staging, self.frames.len() * PAGE_SIZE)
    }

    /// Whether a forked child inherits ranges of the window, given as (first
    /// page, count), and the staging frames. It does not unless told so: a
    /// child that could not bring its pages in would read zeroes.
    pub fn inherit(&self, managed: &[(u64, usize)], on: bool) -> io::Result<()> {
        let advice = if on { libc::MADV_DOFORK } else { libc::MADV_DONTFORK };
        for (page, count) in managed {
            self.advise(self.address(*page, *count), count * PAGE_SIZE, advice)?;
        }
        self.advise(self.staging, self.frames.len() * PAGE_SIZE, advice)
    }

    fn prepare(&self) -> io::Result<()> {
        if let Mechanism::Protection(access) = &self.mechanism {
            access.close_all()?;
        }
        for (start, len) in [(self.base, self.len), (self.staging, self.frames.len() * PAGE_SIZE)] {
            self.prepare_range(start, len)?;
        }
        Ok(())
    }

    fn prepare_range(&self, start: usize, len: usize) -> io::Result<()> {
        self.advise_whole(start, len)?;
        self.register(start, len)
    }

    /// The error of a window whose faults cannot be taken.
    fn refused(&self, error: io::Error) -> WindowError {
        match &self.mechanism {
            Mechanism::Userfaultfd(_) => WindowError::Userfaultfd(error),
            Mechanism::Protection(_) => WindowError::Protection(error),
        }
    }

    /// Has the faults of a range, of the window or of staging, arrive by userfaultfd.
    fn register(&self, start: usize, len: usize) -> io::Result<()> {
        let Mechanism::Userfaultfd(uffd) = &self.mechanism else { return Ok(()) };
        // SAFETY: the methods of this file name ranges of the window and of staging only.
        // No Rust reference points into the window, and into staging those of
        // `StagedFrame` only, whose page stays while they live.
        unsafe { uffd.register(start, len) }
    }

    /// What holds for all managed memory that was mapped just now.
    fn advise_whole(&self, start: usize, len: usize) -> io::Result<()> {
        // A huge page would bring back pages that were never restored.
        self.advise(start, len, libc::MADV_NOHUGEPAGE)?;
        // A core dump would walk the whole reservation, and what is
        // swapped out would be missing from it anyway.
        self.advise(start, len, libc::MADV_DONTDUMP)?;
        self.advise(start, len, libc::MADV_DONTFORK)?;
        // Where all of a process is merged (prctl): pages that are lose their
        // protection (Linux 6.18). Refused only where nothing can be merged.
        let _ = self.advise(start, len, libc::MADV_UNMERGEABLE);
        Ok(())
    }

    /// The window's first address.
    #[must_use]
    pub fn base(&self) -> usize {
        self.base
    }

    /// The window's length in bytes: a power of two, of which `base` is a multiple.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.len
    }

    /// Pages in the window.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.len / PAGE_SIZE
    }

    /// Whether an address lies in the window.
    #[must_use]
    #[inline]
    pub fn contains(&self, address: usize) -> bool {
        address & !(self.len - 1) == self.base
    }

    /// Whether pages leave by UFFDIO_MOVE.
    #[must_use]
    pub fn uses_move(&self) -> bool {
        self.use_move
    }

    /// Returns true if [`Window::take_out`] takes several pages at once.
    #[must_use]
    pub fn takes_runs(&self) -> bool {
        self.use_move || matches!(self.mechanism, Mechanism::Protection(_))
    }

    /// How near the process is to its limit on mappings, which the protections of pages use up.
    #[must_use]
    pub fn crowding(&self) -> Crowding {
        match &self.mechanism {
            Mechanism::Userfaultfd(_) => Crowding::None,
            Mechanism::Protection(access) => access.crowding(),
        }
    }

    /// Returns the way in which faults of the window are taken, never [`Faults::Auto`].
    #[must_use]
    pub fn faults(&self) -> Faults {
        match &self.mechanism {
            Mechanism::Userfaultfd(_) => Faults::Userfaultfd,
            Mechanism::Protection(_) => Faults::Protection,
        }
    }

    /// Returns the mappings that the protections of pages make, an upper bound: each run of pages
    /// of equal protection is one. 0 with userfaultfd.
    #[must_use]
    pub fn mappings(&self) -> usize {
        match &self.mechanism {
            Mechanism::Userfaultfd(_) => 0,
            Mechanism::Protection(access) => access.mappings(),
        }
    }

    /// Returns the limit on [`Window::mappings`]: nine tenths of `vm.max_map_count`, less the
    /// program's own mappings at the last count. 0 with userfaultfd.
    #[must_use]
    pub fn mappings_limit(&self) -> usize {
        match &self.mechanism {
            Mechanism::Userfaultfd(_) => 0,
            Mechanism::Protection(access) => access.mappings_limit(),
        }
    }

    /// Decides whose a touch is that raised SIGSEGV: a page that is out, or one that the program
    /// itself has protected. `access` is one of the bits of a [`Protection`].
    #[must_use]
    pub fn touch(&self, page: u64, access: Protection) -> Touch {
        let Mechanism::Protection(pages) = &self.mechanism else { return Touch::Forbidden };
        let page = page as usize;
        if !pages.is_allowed(page, access) {
            return Touch::Forbidden;
        }
        if pages.is_present(page) {
            pages.renew(page);
        }
        Touch::Absent
    }

    fn address(&self, page: u64, count: usize) -> usize {
        assert!(page as usize + count <= self.pages(), "page outside the window");
        self.base + page as usize * PAGE_SIZE
    }

    /// Puts whole pages of `bytes` in at `page` and after, where nothing is yet.
    pub fn install(&self, page: u64, bytes: &[u8], writes: Writes) -> Partial {
        let address = self.address(page, bytes.len() / PAGE_SIZE);
        match &self.mechanism {
            Mechanism::Userfaultfd(uffd) => uffd.copy(address, bytes, writes),
            Mechanism::Protection(access) => access.install(page as usize, bytes, writes),
        }
    }

    /// Lifts [`Writes::Caught`] from a page that is present.
    pub fn allow_writes(&self, page: u64) -> io::Result<()> {
        self.set_writes(page, 1, Writes::Allowed)
    }

    /// Says what writes to those of `count` pages do that are present. Catching
    /// them costs one flush of the processors' translations, however many they
    /// are.
    pub fn set_writes(&self, page: u64, count: usize, writes: Writes) -> io::Result<()> {
        let address = self.address(page, count);
        match &self.mechanism {
            Mechanism::Userfaultfd(uffd) => {
                uffd.write_protect(address, count * PAGE_SIZE, writes == Writes::Caught)
            }
            Mechanism::Protection(access) => access.set_writes(numbers(page, count), writes),
        }
    }

    /// Maps `count` pages of zeroes at `page`.
    pub fn install_zero(&self, page: u64, count: usize) -> Partial {
        let address = self.address(page, count);
        match &self.mechanism {
            Mechanism::Userfaultfd(uffd) => uffd.zero(address, count * PAGE_SIZE),
            Mechanism::Protection(access) => access.open_up(numbers(page, count), false),
        }
    }

    /// Drops the content of `count` pages.
    pub fn discard(&self, page: u64, count: usize) -> io::Result<()> {
        if let Mechanism::Protection(access) = &self.mechanism {
            access.close(&numbers(page, count))?;
        }
        self.discard_foreign(page, count)
    }

    /// As [`Window::discard`], of a mapping that is not managed.
    pub fn discard_foreign(&self, page: u64, count: usize) -> io::Result<()> {
        self.advise(self.address(page, count), count * PAGE_SIZE, libc::MADV_DONTNEED)
    }

    /// Drops the content of pages in ascending order, wherever they lie: in one
    /// call, after which other processors forget all of them at once (Linux
    /// 6.16), or run by run where a process may not give itself such advice.
    /// Returns how many of them, from the first on, are gone.
    pub fn discard_each(&self, pages: &[u64]) -> usize {
        let mut gone = 0;
        for pages in pages.chunks(DISCARD_RUNS) {
            let (runs, count) = self.runs(pages);
            if let Mechanism::Protection(access) = &self.mechanism
                && !runs[..count].iter().all(|run| access.close(&self.numbers_of(run)).is_ok())
            {
                break;
            }
            let dropped = self.drop_runs(&runs[..count]);
            gone += dropped;
            if dropped < pages.len() {
                break;
            }
        }
        gone
    }

    /// Copies writable pages to `copies` and drops them by one call, with page protection. The
    /// caller has claimed them, at most [`DISCARD_RUNS`] in ascending order. Returns how many were
    /// taken, from the first on.
    pub fn take_each(&self, pages: &[u64], copies: &mut [[u8; PAGE_SIZE]]) -> usize {
        let Mechanism::Protection(access) = &self.mechanism else { return 0 };
        let (runs, count) = self.runs(pages);
        let (mut copied_runs, mut copied) = (0, 0);
        for run in &runs[..count] {
            let run = self.numbers_of(run);
            let to = copies[copied..copied + run.len()].as_flattened_mut();
            if access.copy_out(run.start, to).is_err() {
                break;
            }
            copied += run.len();
            copied_runs += 1;
        }
        let taken = self.drop_runs(&runs[..copied_runs]);
        for page in &pages[taken..copied] {
            access.open_up(numbers(*page, 1), false);
        }
        taken
    }

    /// Drops the content of runs, and returns how many pages that are, from the first on.
    fn drop_runs(&self, runs: &[libc::iovec]) -> usize {
        match self.advise_runs(runs) {
            Ok(bytes) => bytes / PAGE_SIZE,
            Err(_) => self.discard_runs(runs),
        }
    }

    /// What a list of pages comes to in runs of neighbours, and how many.
    pub(crate) fn runs(&self, pages: &[u64]) -> ([libc::iovec; DISCARD_RUNS], usize) {
        let none = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let (mut runs, mut count) = ([none; DISCARD_RUNS], 0);
        for (at, page) in pages.iter().enumerate() {
            if at > 0 && pages[at - 1] + 1 == *page {
                runs[count - 1].iov_len += PAGE_SIZE;
            } else {
                let iov_base = self.address(*page, 1) as *mut _;
                runs[count] = libc::iovec { iov_base, iov_len: PAGE_SIZE };
                count += 1;
            }
        }
        (runs, count)
    }

    /// The pages of a run.
    fn numbers_of(&self, run: &libc::iovec) -> Range<usize> {
        numbers(((run.iov_base as usize - self.base) / PAGE_SIZE) as u64, run.iov_len / PAGE_SIZE)
    }

    fn advise_runs(&self, runs: &[libc::iovec]) -> io::Result<usize> {
        // By a number of its own (Linux 6.14): a descriptor would name the parent
        // in a forked child.
        let advice = libc::MADV_DONTNEED as usize;
        let args = [raw::PIDFD_SELF as usize, runs.as_ptr() as usize, runs.len(), advice, 0, 0];
        // SAFETY: the kernel reads `runs`, which lie in the window: no Rust reference points
        // to what it drops.
        raw::check(unsafe { raw::syscall(libc::SYS_process_madvise, args) })
    }

    /// Run by run. Returns how many pages are gone.
    pub(crate) fn discard_runs(&self, runs: &[libc::iovec]) -> usize {
        let drop_run = |run: &&libc::iovec| {
            self.advise(run.iov_base as usize, run.iov_len, libc::MADV_DONTNEED).is_ok()
        };
        runs.iter().take_while(drop_run).map(|run| run.iov_len / PAGE_SIZE).sum()
    }

    /// Changes what the program may do with `count` pages.
    pub fn protect(&self, page: u64, count: usize, protection: Protection) -> io::Result<()> {
        let address = self.address(page, count);
        if let Mechanism::Protection(access) = &self.mechanism {
            return access.protect(&numbers(page, count), protection);
        }
        let args = [address, count * PAGE_SIZE, protection as usize, 0, 0, 0];
        // SAFETY: the range lies in the window, into which no Rust reference points.
        raw::check(unsafe { raw::syscall(libc::SYS_mprotect, args) }).map(drop)
    }

    /// Has the kernel keep `count` pages that are present, or will be, and count
    /// them as locked memory of the process; its limits and privileges decide.
    pub fn lock(&self, page: u64, count: usize) -> io::Result<()> {
        // It could not bring them in by itself.
        let flags = libc::MLOCK_ONFAULT as usize;
        let args = [self.address(page, count), count * PAGE_SIZE, flags, 0, 0, 0];
        // SAFETY: the call takes no pointers that are followed, and changes no content.
        raw::check(unsafe { raw::syscall(libc::SYS_mlock2, args) }).map(drop)
    }

    /// Ends [`Window::lock`].
    pub fn unlock(&self, page: u64, count: usize) -> io::Result<()> {
        let args = [self.address(page, count), count * PAGE_SIZE, 0, 0, 0, 0];
        // SAFETY: the call takes no pointers that are followed, and changes no content.
        raw::check(unsafe { raw::syscall(libc::SYS_munlock, args) }).map(drop)
    }

    /// Gives `count` pages back to the window after a foreign mapping lay there.
    pub fn restore(&self, page: u64, count: usize) -> io::Result<()> {
        let (start, len) = (self.address(page, count), count * PAGE_SIZE);
        let protection = self.mechanism.protection_of_absent();
        // SAFETY: the range lies in the window, into which no Rust reference points.
        unsafe { mmap(start, len, protection, RESERVE | libc::MAP_FIXED)? };
        if let Mechanism::Protection(access) = &self.mechanism {
            access.forget(&numbers(page, count));
        }
        self.advise_whole(start, len)?;
        self.register(start, len)
    }

    /// Returns true if there is a page at `page`: one that the kernel has mapped, or maps by itself.
    pub fn is_present(&self, page: u64) -> io::Result<bool> {
        if let Mechanism::Protection(access) = &self.mechanism {
            return Ok(access.is_present(page as usize));
        }
        let mut present = [0];
        uffd::present(self.address(page, 1), PAGE_SIZE, &mut present)?;
        Ok(present[0] & 1 == 1)
    }

    /// Makes a page that fork left shared the program's own again, without
    /// changing it. Fails where the page may not be written.
    pub fn unshare(&self, page: u64) -> io::Result<()> {
        // Populating for writing breaks the sharing; on a page that is absent
        // or protected it is an error instead of a signal.
        self.advise(self.address(page, 1), PAGE_SIZE, libc::MADV_POPULATE_WRITE)
    }

    /// Moves pages that are present to another place in the window.
    pub fn relocate(&self, to: u64, from: u64, count: usize) -> Partial {
        let (to, from) = (self.address(to, count), self.address(from, count));
        self.move_pages(to, from, count * PAGE_SIZE)
    }

    fn move_pages(&self, to: usize, from: usize, len: usize) -> Partial {
        match &self.mechanism {
            Mechanism::Userfaultfd(uffd) => uffd.move_pages(to, from, len),
            Mechanism::Protection(_) => {
                Partial { pages: 0, error: Some(io::ErrorKind::Unsupported.into()) }
            }
        }
    }

    /// Copies a present page whose writes are caught, whatever its protection is.
    pub fn read_page(&self, page: u64, to: &mut [u8; PAGE_SIZE]) -> io::Result<()> {
        let from = self.address(page, 1);
        if let Mechanism::Protection(access) = &self.mechanism {
            return access.read(page as usize, to);
        }
        if self.copy_page(from, to).is_ok() {
            return Ok(());
        }
        self.take_unreadable(from, to)?;
        self.put_back(page, to, Writes::Caught);
        Ok(())
    }

    /// Puts a page back that was taken from there: `bytes` is all there is of it.
    fn put_back(&self, page: u64, bytes: &[u8; PAGE_SIZE], writes: Writes) {
        if self.install(page, bytes, writes).pages == 0 {
            page_moves::stop("a page cannot go back");
        }
    }

    /// Moves `count` pages out of the program's reach into the frames from
    /// `frame`, which must be empty. On return the first `pages` frames are full.
    pub fn take_out(&self, page: u64, count: usize, frame: usize) -> Partial {
        let frames = &self.frames[frame..frame + count];
        assert!(frames.iter().all(|f| f.load(Ordering::Acquire) == EMPTY), "frame in use");
        let to = self.staging + frame * PAGE_SIZE;
        let from = self.address(page, count);
        let partial = match &self.mechanism {
            Mechanism::Userfaultfd(uffd) => uffd.move_pages(to, from, count * PAGE_SIZE),
            Mechanism::Protection(access) => {
                // SAFETY: the frames are empty, so nothing refers to their bytes.
                let to =
                    unsafe { std::slice::from_raw_parts_mut(to as *mut u8, count * PAGE_SIZE) };
                let error = access.take(page as usize, to).err();
                Partial { pages: if error.is_none() { count } else { 0 }, error }
            }
        };
        for state in &frames[..partial.pages] {
            state.store(FULL, Ordering::Release);
        }
        partial
    }

    /// Takes one page out by write-protecting and copying it: for kernels
    /// without MOVE, and for pages that MOVE refuses (other protection).
    pub fn take_out_by_copy(&self, page: u64, frame: usize, scratch: &mut Page) -> io::Result<()> {
        let state = &self.frames[frame];
        assert!(state.load(Ordering::Acquire) == EMPTY, "frame in use");
        // Protected first: a store between copy and drop would be lost.
        self.set_writes(page, 1, Writes::Caught)?;
        if let Err(error) = self.take_page(page, &mut scratch.0) {
            let _ = self.allow_writes(page);
            return Err(error);
        }
        if let Err(error) = self.copy_to(frame, &scratch.0) {
            self.put_back(page, &scratch.0, Writes::Allowed);
            return Err(error);
        }
        state.store(FULL, Ordering::Release);
        Ok(())
    }

    /// Fills an empty frame with a copy of a page that is the only one.
    pub fn fill_frame(&self, frame: usize, bytes: &[u8; PAGE_SIZE]) -> io::Result<()> {
        let state = &self.frames[frame];
        assert!(state.load(Ordering::Acquire) == EMPTY, "frame in use");
        self.copy_to(frame, bytes)?;
        state.store(FULL, Ordering::Release);
        Ok(())
    }

    fn copy_to(&self, frame: usize, bytes: &[u8; PAGE_SIZE]) -> io::Result<()> {
        let to = self.staging + frame * PAGE_SIZE;
        match &self.mechanism {
            Mechanism::Userfaultfd(uffd) => {
                uffd.copy(to, bytes, Writes::Allowed).error.map_or(Ok(()), Err)
            }
            Mechanism::Protection(_) => {
                // SAFETY: the frame is empty, so nothing refers to its bytes, and can be written.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to as *mut u8, PAGE_SIZE) };
                Ok(())
            }
        }
    }

    fn copy_page(&self, from: usize, to: &mut [u8; PAGE_SIZE]) -> io::Result<()> {
        let local = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: PAGE_SIZE };
        let remote = libc::iovec { iov_base: from as *mut _, iov_len: PAGE_SIZE };
        // A process may always ask this about itself, whoever it runs as.
        if program_filter::is_in_force() {
            return Err(io::Error::from_raw_os_error(libc::EPERM));
        }
        let pid = raw::current_process() as usize;
        let (local, remote) = (&raw const local as usize, &raw const remote as usize);
        // SAFETY: the kernel writes at most a page to `to`, which is borrowed exclusively,
        // and reads the page at `from`, or answers EFAULT.
        let read =
            unsafe { raw::syscall(libc::SYS_process_vm_readv, [pid, local, 1, remote, 1, 0]) };
        whole_page(raw::check(read)?)
    }

    /// Copies a present page, whatever its protection is, and drops it. On an
    /// error it is still there.
    pub fn take_page(&self, page: u64, to: &mut [u8; PAGE_SIZE]) -> io::Result<()> {
        let from = self.address(page, 1);
        if let Mechanism::Protection(access) = &self.mechanism {
            return access.take(page as usize, to);
        }
        match self.copy_page(from, to) {
            Ok(()) => self.advise(from, PAGE_SIZE, libc::MADV_DONTNEED),
            Err(_) => self.take_unreadable(from, to),
        }
    }

    /// Takes out a page that its protection keeps from being read: the page
    /// moves to another place, where it can be. What is left behind is
    /// protected as before, and empty.
    fn take_unreadable(&self, from: usize, to: &mut [u8; PAGE_SIZE]) -> io::Result<()> {
        let mut present = [0];
        uffd::present(from, PAGE_SIZE, &mut present)?;
        if present[0] & 1 == 0 {
            // What is not there would read as zeroes elsewhere.
            return Err(io::Error::from_raw_os_error(libc::EFAULT));
        }
        let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP) as usize;
        // SAFETY: a page of the window, into which no Rust reference points, goes to an
        // address of the kernel's choice, where nothing is.
        let moved = raw::check(unsafe {
            raw::syscall(libc::SYS_mremap, [from, PAGE_SIZE, PAGE_SIZE, flags, 0, 0])
        })?;
        let readable = [moved, PAGE_SIZE, libc::PROT_READ as usize, 0, 0, 0];
        // SAFETY: the page was moved there just now, and nobody else knows of it.
        if unsafe { raw::syscall(libc::SYS_mprotect, readable) } != 0 {
            raw::write_stderr(b"softswap: internal error: a page cannot be read; stopping the program rather than losing data\n");
            std::process::abort();
        }
        // SAFETY: `moved` is a page that may be read, of which nobody else knows, and apart
        // from `to`. It is unmapped once it has been copied.
        unsafe {
            std::ptr::copy_nonoverlapping(moved as *const u8, to.as_mut_ptr(), PAGE_SIZE);
            raw::syscall(libc::SYS_munmap, [moved, PAGE_SIZE, 0, 0, 0, 0]);
        }
        Ok(())
    }

    /// Claims a full frame for reading or for moving back; `None` when it is
    /// empty or someone else has it.
    #[must_use]
    pub fn claim_frame(&self, frame: usize) -> Option<StagedFrame<'_>> {
        self.frames[frame]
            .compare_exchange(FULL, CLAIMED, Ordering::AcqRel, Ordering::Acquire)
            .ok()
            .map(|_| StagedFrame { window: self, frame })
    }

    /// Empties `count` frames from `frame`, dropping what is in them, in one
    /// call. Returns how many were full. A frame that is claimed is waited for.
    pub fn empty_frames(&self, frame: usize, count: usize) -> usize {
        let mut full = 0;
        let frames = &self.frames[frame..frame + count];
        for state in frames {
            let mut turns = 0;
            while let Err(seen) =
                state.compare_exchange(FULL, CLAIMED, Ordering::AcqRel, Ordering::Acquire)
            {
                if seen == EMPTY {
                    break;
                }
                futex::relax(&mut turns);
            }
            full += usize::from(state.load(Ordering::Acquire) == CLAIMED);
        }
        let start = self.staging + frame * PAGE_SIZE;
        // Failing would only mean that the frames stay populated; then they
        // must not be used again.
        let dropped = self.advise(start, count * PAGE_SIZE, libc::MADV_DONTNEED).is_ok();
        for state in frames {
            if dropped {
                state.store(EMPTY, Ordering::Release);
            }
        }
        full
    }

    fn advise(&self, start: usize, len: usize, advice: i32) -> io::Result<()> {
        // SAFETY: the methods of this file name ranges of the window, and of staging frames
        // that are empty or claimed for dropping, only: no Rust reference points there.
        raw::check(unsafe {
            raw::syscall(libc::SYS_madvise, [start, len, advice as usize, 0, 0, 0])
        })
        .map(drop)
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        let window = (self.base, self.len);
        let staging = (self.staging, self.frames.len() * PAGE_SIZE);
        // The program's memory is the program's again.
        if let (Mechanism::Protection(_), Some(parts)) = (&self.mechanism, &self.adopted) {
            self.hand_back(parts);
        }
        let ours = [window, staging].into_iter().skip(usize::from(self.adopted.is_some()));
        for (start, len) in ours {
            // SAFETY: the range was mapped for this value. No Rust reference points into
            // the window, and those of `StagedFrame`s into staging are gone, since they
            // borrow this value.
            unsafe { raw::syscall(libc::SYS_munmap, [start, len, 0, 0, 0, 0]) };
        }
    }
}

/// A full staging frame, owned: nobody moves or empties it meanwhile.
///
/// ```
/// use softswap_sys::window::Window;
///
/// # fn example(window: &Window) {
/// // Page 3 leaves for frame 0, and comes back.
/// if window.take_out(3, 1, 0).pages == 1 {
///     let frame = window.claim_frame(0).unwrap();
///     println!("it begins with {}", frame.bytes()[0]);
///     frame.give_back(3).unwrap();
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct StagedFrame<'w> {
    window: &'w Window,
    frame: usize,
}

impl StagedFrame<'_> {
    /// The page's content.
    #[must_use]
    pub fn bytes(&self) -> &[u8; PAGE_SIZE] {
        let address = self.window.staging + self.frame * PAGE_SIZE;
        // SAFETY: the frame was FULL, so its page is there, aligned and readable; CLAIMED
        // keeps everyone else from moving, emptying or filling it while `self` lives.
        unsafe { &*(address as *const [u8; PAGE_SIZE]) }
    }

    /// Gives the page back to the program at `page`. On success the frame is
    /// empty if the page was moved, or still full (a copy) if it was copied;
    /// on failure the frame comes back with the error.
    pub fn give_back(self, page: u64) -> Result<(), (Self, io::Error)> {
        let window = self.window;
        let from = window.staging + self.frame * PAGE_SIZE;
        if window.use_move {
            let moved = window.move_pages(window.address(page, 1), from, PAGE_SIZE);
            if moved.pages == 1 {
                window.frames[self.frame].store(EMPTY, Ordering::Release);
                std::mem::forget(self);
                return Ok(());
            }
        }
        match window.install(page, self.bytes(), Writes::Allowed).error {
            None => Ok(()),
            Some(error) => Err((self, error)),
        }
    }
}

impl Drop for StagedFrame<'_> {
    fn drop(&mut self) {
        self.window.frames[self.frame].store(FULL, Ordering::Release);
    }
}

fn numbers(page: u64, count: usize) -> Range<usize> {
    page as usize..page as usize + count
}

fn whole_page(read: usize) -> io::Result<()> {
    if read == PAGE_SIZE { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EFAULT)) }
}

#[cfg(test)]
mod tests;
