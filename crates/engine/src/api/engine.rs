//! The engine, as used by the runtime. Converts addresses to page numbers.

use crate::api::builder;
pub use crate::api::builder::StartError;
use crate::api::settings::{Config, PoolLimit};
use crate::base::access::Access;
use crate::base::page::{PageNo, Place};
use crate::base::stats::{Stats, Tier};
use crate::codec::Selector;
use crate::core::Core;
use crate::core::errors::FaultError;
use crate::memory::address_space::{AtFork, CHUNK_PAGES, Kind, Layout};
use crate::memory::context::{Contexts, PREFETCH_THREADS};
use crate::paths::{mapping, page_in, prefetch, reclaim};
use crate::policy::prefetch::advised::Order;
use crate::store::bounce::BouncePools;
use crate::store::io::poll::mode::Knobs;
use crate::store::pool::Handle;
use crate::store::swap::Backing;
use softswap_sys::PAGE_SIZE;
use softswap_sys::faults::Faults;
use softswap_sys::raw::current_cpu;
use softswap_sys::signals::{self, Mask};
use softswap_sys::window::{MappingPressure, Protection, Touch};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicUsize};
use std::sync::{Mutex, PoisonError};

pub mod pinning;
mod locking;
pub mod memory_limit;
pub mod forking;
pub mod remap;
pub mod turns;
pub mod waking;

pub const GROWABLE_ALIGN_BYTES: usize = CHUNK_PAGES as usize * PAGE_SIZE;

/// Permitted moves of a growing mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Move {
    Never,
    /// Prefers an address with a growth gap, and moves anywhere else otherwise.
    Anywhere,
    ToGrowable,
}

pub struct Engine {
    core: Core,
    contexts: Contexts,
    /// Held while pages move between mappings, and while a limit changes.
    remapping: Mutex<()>,
    held: Held,
}

#[derive(Debug, Default)]
struct Held {
    /// Pinned pages; a page pinned twice counts twice.
    pages: AtomicUsize,
    waiting: AtomicU32,
    /// Incremented when pages are released while threads wait.
    releases: AtomicU32,
}

enum Replacement {
    Managed,
    Unmanaged,
}

impl Engine {
    pub fn start(
        config: &Config,
        storage: Vec<Backing>,
        stats: Stats,
    ) -> Result<Engine, StartError> {
        let (core, contexts) = builder::build(config, storage, stats, None)?;
        Ok(Engine::of(core, contexts))
    }

    fn of(core: Core, contexts: Contexts) -> Engine {
        Engine { core, contexts, remapping: Mutex::new(()), held: Held::default() }
    }

    pub fn set_pool_limit(&self, limit: PoolLimit) {
        let (partition, pool) = (&self.core.policies.partition, &self.core.stores.pool);
        let is_auto = limit == PoolLimit::Auto;
        // A fork waits for this lock, because the child moves the limit, too.
        let _moves = self.remapping.lock().unwrap_or_else(PoisonError::into_inner);
        partition.set(limit, is_auto, |limit_bytes| pool.set_limit_bytes(limit_bytes));
    }

    pub(crate) fn pool_limit(&self) -> PoolLimit {
        match self.core.policies.partition.is_on() {
            true => PoolLimit::Auto,
            false => PoolLimit::Bytes(self.core.stores.pool.limit_bytes() as u64),
        }
    }

    pub fn buffers(&self) -> &BouncePools {
        &self.core.stores.bounce
    }

    /// Returns the number of resident pages with a copy in the swap areas.
    pub fn copies(&self) -> usize {
        self.core.policies.stored_copies.count()
    }

    pub fn pooled_copies(&self) -> usize {
        self.core.policies.stored_copies.pooled()
    }

    pub fn stats(&self) -> &Stats {
        &self.core.stats
    }

    /// Returns the polling settings of each area.
    pub fn knobs(&self) -> impl Iterator<Item = &Knobs> {
        self.core.stores.areas.knobs()
    }

    /// Pages compressed before a change of the codec are not converted.
    pub fn codec(&self) -> &Selector {
        &self.core.policies.codec
    }

    /// Returns the window's first address and its length in bytes.
    pub fn window(&self) -> (usize, usize) {
        (self.core.memory.window.base(), self.core.memory.window.len_bytes())
    }

    #[inline]
    pub fn contains(&self, address: usize) -> bool {
        self.core.memory.window.contains(address)
    }

    fn layout<R>(&self, read: impl FnOnce(&Layout) -> R) -> R {
        signals::with_all_blocked(|| read(&self.core.memory.space.lock()))
    }

