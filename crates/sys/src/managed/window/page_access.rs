//! Faults by page protection: an absent page is inaccessible (SIGSEGV), and a page whose writes are
//! caught is read-only. Content is written through `/proc/self/mem` before `mprotect` grants
//! access, and read after access is withdrawn.

use super::mapping_budget::{MappingBudget, MappingPressure};
use super::page_moves;
use super::page_states::{DISCARD_PAGES, PageState, PageStates};
use super::reservation::Protection;
use crate::futex::Lock;
use crate::memory::{PAGE_SIZE, advise, protect};
use crate::self_memory::{self, SelfMemory};
use crate::signals;
use crate::uffd::{Partial, Writes};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

#[derive(Debug)]
pub(super) struct PageAccess {
    base: usize,
    memory: SelfMemory,
    states: PageStates,
    /// Locked, with signals blocked, while states and the kernel's protections change together.
    lock: Lock,
    /// Number of pages whose protection differs from that of the next page.
    boundaries: AtomicUsize,
    budget: MappingBudget,
}

impl PageAccess {
    pub(super) fn open(base: usize, len: usize) -> io::Result<PageAccess> {
        self_memory::try_out()?;
        signals::never_block_segv();
        Ok(PageAccess {
            base,
            memory: SelfMemory::open()?,
            states: PageStates::new(len)?,
            lock: Lock::new(),
            boundaries: AtomicUsize::new(0),
            budget: MappingBudget::new()?,
        })
    }

    pub(super) fn close_all(&self) -> io::Result<()> {
        self.mprotect(&(0..self.states.len()), libc::PROT_NONE)?;
        if !self.memory.is_open() {
            return Ok(());
        }
        // The first write gives the whole window one anon_vma. So neighbours of equal protection
        // can always merge into one mapping later.
        // SAFETY: the address is in the window, into which no Rust reference points.
        unsafe { self.memory.write(self.base, &[0])? };
        self.drop_content(&(0..1))
    }

    /// Opens the files of `/proc/self` again, in a forked child, which has one thread.
    pub(super) fn reopen(&self) {
        self.memory.reopen();
        self.budget.maps.reopen();
    }

    fn at(&self, page: usize) -> usize {
        self.base + page * PAGE_SIZE
    }

    fn locked<R>(&self, body: impl FnOnce() -> R) -> R {
        self.lock.lock();
        let result = body();
        self.lock.unlock();
        result
    }

    fn mprotect(&self, pages: &Range<usize>, protection: Protection) -> io::Result<()> {
        // SAFETY: the range is in the window, into which no Rust reference points.
        unsafe { protect(self.at(pages.start), pages.len() * PAGE_SIZE, protection) }
    }

    /// Changes states, with one call for each run of equal protection. Stops at the first error.
    fn change(&self, pages: Range<usize>, new: impl Fn(PageState) -> PageState) -> Partial {
        self.locked(|| {
            let wanted = |page| new(self.states.get(page)).in_force();
            for (run, protection) in runs(pages.clone(), wanted) {
                let changes = |page: &usize| self.states.get(*page).in_force() != protection;
                let changed = run.clone().find(changes).zip(run.clone().rfind(changes));
                if let Some((first, last)) = changed
                    && let Err(error) = self.mprotect(&(first..last + 1), protection)
                {
                    self.undo(&(first..last + 1), protection);
                    self.budget.note_refusal();
                    return Partial { pages: run.start - pages.start, error: Some(error) };
                }
                self.record(&run, &new);
            }
            Partial { pages: pages.len(), error: None }
        })
    }

    /// Restores protections after an error. [`PageAccess::renew`] opens pages that stay closed.
    fn undo(&self, pages: &Range<usize>, attempted: Protection) {
        for (run, protection) in runs(pages.clone(), |page| self.states.get(page).in_force()) {
            if self.mprotect(&run, protection).is_err() && attempted != libc::PROT_NONE {
                page_moves::stop("a page cannot be protected");
            }
        }
    }

    fn record(&self, run: &Range<usize>, new: impl Fn(PageState) -> PageState) {
        let before = self.boundaries_around(run);
        for page in run.clone() {
            self.states.set(page, new(self.states.get(page)));
        }
        self.count(before, self.boundaries_around(run));
    }

    fn count(&self, before: usize, after: usize) {
        self.boundaries.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
    }

    fn boundaries_around(&self, pages: &Range<usize>) -> usize {
        let last = pages.end.min(self.states.len() - 1);
        let protection = |page| self.states.get(page).in_force();
        let first = pages.start.saturating_sub(1);
        (first..last).filter(|page| protection(*page) != protection(page + 1)).count()
    }

    pub(super) fn mappings(&self) -> usize {
        self.boundaries.load(Ordering::Relaxed) + 1
    }

