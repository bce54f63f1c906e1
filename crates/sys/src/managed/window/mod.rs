//! The managed window, one large reservation that holds all managed memory, and the staging frames
//! through which pages are evicted. No Rust reference points into the window, which is the
//! program's memory, but a full frame is read through [`StagedFrame`], which owns it.

mod reservation;
mod page_states;
mod page_moves;
mod mapping_budget;
mod page_access;
mod adoption;
mod staging_frames;

use crate::faults::{self, Faults};
use crate::memory::{self, PAGE_SIZE, RESERVE, map, unmap};
use crate::uffd::{self, Partial, Uffd};
use crate::{program_filter, raw};
use page_access::PageAccess;
use page_states::DISCARD_PAGES;
use reservation::{frame_states, place_gate_for_window, reserve_range};
use std::io;
use std::ops::Range;
use std::sync::atomic::AtomicU8;

pub use crate::uffd::Writes;
pub use adoption::Occupied;
pub use mapping_budget::MappingPressure;
pub use reservation::{
    Part, Protection, READ_WRITE, WINDOW_SIZES, WindowError, among_many, max_len_at, place_gate,
    within,
};
pub use staging_frames::StagedFrame;

#[derive(Debug)]
pub struct Window {
    base: usize,
    len: usize,
    mechanism: Mechanism,
    use_move: bool,
    staging: usize,
    frames: &'static [AtomicU8],
    /// Mappings that the program had there before; `None` for a newly reserved window.
    adopted: Option<Vec<Part>>,
}

#[derive(Debug)]
enum Mechanism {
    Userfaultfd(Uffd),
    Protection(PageAccess),
}