    fn page_of(&self, address: usize) -> PageNo {
        ((address - self.core.memory.window.base()) / PAGE_SIZE) as PageNo
    }

    fn address_of(&self, page: PageNo) -> usize {
        self.core.memory.window.base() + page as usize * PAGE_SIZE
    }

    /// Returns the pages of `len` bytes from a page-aligned `address`.
    fn pages_of(&self, address: usize, len: usize) -> io::Result<Range<PageNo>> {
        const EINVAL: i32 = 22;
        let end = len.checked_next_multiple_of(PAGE_SIZE).and_then(|len| address.checked_add(len));
        match end {
            Some(end)
                if address.is_multiple_of(PAGE_SIZE)
                    && len > 0
                    && self.contains(address)
                    && self.contains(end - 1) =>
            {
                let first = self.page_of(address);
                Ok(first..first + ((end - address) / PAGE_SIZE) as PageNo)
            }
            _ => Err(io::Error::from_raw_os_error(EINVAL)),
        }
    }

    pub fn fault(&self, address: usize, access: Access) -> Result<(), FaultError> {
        self.bring_page_in(self.page_of(address), access, 0).map(drop)
    }

    /// Faults a page in for a touch of the program, after a wait for this process's turn. A wait
    /// fails if a signal in `open` is pending: the thread must take it and repeat the touch.
    /// Returns the previous place of the page; `None` if it was resident.
    pub fn fault_until(
        &self,
        address: usize,
        access: Access,
        open: Mask,
    ) -> Result<Option<Tier>, FaultError> {
        let page = self.page_of(address);
        self.await_turn(page, open)?;
        self.bring_page_in(page, access, open)
    }

    fn bring_page_in(
        &self,
        page: PageNo,
        access: Access,
        open: Mask,
    ) -> Result<Option<Tier>, FaultError> {
        let from = loop {
            let error = match page_in::page_in(&self.core, &self.contexts, page, access, open) {
                Err(error @ (FaultError::NotMapped | FaultError::Unmanaged)) => error,
                result => break result?,
            };
            match self.replacement(page) {
                Some(Replacement::Managed) => {}
                // The touch succeeds when it is repeated.
                Some(Replacement::Unmanaged) if matches!(error, FaultError::NotMapped) => {
                    break None;
                }
                _ => return Err(error),
            }
        };
        if from.is_some() {
            reclaim::reclaim_ahead(&self.core, &self.contexts, self.held_pages());
        }
        Ok(from)
    }

    /// Returns what is mapped now at a page that was not mapped, or unmanaged. Waits, because
    /// another thread may be replacing the mapping (`mmap` with MAP_FIXED). Returns `None` if
    /// nothing is mapped, and in a thread that forks, which holds the lock itself.
    fn replacement(&self, page: PageNo) -> Option<Replacement> {
        if self.contexts.is_forker() {
            return None;
        }
        let _layout = self.core.memory.space.lock();
        match self.core.memory.pages.load(page).place() {
            Place::Unmanaged => Some(Replacement::Unmanaged),
            _ => self.core.memory.space.is_mapped(page).then_some(Replacement::Managed),
        }
    }

    /// Returns true if an access raised SIGSEGV because the page is absent, not because the program
    /// has forbidden it. `access` is one bit of a protection.
    pub fn is_absent(&self, address: usize, access: Protection) -> bool {
        self.core.memory.window.touch(self.page_of(address), access) == Touch::Absent
    }

    /// Evicts pages after the kernel has refused a mapping, if page protection uses up the limit.
    /// Returns true if the program should retry.
    pub fn free_mappings(&self) -> bool {
        let window = &self.core.memory.window;
        let mut fewest = usize::MAX;
        while window.faults() == Faults::Protection && window.mappings() < fewest {
            fewest = window.mappings();
            window.count_mappings();
            if window.mapping_pressure() != MappingPressure::Full {
                return true;
            }
            reclaim::keep_mappings(&self.core, &mut self.contexts.claim(current_cpu()));
        }
        false
    }

    /// Returns how many bytes from `address` on, up to `len`, may be accessed as `wanted`.
    /// Unmanaged mappings count as accessible; the kernel checks them.
    pub fn allowed_bytes(&self, address: usize, len: usize, wanted: Protection) -> usize {
        let layout = self.core.memory.space.lock();
        let mut done = 0;
        while done < len && self.contains(address + done) {
            let page = self.page_of(address + done);
            let is_managed = self.core.memory.space.is_mapped(page);
            if is_managed && layout.protection(page) & wanted != wanted
                || !is_managed && self.core.memory.pages.load(page).place() != Place::Unmanaged
            {
                break;
            }
            done += PAGE_SIZE - (address + done) % PAGE_SIZE;
        }
        done.min(len)
    }

