//! Simulates the engine's policies for given touches and compressed sizes, without a program. Costs
//! of faults are parameters and no clock is read, so any machine gets the same results.
//!
//! The simulation is simpler than an engine. It has one thread and an unlimited swap area,
//! readahead completes immediately, and there is no standby list, offset prefetch, staging or
//! fault-around.

mod out;

use softswap_engine::base::access::Access;
use softswap_engine::base::page::{Claim, PageNo, PageTable, Place, StoredCopy};
use softswap_engine::base::stats::Tier;
use softswap_engine::codec::Choice;
use softswap_engine::core::policies::Policies;
use softswap_engine::memory::address_space::AddressSpace;
use softswap_engine::policy::mechanism::{Mechanism, Without};
use softswap_engine::policy::partition::{NEARLY_FULL_PERCENT, Partition, PoolView};
use softswap_engine::policy::pool_limit::PoolLimit;
use softswap_engine::policy::prefetch::readahead::{self, Ahead, Touch};
use softswap_engine::policy::stored_copies::KeepCopy;
use softswap_engine::store::pool::{CompressedPool, Handle, SLAB_BYTES};
use softswap_sys::PAGE_SIZE;
use softswap_sys::memory::reserve_u64;
use std::collections::HashMap;
use std::io;
use std::ops::Range;

/// Costs of faults and evictions, in ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Costs {
    /// First touch of a page.
    pub zero_ns: u64,
    /// Fault on a same-filled page.
    pub same_filled_ns: u64,
    /// Fault on a page in the pool.
    pub pool_ns: u64,
    /// Fault on a page in the swap area.
    pub disk_ns: u64,
    /// Processor time of a fault on a page in the swap area.
    pub disk_cpu_ns: u64,
    /// Each further page that is read with another one, or ahead.
    pub along_ns: u64,
    /// The first write to a clean page.
    pub write_fault_ns: u64,
    /// Compression of a page by LZ4.
    pub lz4_ns: u64,
    /// Compression of a page by zstd.
    pub zstd_ns: u64,
    /// Processor time to write a page.
    pub write_ns: u64,
    /// Eviction of a page, without compression and write.
    pub evict_ns: u64,
}

impl Default for Costs {
    /// Returns the costs in docs/benchmarks.md.
    fn default() -> Costs {
        Costs {
            zero_ns: 7_700,
            same_filled_ns: 6_900,
            pool_ns: 9_100,
            disk_ns: 73_000,
            disk_cpu_ns: 20_000,
            along_ns: 3_000,
            write_fault_ns: 3_500,
            lz4_ns: 3_000,
            zstd_ns: 9_000,
            write_ns: 2_000,
            evict_ns: 3_000,
        }
    }
}

/// Parameters of a simulation.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    /// Number of pages.
    pub window_pages: u64,
    /// Memory of resident pages and the pool together, in bytes.
    pub memory_bytes: usize,
    /// Costs of faults and evictions.
    pub costs: Costs,
    /// Disabled mechanisms.
    pub without: Without,
    /// Share of the memory that the pool may use, in percent; `None` lets the partition decide.
    pub pool_percent: Option<u8>,
}

/// Compressed sizes of a page: 0 if it is same-filled, [`PAGE_SIZE`] if incompressible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Content {
    /// By LZ4.
    pub lz4_bytes: u16,
    /// By zstd.
    pub zstd_bytes: u16,
}

/// Results of a simulation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    /// First touches.
    pub zero_faults: u64,
    /// Faults on same-filled pages.
    pub same_filled_faults: u64,
    /// Faults on pages in the pool.
    pub pool_faults: u64,
    /// Faults on pages in the swap area.
    pub disk_faults: u64,
    /// First writes to clean pages.
    pub write_faults: u64,
    /// Pages read with another page, or ahead of touches.
    pub pages_ahead: u64,
    /// Slots written.
    pub pages_written: u64,
    /// Pages evicted.
    pub pages_out: u64,
    /// Time that the program waited for faults.
    pub stalled_ns: u64,
    /// Processor time of evictions: compression, writes and unmapping.
    pub reclaim_ns: u64,
    /// Size of the pool at the end.
    pub pool_bytes: u64,
}