impl Mechanism {
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
        matches!(self, Mechanism::Userfaultfd(uffd) if uffd.has_move())
    }

    fn protection_of_absent(&self) -> Protection {
        match self {
            Mechanism::Userfaultfd(_) => READ_WRITE,
            Mechanism::Protection(_) => libc::PROT_NONE,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Touch {
    /// The page is absent, or its writes are caught: the engine faults it in or makes it writable.
    Absent,
    /// The program itself has forbidden the access.
    Forbidden,
}

impl Window {
    /// Reserves and registers the window and frames. With `avoid_move`, MOVE is not used.
    pub fn reserve(staging_frames: usize, avoid_move: bool) -> Result<Window, WindowError> {
        let (base, len) = reserve_range(place_gate_for_window())?;
        let mechanism = match Mechanism::open(base, len) {
            Ok(mechanism) => mechanism,
            Err(error) => {
                // SAFETY: the range was mapped just now, and nothing refers to it.
                unsafe { unmap(base, len) };
                return Err(error);
            }
        };
        let staging_len = staging_frames * PAGE_SIZE;
        let fail = |error| WindowError::Reserve { bytes: staging_len, error };
        // SAFETY: without MAP_FIXED the mapping overlaps nothing.
        let staging = unsafe { map(0, staging_len, READ_WRITE, RESERVE) }.map_err(fail)?;
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

    /// Registers the memory again in a forked child: the kernel drops that on fork. `managed` lists
    /// (first page, count) of managed ranges. After an error the child must not access the window.
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

    /// Lets forked children inherit the staging frames and `managed`, or not. Off by default: a
    /// child that cannot fault in its pages would read zeroes.
    pub fn inherit(&self, managed: &[(u64, usize)], on: bool) -> io::Result<()> {
        let advice = if on { libc::MADV_DOFORK } else { libc::MADV_DONTFORK };
        for (page, count) in managed {
            self.advise(self.address(*page, *count), count * PAGE_SIZE, advice)?;
        }
        self.advise(self.staging, self.frames.len() * PAGE_SIZE, advice)
    }

    fn prepare(&self) -> io::Result<()> {
        if let Some(access) = self.page_access() {
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

    fn refused(&self, error: io::Error) -> WindowError {
        match &self.mechanism {
            Mechanism::Userfaultfd(_) => WindowError::Userfaultfd(error),
            Mechanism::Protection(_) => WindowError::Protection(error),
        }
    }

    fn register(&self, start: usize, len: usize) -> io::Result<()> {
        let Mechanism::Userfaultfd(uffd) = &self.mechanism else { return Ok(()) };
        // SAFETY: callers in this module pass ranges of the window and of staging only. No Rust
        // reference points into the window. References into staging are those of `StagedFrame`
        // only, whose page stays while they exist.
        unsafe { uffd.register(start, len) }
    }

    fn advise_whole(&self, start: usize, len: usize) -> io::Result<()> {
        // A huge page would populate pages that were never faulted in.
        self.advise(start, len, libc::MADV_NOHUGEPAGE)?;
        // A core dump would contain the whole reservation, but not the swapped-out pages.
        self.advise(start, len, libc::MADV_DONTDUMP)?;
        self.advise(start, len, libc::MADV_DONTFORK)?;
        // The engine implements MADV_WIPEONFORK. The kernel must not: a page that the engine moves
        // to a mapping at the same address would be wiped. Fails before Linux 4.14 only.
        let _ = self.advise(start, len, libc::MADV_KEEPONFORK);
        // With PR_SET_MEMORY_MERGE, KSM would merge managed pages, and merged pages lose their
        // protection (seen in Linux 6.18). The advice fails only on kernels without KSM.
        let _ = self.advise(start, len, libc::MADV_UNMERGEABLE);
        Ok(())
    }

    pub fn base(&self) -> usize {
        self.base
    }

    /// Returns the window's length in bytes, a multiple of 4 GiB.
    pub fn len_bytes(&self) -> usize {
        self.len
    }

    pub fn pages(&self) -> usize {
        self.len / PAGE_SIZE
    }

    #[inline]
    pub fn contains(&self, address: usize) -> bool {
        address.wrapping_sub(self.base) < self.len
    }

    pub fn uses_move(&self) -> bool {
        self.use_move
    }

    /// Returns true if [`Window::take_out`] can take several pages in one call.
    pub fn takes_runs(&self) -> bool {
        self.use_move || self.page_access().is_some()
    }

    pub fn mapping_pressure(&self) -> MappingPressure {
        self.page_access().map_or(MappingPressure::None, PageAccess::mapping_pressure)
    }

    /// Counts mappings for [`Window::mapping_pressure`] again, after the kernel has refused one.
    pub fn count_mappings(&self) {
        self.page_access().into_iter().for_each(PageAccess::count_mappings);
    }

    fn page_access(&self) -> Option<&PageAccess> {
        match &self.mechanism {
            Mechanism::Userfaultfd(_) => None,
            Mechanism::Protection(access) => Some(access),
        }
    }

    pub fn faults(&self) -> Faults {
        if self.page_access().is_some() { Faults::Protection } else { Faults::Userfaultfd }
    }

    /// An upper bound: each run of pages with equal protection is a mapping. 0 with userfaultfd.
    pub fn mappings(&self) -> usize {
        self.page_access().map_or(0, PageAccess::mappings)
    }

    /// Nine tenths of `vm.max_map_count`, less the program's own mappings. 0 with userfaultfd.
    pub fn mappings_limit(&self) -> usize {
        self.page_access().map_or(0, PageAccess::mappings_limit)
    }

    /// Classifies an access that raised SIGSEGV. `access` is one bit of a [`Protection`].
    pub fn touch(&self, page: u64, access: Protection) -> Touch {
        let Some(pages) = self.page_access() else { return Touch::Forbidden };
        let page = page as usize;
        if pages.is_allowed(page, access) { Touch::Absent } else { Touch::Forbidden }
    }

    /// Makes a present page accessible if the kernel refused that, at its limit on mappings.
    pub fn renew(&self, page: u64) -> io::Result<()> {
        self.page_access().map_or(Ok(()), |access| access.renew(page as usize))
    }

    fn address(&self, page: u64, count: usize) -> usize {
        assert!(page as usize + count <= self.pages(), "page outside the window");
        self.base + page as usize * PAGE_SIZE
    }

    pub fn install(&self, page: u64, bytes: &[u8], writes: Writes) -> Partial {
        let address = self.address(page, bytes.len() / PAGE_SIZE);
        match &self.mechanism {
            Mechanism::Userfaultfd(uffd) => uffd.copy(address, bytes, writes),
            Mechanism::Protection(access) => access.install(page as usize, bytes, writes),
        }
    }

    pub fn allow_writes(&self, page: u64) -> io::Result<()> {
        self.set_writes(page, 1, Writes::Allowed)
    }

    /// Sets the effect of writes to present pages. Catching them costs one TLB shootdown in all.
    pub fn set_writes(&self, page: u64, count: usize, writes: Writes) -> io::Result<()> {
        let address = self.address(page, count);
        match &self.mechanism {
            Mechanism::Userfaultfd(uffd) => {
                uffd.write_protect(address, count * PAGE_SIZE, writes == Writes::Caught)
            }
            Mechanism::Protection(access) => access.set_writes(numbers(page, count), writes),
        }
    }

    pub fn install_zero(&self, page: u64, count: usize) -> Partial {
        let address = self.address(page, count);
        match &self.mechanism {
            Mechanism::Userfaultfd(uffd) => uffd.zero(address, count * PAGE_SIZE),
            Mechanism::Protection(access) => access.open_up(numbers(page, count), false),
        }
    }

    /// Drops the content of at most [`DISCARD_PAGES`] pages. On an error they are unchanged.
    pub fn discard(&self, page: u64, count: usize) -> io::Result<()> {
        match self.page_access() {
            Some(access) => access.discard(numbers(page, count)),
            None => self.discard_unmanaged(page, count),
        }
    }

    pub fn discard_unmanaged(&self, page: u64, count: usize) -> io::Result<()> {
        self.advise(self.address(page, count), count * PAGE_SIZE, libc::MADV_DONTNEED)
    }

    /// Drops pages, in ascending order, by one call with one TLB shootdown (Linux 6.16), or by a
    /// call per run if the kernel refuses that. Returns the number dropped, counted from the first.
    pub fn discard_each(&self, pages: &[u64]) -> usize {
        let mut dropped_count = 0;
        for pages in pages.chunks(DISCARD_PAGES) {
            let (runs, count) = self.runs(pages);
            let dropped = match self.page_access() {
                Some(access) => self.close_and_drop(access, pages, &runs[..count]),
                None => self.drop_runs(&runs[..count]),
            };
            dropped_count += dropped;
            if dropped < pages.len() {
                break;
            }
        }
        dropped_count
    }

    /// Closes and drops pages. Those that are not dropped stay accessible.
    fn close_and_drop(&self, access: &PageAccess, pages: &[u64], runs: &[libc::iovec]) -> usize {
        let before = access.states_of(pages.iter().map(|page| *page as usize));
        let closes = |run: &&libc::iovec| access.close(self.numbers_of(run)).is_ok();
        // Near the limit on mappings the kernel may refuse to close a run that splits a mapping. To
        // close the runs after it may free mappings, so try twice.
        let _ = runs.iter().filter(closes).count();
        let closed = runs.iter().take_while(closes).count();
        let dropped = self.drop_runs(&runs[..closed]);
        let left = pages.iter().zip(before).skip(dropped).filter(|(_, before)| before.is_present);
        left.for_each(|(page, before)| access.open_again(numbers(*page, 1), before.is_caught));
        dropped
    }

    /// Copies and drops writable, claimed pages: at most [`DISCARD_PAGES`], ascending. Returns the
    /// number of pages taken, counted from the first; 0 without page protection.
    pub fn take_each(&self, pages: &[u64], copies: &mut [[u8; PAGE_SIZE]]) -> usize {
        let Some(access) = self.page_access() else { return 0 };
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
            access.open_again(numbers(*page, 1), false);
        }
        taken
    }

    fn drop_runs(&self, runs: &[libc::iovec]) -> usize {
        match self.advise_runs(runs) {
            Ok(bytes) => bytes / PAGE_SIZE,
            Err(_) => self.discard_runs(runs),
        }
    }

    pub(crate) fn runs(&self, pages: &[u64]) -> ([libc::iovec; DISCARD_PAGES], usize) {
        let none = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let (mut runs, mut count) = ([none; DISCARD_PAGES], 0);
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

    fn numbers_of(&self, run: &libc::iovec) -> Range<usize> {
        numbers(((run.iov_base as usize - self.base) / PAGE_SIZE) as u64, run.iov_len / PAGE_SIZE)
    }

    fn advise_runs(&self, runs: &[libc::iovec]) -> io::Result<usize> {
        // PIDFD_SELF (Linux 6.14): in a forked child a descriptor would refer to the parent.
        let advice = libc::MADV_DONTNEED as usize;
        let args = [raw::PIDFD_SELF as usize, runs.as_ptr() as usize, runs.len(), advice, 0, 0];
        // SAFETY: the kernel reads `runs`. They are in the window: no Rust reference points there.
        raw::check(unsafe { raw::syscall(libc::SYS_process_madvise, args) })
    }

    pub(crate) fn discard_runs(&self, runs: &[libc::iovec]) -> usize {
        let drop_run = |run: &&libc::iovec| {
            self.advise(run.iov_base as usize, run.iov_len, libc::MADV_DONTNEED).is_ok()
        };
        runs.iter().take_while(drop_run).map(|run| run.iov_len / PAGE_SIZE).sum()
    }

    pub fn protect(&self, page: u64, count: usize, protection: Protection) -> io::Result<()> {
        let address = self.address(page, count);
        if let Some(access) = self.page_access() {
            return access.protect(&numbers(page, count), protection);
        }
        // SAFETY: the range is in the window, into which no Rust reference points.
        unsafe { memory::protect(address, count * PAGE_SIZE, protection) }
    }

    /// Locks present and absent pages. Fails beyond RLIMIT_MEMLOCK.
    pub fn lock(&self, page: u64, count: usize) -> io::Result<()> {
        // ONFAULT: the kernel cannot fault in absent pages of the window by itself.
        let flags = libc::MLOCK_ONFAULT as usize;
        let args = [self.address(page, count), count * PAGE_SIZE, flags, 0, 0, 0];
        // SAFETY: the kernel follows no pointers here, and changes no content.
        raw::check(unsafe { raw::syscall(libc::SYS_mlock2, args) }).map(drop)
    }

    pub fn unlock(&self, page: u64, count: usize) -> io::Result<()> {
        let args = [self.address(page, count), count * PAGE_SIZE, 0, 0, 0, 0];
        // SAFETY: the kernel follows no pointers here, and changes no content.
        raw::check(unsafe { raw::syscall(libc::SYS_munlock, args) }).map(drop)
    }

    /// Makes `count` pages part of the window again after an unmanaged mapping was there.
    pub fn restore(&self, page: u64, count: usize) -> io::Result<()> {
        let (start, len) = (self.address(page, count), count * PAGE_SIZE);
        let protection = self.mechanism.protection_of_absent();
        // SAFETY: the range is in the window, into which no Rust reference points.
        unsafe { map(start, len, protection, RESERVE | libc::MAP_FIXED)? };
        if let Some(access) = self.page_access() {
            access.forget(&numbers(page, count));
        }
        self.advise_whole(start, len)?;
        self.register(start, len)
    }

    /// Returns true if the kernel has mapped `page`, or swapped it out and maps it on a touch.
    pub fn is_present(&self, page: u64) -> io::Result<bool> {
        if let Some(access) = self.page_access() {
            return Ok(access.is_present(page as usize));
        }
        let mut present = [0];
        uffd::present(self.address(page, 1), PAGE_SIZE, &mut present)?;
        // `mincore` does not report pages in the kernel's swap, but they can be read.
        Ok(present[0] & 1 == 1 || self.copy_from(self.address(page, 1), &mut [0]).is_ok())
    }

    /// Moves a page that may be shared with a forked relative, by `try_move`. Returns false if the
    /// page is not writable, or the kernel refuses still.
    pub fn move_unshared(&self, page: u64, try_move: impl Fn() -> bool) -> bool {
        let start = self.address(page, 1);
        // Populating for writing copies a shared page. For an absent or protected page it returns
        // an error instead of raising a signal.
        let is_own = self.advise(start, PAGE_SIZE, libc::MADV_POPULATE_WRITE).is_ok();
        // Linux (seen in 6.18) moves no page of a huge page whose first page is shared or absent.
        // This advice splits the huge page.
        let split = || self.advise(start, PAGE_SIZE, libc::MADV_COLD).is_ok();
        is_own && (try_move() || split() && try_move())
    }

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

    /// Copies a present page whose writes are caught, regardless of its protection.
    pub fn read_page(&self, page: u64, to: &mut [u8; PAGE_SIZE]) -> io::Result<()> {
        let from = self.address(page, 1);
        if let Some(access) = self.page_access() {
            return access.read(page as usize, to);
        }
        if self.copy_from(from, to).is_ok() {
            return Ok(());
        }
        self.take_unreadable(from, to)?;
        self.put_back(page, to, Writes::Caught);
        Ok(())
    }

    /// Reinstalls a page, of which `bytes` is the only copy.
    fn put_back(&self, page: u64, bytes: &[u8; PAGE_SIZE], writes: Writes) {
        if self.install(page, bytes, writes).pages == 0 {
            page_moves::stop("a page cannot be restored");
        }
    }

    fn copy_from(&self, from: usize, to: &mut [u8]) -> io::Result<()> {
        let local = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
        let remote = libc::iovec { iov_base: from as *mut _, iov_len: to.len() };
        // Any user may read its own process's memory with this call, unless a filter forbids it.
        if program_filter::is_in_force() {
            return Err(io::Error::from_raw_os_error(libc::EPERM));
        }
        let pid = raw::current_process() as usize;
        let (local, remote) = (&raw const local as usize, &raw const remote as usize);
        // SAFETY: the kernel reads the two `iovec`, and writes at most `to.len()` bytes to `to`,
        // which is borrowed exclusively. It reads the page at `from`, or returns EFAULT.
        let read =
            unsafe { raw::syscall(libc::SYS_process_vm_readv, [pid, local, 1, remote, 1, 0]) };
        match raw::check(read)? {
            len if len == to.len() => Ok(()),
            _ => Err(io::Error::from_raw_os_error(libc::EFAULT)),
        }
    }

    /// Copies and drops a page, regardless of its protection. After an error it is still present.
    pub fn take_page(&self, page: u64, to: &mut [u8; PAGE_SIZE]) -> io::Result<()> {
        let from = self.address(page, 1);
        if let Some(access) = self.page_access() {
            return access.take(page as usize, to);
        }
        match self.copy_from(from, to) {
            Ok(()) => self.advise(from, PAGE_SIZE, libc::MADV_DONTNEED),
            Err(_) => self.take_unreadable(from, to),
        }
    }

    /// Takes out a page that its protection makes unreadable. The address stays mapped, but empty.
    fn take_unreadable(&self, from: usize, to: &mut [u8; PAGE_SIZE]) -> io::Result<()> {
        let mut present = [0];
        uffd::present(from, PAGE_SIZE, &mut present)?;
        if present[0] & 1 == 0 {
            // An absent page would read as zeroes at the other address.
            return Err(io::Error::from_raw_os_error(libc::EFAULT));
        }
        page_moves::lift_page(from, to)
    }

    fn advise(&self, start: usize, len: usize, advice: i32) -> io::Result<()> {
        // SAFETY: callers in this module and in `staging_frames` pass ranges of the window, and of
        // staging frames that are empty or claimed for dropping: no Rust reference points there.
        unsafe { memory::advise(start, len, advice) }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        let window = (self.base, self.len);
        let staging = (self.staging, self.frames.len() * PAGE_SIZE);
        if let (Mechanism::Protection(_), Some(parts)) = (&self.mechanism, &self.adopted) {
            self.hand_back(parts);
        }
        let mapped = [window, staging].into_iter().skip(usize::from(self.adopted.is_some()));
        for (start, len) in mapped {
            // SAFETY: the range was mapped for this value. No Rust reference points into the
            // window. `StagedFrame`s borrow this value, so none of their references into staging
            // exists any more.
            unsafe { unmap(start, len) };
        }
    }
}

fn numbers(page: u64, count: usize) -> Range<usize> {
    page as usize..page as usize + count
}

#[cfg(test)]
mod tests;