    /// Maps fresh memory. `None` if the window is full.
    pub fn map(&self, len: usize, protection: Protection) -> io::Result<Option<usize>> {
        let count = len.div_ceil(PAGE_SIZE) as u64;
        let page = mapping::map(&self.core.memory, count, protection)?;
        Ok(page.map(|page| self.address_of(page)))
    }

    /// Maps fresh memory with a growth gap ([`Engine::remap`]). `None` without space for it.
    pub fn map_growable(&self, len: usize, protection: Protection) -> io::Result<Option<usize>> {
        let page =
            mapping::map_growable(&self.core.memory, len.div_ceil(PAGE_SIZE) as u64, protection)?;
        Ok(page.map(|page| self.address_of(page)))
    }

    /// Mappings in this range begin at multiples of [`GROWABLE_ALIGN_BYTES`].
    pub fn growable(&self) -> Range<usize> {
        let Range { start, end } = self.core.memory.space.growable();
        self.address_of(start)..self.address_of(end)
    }

    /// Maps fresh memory at `address`, replacing what is mapped there. Without `replace`, returns
    /// `Ok(false)` if any of it is in use.
    pub fn map_at(
        &self,
        address: usize,
        len: usize,
        protection: Protection,
        replace: bool,
    ) -> io::Result<bool> {
        mapping::map_at(&self.core, self.pages_of(address, len)?, protection, replace)
    }