/// A program's memory under an engine's policies. Its tables exist until the process exits.
///
/// ```
/// use softswap_engine::policy::mechanism::Without;
/// use softswap_testkit::simulator::{Content, Costs, Setup, Simulation};
/// let setup = Setup { window_pages: 1024, memory_bytes: 1 << 20, costs: Costs::default(), without: Without::default(), pool_percent: None };
/// let mut simulation = Simulation::new(setup).unwrap();
/// for round in 0..2 {
///     (0..512).for_each(|page| simulation.touch(page, round == 0, Some(Content { lz4_bytes: 4096, zstd_bytes: 4096 })));
/// }
/// let figures = simulation.figures();
/// assert_eq!(figures.zero_faults, 512);
/// assert!(figures.disk_faults > 0);
/// ```
pub struct Simulation {
    pages: PageTable<'static>,
    space: AddressSpace,
    policies: Policies,
    pool: CompressedPool,
    setup: Setup,
    contents: Vec<Content>,
    resident: usize,
    /// Slots in use, each with its number of used parts.
    slots: HashMap<u64, u32>,
    next_slot: u64,
    faults: u64,
    now_ns: u64,
    cpu_ns: u64,
    figures: Figures,
}

/// Number of faults between changes of the pool's limit.
const BALANCE_FAULTS: u64 = 32;

impl Simulation {
    /// Creates a simulation without touches.
    ///
    /// # Errors
    /// If there is no address space for the tables.
    pub fn new(setup: Setup) -> io::Result<Simulation> {
        let Setup { window_pages, memory_bytes, without, pool_percent, .. } = setup;
        let space = AddressSpace::new(window_pages)?;
        space.add(&mut space.lock(), 0..window_pages);
        let limit = |limit: PoolLimit| limit.bytes_of(memory_bytes) / SLAB_BYTES * SLAB_BYTES;
        let (least, most) = (limit(PoolLimit::MIN), limit(PoolLimit::LARGEST));
        let pool_bytes = pool_percent.map_or(most, |percent| limit(PoolLimit::Percent(percent)));
        let is_on = pool_percent.is_none() && !without.has(Mechanism::Partition);
        let partition = Partition::new(is_on, least, most, memory_bytes, 1);
        // The simulated budget does not include memory for zstd contexts.
        let contexts = 0;
        let size = window_pages as usize;
        let codec = Choice::Auto;
        let policies = Policies::new(size, memory_bytes, contexts, partition, codec, without)?;
        policies.readahead.serve(true);
        Ok(Simulation {
            pages: PageTable::new(reserve_u64(size)?),
            space,
            policies,
            pool: CompressedPool::for_one_thread(pool_bytes.max(SLAB_BYTES))?,
            setup,
            contents: vec![Content::default(); size],
            resident: 0,
            slots: HashMap::new(),
            next_slot: 1,
            faults: 0,
            now_ns: 1,
            cpu_ns: 0,
            figures: Figures::default(),
        })
    }

    /// Returns the figures since [`Simulation::forget_figures`].
    #[must_use]
    pub fn figures(&self) -> Figures {
        Figures { pool_bytes: self.pool.used_bytes() as u64, ..self.figures }
    }

    /// Resets the figures to 0.
    pub fn forget_figures(&mut self) {
        self.figures = Figures::default();
    }

    /// Accounts for `cpu_ns` of processor time that the program uses without a fault.
    pub fn work(&mut self, cpu_ns: u64) {
        self.now_ns += cpu_ns;
        self.cpu_ns += cpu_ns;
    }

    /// Touches a page, and sets its compressed sizes to `content` if given.
    ///
    /// # Panics
    /// If the page's number is not below `window_pages`.
    pub fn touch(&mut self, page: PageNo, is_write: bool, content: Option<Content>) {
        let access = if is_write || content.is_some() { Access::Write } else { Access::Read };
        let seen = self.pages.load(page);
        if seen.is_resident() {
            if access == Access::Write && seen.is_protected() {
                self.make_writable(page);
            }
        } else {
            self.page_in(page, access);
        }
        content.into_iter().for_each(|content| self.contents[page as usize] = content);
    }

    /// Unmaps pages.
    pub fn gone(&mut self, range: Range<PageNo>) {
        for page in range {
            let claim = self.pages.claim(page);
            let place = claim.before().place();
            if let Place::Resident { copy, .. } = place {
                self.space.sub_resident(page);
                self.resident -= 1;
                let copy = copy.and_then(|copy| self.detach_copy(copy));
                copy.into_iter().for_each(|copy| self.free(copy));
            }
            self.free(place);
            claim.publish(Place::Vacant);
        }
    }

    fn stall(&mut self, ns: u64, cpu_ns: u64) {
        self.figures.stalled_ns += ns;
        self.now_ns += ns;
        self.cpu_ns += cpu_ns;
    }