    pub(super) fn mappings_limit(&self) -> usize {
        self.budget.window_limit()
    }

    pub(super) fn mapping_pressure(&self) -> MappingPressure {
        self.budget.mapping_pressure(self.mappings())
    }

    pub(super) fn is_present(&self, page: usize) -> bool {
        self.states.get(page).is_present
    }

    /// Returns true if the program may access a page in this way once it is present.
    pub(super) fn is_allowed(&self, page: usize, access: Protection) -> bool {
        let wanted = self.states.get(page).wanted;
        // On x86, writable or executable memory is readable too.
        if access == libc::PROT_READ { wanted != libc::PROT_NONE } else { wanted & access != 0 }
    }

    pub(super) fn install(&self, page: usize, bytes: &[u8], writes: Writes) -> Partial {
        let pages = page..page + bytes.len() / PAGE_SIZE;
        if let Some(there) = pages.clone().find(|page| self.is_present(*page)) {
            let error = Some(io::Error::from_raw_os_error(libc::EEXIST));
            return match there - page {
                0 => Partial { pages: 0, error },
                some => Partial { error, ..self.install(page, &bytes[..some * PAGE_SIZE], writes) },
            };
        }
        // Untouched memory is zero and populated on touch, so zeroes are not written.
        let (words, _) = bytes.as_chunks::<16>();
        let is_zero = words.iter().all(|word| u128::from_ne_bytes(*word) == 0);
        if !is_zero && let Err(error) = self.write(page, bytes) {
            let _ = self.drop_content(&pages);
            return Partial { pages: 0, error: Some(error) };
        }
        let is_caught = writes == Writes::Caught;
        let done = self.open_up(pages.clone(), is_caught);
        if done.error.is_some() {
            let _ = self.drop_content(&(page + done.pages..pages.end));
        }
        done
    }

    /// Makes absent pages accessible with their current content.
    pub(super) fn open_up(&self, pages: Range<usize>, is_caught: bool) -> Partial {
        self.change(pages, |state| PageState { is_present: true, is_caught, ..state })
    }

    pub(super) fn set_writes(&self, pages: Range<usize>, writes: Writes) -> io::Result<()> {
        let is_caught = writes == Writes::Caught;
        let new =
            |state: PageState| PageState { is_caught: is_caught && state.is_present, ..state };
        self.change(pages, new).error.map_or(Ok(()), Err)
    }

    pub(super) fn read(&self, page: usize, to: &mut [u8]) -> io::Result<()> {
        if self.memory.is_open() {
            return self.memory.read(self.at(page), to);
        }
        self.locked(|| {
            self.mprotect(&(page..page + 1), libc::PROT_NONE)?;
            let read = page_moves::lift(self.at(page), to);
            if read.is_ok() && page_moves::replace(self.at(page), to).is_err() {
                page_moves::stop("a page cannot be restored");
            }
            self.undo(&(page..page + 1), libc::PROT_NONE);
            read
        })
    }

    fn write(&self, page: usize, bytes: &[u8]) -> io::Result<()> {
        match self.memory.is_open() {
            // SAFETY: the pages are in the window, into which no Rust reference points.
            true => unsafe { self.memory.write(self.at(page), bytes) },
            false => page_moves::replace(self.at(page), bytes),
        }
    }

    fn lift(&self, page: usize, to: &mut [u8]) -> io::Result<()> {
        if !self.memory.is_open() {
            return page_moves::lift(self.at(page), to);
        }
        self.memory.read(self.at(page), to)?;
        self.drop_content(&(page..page + to.len() / PAGE_SIZE))
    }

    /// Copies present pages to `to`, and drops them. On an error the pages stay present.
    pub(super) fn take(&self, page: usize, to: &mut [u8]) -> io::Result<()> {
        self.close_and(page, to, |to| self.lift(page, to))
    }

    /// Closes present pages and copies them to `to`. On an error they stay present.
    pub(super) fn copy_out(&self, page: usize, to: &mut [u8]) -> io::Result<()> {
        self.close_and(page, to, |to| self.memory.read(self.at(page), to))
    }