    /// Replaces a range by an unmanaged mapping that `place_it` creates.
    pub fn map_unmanaged(
        &self,
        address: usize,
        len: usize,
        replace: bool,
        place_it: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<bool> {
        mapping::map_unmanaged(&self.core, self.pages_of(address, len)?, replace, place_it)
    }

    pub fn is_unmanaged(&self, address: usize) -> bool {
        self.core.memory.pages.load(self.page_of(address)).place() == Place::Unmanaged
    }

    pub fn unmap(&self, address: usize, len: usize) -> io::Result<()> {
        mapping::unmap(&self.core, self.pages_of(address, len)?)
    }

    /// Discards the content of a range, which reads as zeroes afterwards.
    pub fn discard(&self, address: usize, len: usize) -> io::Result<()> {
        mapping::discard(&self.core, self.pages_of(address, len)?)
    }

    pub fn protect(&self, address: usize, len: usize, protection: Protection) -> io::Result<()> {
        mapping::protect(&self.core.memory, self.pages_of(address, len)?, protection)
    }

    /// Seals a completely mapped range (`mseal`).
    pub fn seal(&self, address: usize, len: usize) -> io::Result<()> {
        self.core.memory.space.lock().seal(self.pages_of(address, len)?);
        Ok(())
    }

    pub fn is_sealed(&self, address: usize) -> bool {
        let page = self.page_of(address);
        self.layout(|layout| layout.first_sealed(&(page..page + 1)).is_some())
    }

    pub fn first_kept(&self, address: usize, len: usize) -> Option<usize> {
        let range = self.pages_of(address, len).ok()?;
        self.layout(|layout| layout.first_kept(&range)).map(|page| self.address_of(page))
    }

    pub fn protection(&self, address: usize) -> Protection {
        self.layout(|layout| layout.protection(self.page_of(address)))
    }

    /// Returns segments: (address, bytes, kind). Omits the parts outside the window.
    pub fn segments(&self, address: usize, len: usize) -> Vec<(usize, usize, Kind)> {
        let (base, window_len) = self.window();
        let end = address.saturating_add(len.next_multiple_of(PAGE_SIZE)).min(base + window_len);
        if len == 0 || end <= address || !self.contains(address) {
            return Vec::new();
        }
        let range = self.page_of(address)..self.page_of(end - 1) + 1;
        let segments = self.layout(|layout| self.core.memory.space.segments(layout, &range));
        let bytes = |pages: &Range<PageNo>| (pages.end - pages.start) as usize * PAGE_SIZE;
        let at = |(pages, kind): (Range<PageNo>, Kind)| {
            (self.address_of(pages.start), bytes(&pages), kind)
        };
        segments.into_iter().map(at).collect()
    }

    pub fn set_at_fork(
        &self,
        address: usize,
        len: usize,
        what: AtFork,
        on: bool,
    ) -> io::Result<()> {
        let range = self.pages_of(address, len)?;
        self.core.memory.space.lock().at_fork(range, what, on);
        Ok(())
    }

    pub fn holds_something(&self, address: usize) -> bool {
        self.core.memory.pages.wait(self.page_of(address)).place() != Place::Vacant
    }

    pub fn allows(&self, address: usize, len: usize, wanted: Protection) -> bool {
        self.pages_of(address, len)
            .is_ok_and(|range| self.layout(|layout| !layout.lacks_permission(&range, wanted)))
    }

    pub fn is_mapped(&self, address: usize, len: usize) -> bool {
        self.pages_of(address, len)
            .is_ok_and(|range| self.core.memory.space.is_range_mapped(&range))
    }

    pub fn any_mapped(&self, address: usize, len: usize) -> bool {
        self.pages_of(address, len).is_ok_and(|range| self.core.memory.space.is_any_mapped(&range))
    }

    /// Allocates `len` bytes of the window without mapping them.
    pub fn reserve(&self, len: usize) -> io::Result<Option<usize>> {
        let page = mapping::reserve(&self.core.memory, len.div_ceil(PAGE_SIZE) as u64);
        Ok(page.map(|page| self.address_of(page)))
    }

    /// Unmaps a range that stays allocated.
    pub fn retract(&self, address: usize, len: usize) -> io::Result<()> {
        mapping::retract(&self.core, self.pages_of(address, len)?)
    }

    /// Sets each byte of `out` to 1 if its page is resident, else to 0 (`mincore`).
    pub fn residency(&self, address: usize, out: &mut [u8]) -> io::Result<()> {
        let range = self.pages_of(address, out.len() * PAGE_SIZE)?;
        for (page, byte) in range.zip(out) {
            *byte = u8::from(self.core.memory.pages.load(page).is_resident());
        }
        Ok(())
    }

    /// Makes the resident pages of a range the first to be evicted (`MADV_COLD`).
    pub fn deactivate(&self, address: usize, len: usize) -> io::Result<()> {
        self.pages_of(address, len)?.for_each(|page| self.core.memory.pages.deactivate(page));
        Ok(())
    }

    /// Sets the access order of the 2 MiB chunks completely within a range, until set again.
    pub fn set_order(&self, address: usize, len: usize, order: Order) -> io::Result<()> {
        self.core.policies.advised.set(self.pages_of(address, len)?, order);
        Ok(())
    }

    pub fn run_reclaim(&self, go_on: impl Fn() -> bool) {
        reclaim::run(&self.core, &self.contexts, go_on);
    }

    /// Runs one of the [`PREFETCH_THREADS`] in the calling thread, until `go_on` returns false.
    pub fn run_prefetch(&self, thread: usize, go_on: impl Fn() -> bool) {
        prefetch::run(&self.core, &self.contexts, thread, go_on);
    }

    /// Returns true if all [`PREFETCH_THREADS`] sleep and no request is queued; for tests.
    pub fn is_prefetch_idle(&self) -> bool {
        self.core.policies.readahead.is_idle(PREFETCH_THREADS)
    }

    /// Wakes background reclaim and the prefetch threads, so that they check `go_on` immediately.
    pub fn wake_background(&self) {
        self.core.background.wake_all();
        self.core.policies.readahead.wake();
    }

    /// For tests and benchmarks: runs reclaim until a round makes no progress, and returns the
    /// number of rounds before it.
    pub fn reclaim_now(&self, rounds: usize) -> usize {
        let mut context = self.contexts.claim_background();
        let _ = self.core.stores.standby.maintain();
        self.core.memory.pinners.recheck();
        (0..rounds)
            .take_while(|_| {
                matches!(reclaim::round(&self.core, &mut context), reclaim::Round::Progress)
            })
            .count()
    }

    /// Makes later faults read evicted pages from the disk; for benchmarks.
    pub fn release_standby(&self) {
        while self.core.stores.standby.release() > 0 {}
    }

    /// For tests: flips a bit of a page in the pool. Returns false if the page is not there.
    pub fn damage(&self, address: usize, bit: usize) -> bool {
        let place = self.core.memory.pages.load(self.page_of(address)).place();
        if let Place::Pool { handle } = place {
            self.core.stores.pool.damage(Handle::from_bits(handle), bit);
        }
        matches!(place, Place::Pool { .. })
    }

    pub fn has_background(&self) -> bool {
        self.core.background.is_running()
    }

    pub fn note_peaks(&self) {
        self.core.report();
    }
}