    fn reclaim(&mut self, cpu_ns: u64) {
        self.figures.reclaim_ns += cpu_ns;
        self.cpu_ns += cpu_ns;
    }

    fn make_writable(&mut self, page: PageNo) {
        let claim = self.pages.claim(page);
        let Place::Resident { age, copy: Some(copy) } = claim.before().place() else { return };
        claim.publish(Place::resident(age));
        self.detach_copy(copy).into_iter().for_each(|place| self.free(place));
        self.policies.stored_copies.note(
            page,
            self.policies.clock.refaults.refaults_early(page),
            true,
        );
        self.figures.write_faults += 1;
        let ns = self.setup.costs.write_fault_ns;
        self.stall(ns, ns);
    }

    fn ahead(&self) -> Ahead<impl Fn(PageNo) -> bool> {
        let pages = &self.pages;
        Ahead { end: self.setup.window_pages, is_there: |page| pages.load(page).is_resident() }
    }

    /// Faults a page in, like the engine's `page_in`.
    fn page_in(&mut self, page: PageNo, access: Access) {
        let touch = self.policies.readahead.reach(page);
        self.policies.readahead.next_window(touch, &self.ahead());
        self.charge_pages();
        let place = self.pages.load(page).place();
        self.policies.note_return(page, place, || self.pool_view());
        let most = match touch {
            _ if touch.is_requested() || place.in_slot().is_none() => 1,
            _ if !self.policies.has(Mechanism::FaultReadahead) => 1,
            _ => readahead::neighbours(&self.pages, page, || self.resident_of_all()),
        };
        let window = self.policies.readahead.up_to_marker(page, most);
        let is_stream = readahead::is_stream(most);
        if is_stream || touch == Touch::Early || touch.is_requested() {
            self.policies.note_streamed(page, place, self.pool.limit_bytes());
        } else {
            self.policies.note_waited_for(page, place);
        }
        let age = self.policies.age_of_faulted(page, place, self.resident);
        let keep_copy = self.keep_copy(page, place, access, true);
        let tier = self.fetch(place);
        let claim = self.pages.claim(page);
        self.on_swap_in(page, claim, age, keep_copy);
        if tier == Tier::Disk {
            (page + 1..page + window as u64).for_each(|next| self.read_along(next, is_stream));
        }
        if matches!(tier, Tier::Pool | Tier::Disk) {
            self.policies.readahead.expect(page, touch, &self.ahead());
        }
        self.serve();
        self.faults += 1;
        if self.faults.is_multiple_of(BALANCE_FAULTS) {
            self.balance();
        }
    }

    fn fetch(&mut self, place: Place) -> Tier {
        let costs = self.setup.costs;
        let figures = &mut self.figures;
        let (tier, count, ns, cpu_ns) = match place {
            Place::SameFilled { .. } => (
                Tier::SameFilled,
                &mut figures.same_filled_faults,
                costs.same_filled_ns,
                costs.same_filled_ns,
            ),
            Place::Pool { handle } => {
                // The load marks the page's slab as recently used.
                let _ = self.pool.load(Handle::from_bits(handle), |_| ());
                (Tier::Pool, &mut figures.pool_faults, costs.pool_ns, costs.pool_ns)
            }
            Place::Slot { .. } | Place::CompressedSlot { .. } => {
                (Tier::Disk, &mut figures.disk_faults, costs.disk_ns, costs.disk_cpu_ns)
            }
            _ => (Tier::Zero, &mut figures.zero_faults, costs.zero_ns, costs.zero_ns),
        };
        *count += 1;
        self.stall(ns, cpu_ns);
        self.policies.partition.costs.note(tier, ns, Some(cpu_ns));
        tier
    }

    fn read_along(&mut self, page: PageNo, is_stream: bool) {
        let place = if page < self.setup.window_pages {
            self.pages.load(page).place()
        } else {
            Place::Vacant
        };
        if place.in_slot().is_none() {
            return;
        }
        self.charge_pages();
        if is_stream {
            self.policies.note_streamed(page, place, self.pool.limit_bytes());
        }
        let age = self.policies.age_of_read_ahead(page, is_stream, self.resident);
        let keep_copy = self.keep_copy(page, place, Access::Read, false);
        let claim = self.pages.claim(page);
        self.on_swap_in(page, claim, age, keep_copy);
        self.figures.pages_ahead += 1;
        let ns = self.setup.costs.along_ns;
        self.stall(if is_stream { 0 } else { ns }, ns);
    }