    fn close_and(
        &self,
        page: usize,
        to: &mut [u8],
        copy: impl FnOnce(&mut [u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let before = self.states.get(page);
        let closed = self.change(page..page + to.len() / PAGE_SIZE, PageState::absent);
        let copied = closed.error.map_or(Ok(()), Err).and_then(|()| copy(to));
        if copied.is_err() {
            self.open_again(page..page + closed.pages, before.is_caught);
        }
        copied
    }

    pub(super) fn close(&self, pages: Range<usize>) -> io::Result<()> {
        self.change(pages, PageState::absent).error.map_or(Ok(()), Err)
    }

    /// Opens pages that were not dropped. If the kernel refuses, the next touch opens them.
    pub(super) fn open_again(&self, pages: Range<usize>, is_caught: bool) {
        self.locked(|| {
            self.record(&pages, |state| PageState { is_present: true, is_caught, ..state });
            for (run, protection) in runs(pages.clone(), |page| self.states.get(page).in_force()) {
                if self.mprotect(&run, protection).is_err() {
                    self.budget.note_refusal();
                }
            }
        });
    }

    pub(super) fn states_of(
        &self,
        pages: impl Iterator<Item = usize>,
    ) -> [PageState; DISCARD_PAGES] {
        let mut states = [PageState::UNTOUCHED; DISCARD_PAGES];
        states.iter_mut().zip(pages).for_each(|(state, page)| *state = self.states.get(page));
        states
    }

    /// Drops the content of at most [`DISCARD_PAGES`] pages. On an error they are unchanged.
    pub(super) fn discard(&self, pages: Range<usize>) -> io::Result<()> {
        assert!(pages.len() <= DISCARD_PAGES, "too many pages to discard at once");
        let before = self.states_of(pages.clone());
        let dropped = self.close(pages.clone()).and_then(|()| self.drop_content(&pages));
        if dropped.is_err() {
            let present = pages.zip(before).filter(|(_, before)| before.is_present);
            present.for_each(|(page, before)| self.open_again(page..page + 1, before.is_caught));
        }
        dropped
    }

    pub(super) fn count_mappings(&self) {
        self.budget.count(self.mappings());
    }

    fn drop_content(&self, pages: &Range<usize>) -> io::Result<()> {
        let (start, len) = (self.at(pages.start), pages.len() * PAGE_SIZE);
        // SAFETY: the range is in the window, into which no Rust reference points.
        unsafe { advise(start, len, libc::MADV_DONTNEED) }
    }

    pub(super) fn protect(&self, pages: &Range<usize>, wanted: Protection) -> io::Result<()> {
        self.locked(|| {
            for part in self.states.used(pages) {
                self.protect_present(part, wanted)?;
            }
            self.states.set_wanted(pages.clone(), wanted);
            Ok(())
        })
    }

    fn protect_present(&self, pages: Range<usize>, wanted: Protection) -> io::Result<()> {
        let new = |page| PageState { wanted, ..self.states.get(page) }.in_force();
        for (run, protection) in runs(pages, new) {
            if run.clone().any(|page| self.is_present(page)) {
                self.mprotect(&run, protection)?;
            }
            let before = self.boundaries_around(&run);
            self.states.set_wanted(run.clone(), wanted);
            self.count(before, self.boundaries_around(&run));
        }
        Ok(())
    }

    /// Applies the recorded state of a page to the kernel again, after an access failed.
    pub(super) fn renew(&self, page: usize) -> io::Result<()> {
        let renew = || self.mprotect(&(page..page + 1), self.states.get(page).in_force());
        self.locked(renew).inspect_err(|_| self.budget.note_refusal())
    }

    pub(super) fn set_wanted(&self, pages: &Range<usize>, wanted: Protection) {
        self.locked(|| self.states.set_wanted(pages.clone(), wanted));
    }

    pub(super) fn note_present(&self, pages: &Range<usize>) {
        self.locked(|| self.record(pages, |state| PageState { is_present: true, ..state }));
    }

    /// Makes absent pages inaccessible while threads may touch them. `found` reports present runs.
    pub(super) fn close_unless_touched(
        &self,
        pages: &Range<usize>,
        found: impl FnOnce(&Range<usize>, &mut dyn FnMut(Range<usize>)) -> io::Result<()>,
    ) -> io::Result<()> {
        self.mprotect(pages, libc::PROT_NONE)?;
        // No page can be touched any more. Pages that were touched before are opened again.
        let mut touched = Vec::new();
        found(pages, &mut |run| touched.push(run))?;
        touched.into_iter().try_for_each(|run| self.open_up(run, false).error.map_or(Ok(()), Err))
    }

    /// Records that pages were mapped again, inaccessible and with the default protection.
    pub(super) fn forget(&self, pages: &Range<usize>) {
        self.locked(|| {
            for part in self.states.used(pages) {
                self.record(&part, PageState::absent);
            }
            self.states.set_wanted(pages.clone(), super::READ_WRITE);
        });
    }
}

/// Splits pages into runs of equal protection. Each run is computed when it is requested.
fn runs(
    pages: Range<usize>,
    protection: impl Fn(usize) -> Protection,
) -> impl Iterator<Item = (Range<usize>, Protection)> {
    let mut page = pages.start;
    std::iter::from_fn(move || {
        if page == pages.end {
            return None;
        }
        let first = protection(page);
        let len = (page..pages.end).take_while(|at| protection(*at) == first).count();
        let run = page..page + len;
        page = run.end;
        Some((run, first))
    })
}