    fn serve(&mut self) {
        while let Some(request) = self.policies.readahead.take() {
            let marker = request.marker();
            let ahead = self.figures.pages_ahead;
            for page in request.pages(0..self.setup.window_pages) {
                if Some(page) != marker {
                    self.read_along(page, true);
                }
            }
            let read = self.figures.pages_ahead - ahead;
            let ns = read * self.setup.costs.along_ns;
            self.policies.admission.read().took(read as usize, ns);
        }
    }

    fn on_swap_in(&mut self, page: PageNo, claim: Claim<'_>, age: u8, keep_copy: KeepCopy) {
        let place = claim.before().place();
        let copy = keep_copy.copy_of(place);
        let copies = &mut self.policies.stored_copies;
        match copy {
            None => self.free(place),
            Some(StoredCopy::Pool { .. }) => {
                *copies.pooled.get_mut() += 1;
                if let Place::Pool { handle } = place {
                    *copies.pooled_bytes.get_mut() += Handle::from_bits(handle).compressed_bytes();
                }
            }
            Some(StoredCopy::Slot(_)) => *copies.count.get_mut() += 1,
        }
        self.space.touch(page);
        self.space.add_resident(page, 1);
        claim.publish(Place::Resident { age, copy });
        self.resident += 1;
    }

    /// Returns how much of the stored copy to keep, like `swap_cache::keep_copy`.
    fn keep_copy(&self, page: PageNo, place: Place, access: Access, is_touched: bool) -> KeepCopy {
        if access == Access::Write {
            return KeepCopy::No;
        }
        let has_space_left = match place {
            Place::Slot { .. } | Place::CompressedSlot { .. } => true,
            Place::Pool { handle } => self.may_keep_pooled(Handle::from_bits(handle)),
            _ => return KeepCopy::No,
        };
        self.policies.keep_copy(page, place, has_space_left, is_touched)
    }

    fn may_keep_pooled(&self, handle: Handle) -> bool {
        let (used, limit) = (self.pool.used_bytes(), self.pool.limit_bytes());
        let budget_bytes = self.setup.memory_bytes;
        let copies = &self.policies.stored_copies;
        copies.has_share(handle.compressed_bytes(), budget_bytes, limit)
            && used * 100 <= limit * NEARLY_FULL_PERCENT
    }

    fn detach_copy(&mut self, copy: StoredCopy) -> Option<Place> {
        let copies = &mut self.policies.stored_copies;
        match copy {
            StoredCopy::Slot(copy) => {
                *copies.count.get_mut() -= 1;
                Some(copy.place())
            }
            StoredCopy::Pool { object } => {
                *copies.pooled.get_mut() -= 1;
                let handle = self.pool.handle_of(object)?;
                *copies.pooled_bytes.get_mut() -= handle.compressed_bytes();
                Some(Place::Pool { handle: handle.to_bits() })
            }
        }
    }

    fn free(&mut self, place: Place) {
        match place {
            Place::Pool { handle } => self.pool.free(Handle::from_bits(handle)),
            Place::Slot { slot, .. } | Place::CompressedSlot { slot, .. } => {
                let parts = self.slots.get_mut(&slot);
                let is_last = parts.is_none_or(|parts| {
                    *parts -= 1;
                    *parts == 0
                });
                if is_last {
                    self.slots.remove(&slot);
                }
            }
            _ => {}
        }
    }

    fn pool_view(&self) -> PoolView {
        PoolView {
            limit_bytes: self.pool.limit_bytes(),
            used_bytes: self.pool.used_bytes(),
            objects: self.pool.objects(),
        }
    }

    fn resident_of_all(&self) -> (usize, usize) {
        let out = self.slots.len().saturating_sub(self.policies.stored_copies.count());
        let pooled = self.pool.objects().saturating_sub(self.policies.stored_copies.pooled());
        (self.resident, self.resident + out + pooled)
    }

    fn balance(&mut self) {
        let partition = &self.policies.partition;
        let cpu_ns = self.cpu_ns;
        partition.costs.sample(self.now_ns, || cpu_ns);
        let distance =
            |random| self.policies.clock.refaults.distance(self.pool.owner_at_random(random)?);
        let set_limit = |limit_bytes| self.pool.set_limit_bytes(limit_bytes);
        partition.step(|| self.pool_view(), distance, set_limit);
    }

    fn used_bytes(&self) -> usize {
        self.resident * PAGE_SIZE + self.pool.used_bytes()
    }
}

#[cfg(test)]
mod tests;
