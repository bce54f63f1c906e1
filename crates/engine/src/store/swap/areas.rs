//! All swap areas of an engine as one: who is asked for slots first, and whose
//! a slot is.
//!
//! Areas of the highest priority are filled first; among equals each batch goes
//! to the next one in turn, so that their devices work side by side. A slot's
//! number has its area in the upper bits, so that everything that knows slots
//! need not know areas.

mod own;

use super::area::{
    Area, AreaConfig, AreaError, AreaFull, Discarded, FixedPages, MAX_SLOTS, Run, Share,
};
use super::batch::SlotBatch;
use super::discard::Discard;
use crate::codec::seal::{Seal, Sealer};
use crate::store::io::poll::Polling;
use crate::store::io::poll::mode::{Knobs, Mode};
use crate::store::io::{Device, Facts, IoError, Lane};
use softswap_shared::cluster_table::ClusterTable;
use softswap_sys::file::SwapFile;
use softswap_sys::segment::StaticRange;
use std::cmp::Reverse;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};

const SLOT_BITS: u32 = MAX_SLOTS.trailing_zeros();
pub use super::cluster::MAX_AREAS;
const _: () = assert!(MAX_AREAS == 1 << (40 - SLOT_BITS));

/// Where an area's pages go.
pub enum Layout {
    /// A file that grows and shrinks, up to a limit if there is one.
    Growing {
        /// The most it may take, in bytes.
        limit_bytes: Option<u64>,
        /// What stays free on the file system, in bytes.
        reserve_bytes: u64,
        /// What it grows by, in bytes.
        chunk_bytes: u64,
    },
    /// Pages that somebody set aside.
    Fixed(FixedPages),
    /// Such pages, which a tree of processes shares.
    Shared(SharedPages),
}

/// Pages that somebody set aside, shared by a tree of processes.
///
/// ```
/// use softswap_engine::store::swap::{FixedPages, SharedPages};
/// use softswap_shared::cluster_table::{ClusterTables, SharedArea};
/// use softswap_sys::memory::reserve_u64;
/// let area = SharedArea { device: 1, inode: 2, clusters: 2 };
/// let words = reserve_u64(ClusterTables::words(&[area])).unwrap();
/// let table = ClusterTables::create(words, &[area]).table(area).unwrap();
/// let pages = FixedPages { pages: 1024, spans: vec![(0, 1024, 0)], bad_pages: vec![] };
/// let shared = SharedPages { pages: pages.into(), table, mark: 2, file: None, inherited: -1 };
/// assert_eq!(shared.table.free_count(), 2);
/// ```
#[derive(Debug, Clone)]
pub struct SharedPages {
    /// Which pages.
    pub pages: Arc<FixedPages>,
    /// Whose they are.
    pub table: ClusterTable,
    /// What this process's own are marked with there, as the open file is: see
    /// [`softswap_shared::cluster_table`].
    pub mark: u64,
    /// That open file; without, nobody is ever taken for dead.
    pub file: Option<Arc<SwapFile>>,
    /// The descriptor of the file that all of the tree inherit.
    pub inherited: i32,
}

/// What an area is made of.
///
/// ```
/// use softswap_engine::store::swap::Backing;
/// use softswap_testkit::SimDevice;
/// let device = Box::new(SimDevice::new(1 << 30, 1));
/// let preferred = Backing { priority: 10, ..Backing::growing(device, Some(1 << 29), 0) };
/// assert_eq!(preferred.poll, None); // It is waited for as is usual.
/// ```
pub struct Backing {
    /// What holds the pages.
    pub device: Box<dyn Device>,
    /// Where on it.
    pub layout: Layout,
    /// Areas with a higher one are filled first.
    pub priority: i32,
    /// When it is told what is not needed.
    pub discard: Discard,
    /// How a thread waits for a single page from it; `None`: as for all.
    pub poll: Option<Mode>,
}

impl Backing {
    /// A file of its own on `device`, which grows by 64 MiB at a time.
    #[must_use]
    pub fn growing(
        device: Box<dyn Device>,
        limit_bytes: Option<u64>,
        reserve_bytes: u64,
    ) -> Backing {
        const CHUNK_BYTES: u64 = 64 << 20;
        let layout = Layout::Growing { limit_bytes, reserve_bytes, chunk_bytes: CHUNK_BYTES };
        Backing { device, layout, priority: 0, discard: Discard::None, poll: None }
    }

    /// Makes an area of it.
    ///
    /// # Errors
    /// When it has no room, or there is no address space for the tables.
    fn into_area(
        self,
        cpus: usize,
        polling: impl FnOnce(Option<Mode>) -> Polling,
    ) -> Result<Area, AreaError> {
        let polling = polling(self.poll);
        let config = AreaConfig { cpus, discard: self.discard, ..AreaConfig::default() };
        match self.layout {
            Layout::Growing { limit_bytes, reserve_bytes, chunk_bytes } => {
                let config = AreaConfig { limit_bytes, reserve_bytes, chunk_bytes, ..config };
                Area::growing(self.device, config, polling)
            }
            Layout::Fixed(pages) => Area::fixed(self.device, &pages, config, polling),
            Layout::Shared(SharedPages { pages, table, mark, file, .. }) => {
                let share = Share::new(table, mark, file);
                Area::shared(self.device, &pages, share, config, polling)
            }
        }
    }
}

/// Areas of one priority.
#[derive(Debug)]
struct Equals {
    members: Box<[usize]>,
    next: AtomicUsize,
}

/// A channel to each area, for one owner at a time.
#[derive(Debug)]
pub(crate) struct Lanes {
    list: Box<[Lane]>,
    /// To those that were added later.
    plain: Lane,
}

impl Lanes {
    /// In a forked child: no ring may be used that the parent uses too. They
    /// are not dropped: their completions are the parent's.
    pub(crate) fn give_up_rings(&mut self) {
        for lane in &mut self.list {
            std::mem::forget(std::mem::replace(lane, Lane::Plain));
        }
    }
}

/// An area, and what seals its pages.
#[derive(Debug)]
struct Entry {
    area: Area,
    sealer: Arc<Sealer>,
}

/// The swap areas.
#[derive(Debug)]
pub(crate) struct Areas {
    /// [`MAX_AREAS`], of which the first `count` are there.
    list: Box<[OnceLock<Entry>]>,
    count: AtomicUsize,
    /// Those before it are a parent's.
    first_own: AtomicUsize,
    /// Freezes that have not ended.
    freezes: Mutex<u32>,
    /// The highest priority first.
    order: Box<[Equals]>,
    /// So many areas, from the first on, are reached through rings.
    with_rings: usize,
}

impl Areas {
    /// Makes areas of what there is, at least one and at most [`MAX_AREAS`],
    /// each with statistics from `polling`. `sealer` seals the pages of all.
    ///
    /// # Errors
    /// Those of the first area that cannot be made.
    pub(crate) fn new(
        storage: Vec<Backing>,
        cpus: usize,
        polling: impl Fn(Option<Mode>) -> Polling,
        sealer: Sealer,
    ) -> Result<Areas, AreaError> {
        if storage.is_empty() || storage.len() > MAX_AREAS {
            return Err(AreaError::Count { areas: storage.len(), most: MAX_AREAS });
        }
        let priorities: Vec<_> = storage.iter().map(|storage| storage.priority).collect();
        let made: Result<Vec<Area>, _> =
            storage.into_iter().map(|storage| storage.into_area(cpus, &polling)).collect();
        let equals = |priority| Equals {
            members: (0..priorities.len()).filter(|at| priorities[*at] == priority).collect(),
            next: AtomicUsize::new(0),
        };
        let mut distinct = priorities.clone();
        distinct.sort_unstable_by_key(|priority| Reverse(*priority));
        distinct.dedup();
        let order = distinct.into_iter().map(equals).collect();
        let made = made?;
        let count = made.len();
        let sealer = Arc::new(sealer);
        let made = made.into_iter().map(|area| Entry { area, sealer: Arc::clone(&sealer) });
        let later = std::iter::repeat_with(OnceLock::new).take(MAX_AREAS - count);
        Ok(Areas {
            list: made.map(OnceLock::from).chain(later).collect(),
            count: AtomicUsize::new(count),
            first_own: AtomicUsize::new(0),
            freezes: Mutex::new(0),
            order,
            with_rings: count,
        })
    }

    /// Leaves rings out for the areas for which `most` descriptors would not do;
    /// for the first one, twice as many. `contexts`: how often lanes will be
    /// opened.
    #[must_use]
    pub(crate) fn within_descriptors(mut self, contexts: usize, most: usize) -> Areas {
        let rings = self.iter().map(rings_of).scan(0, |sum, rings| {
            *sum += rings * contexts;
            Some(*sum)
        });
        self.with_rings = rings.take_while(|sum| *sum <= most).count();
        if self.with_rings == 0 && rings_of(self.area(0)) * contexts <= 2 * most {
            self.with_rings = 1;
        }
        self
    }

    /// Rings that lanes to all areas have.
    #[must_use]
    pub(crate) fn rings(&self) -> usize {
        self.iter().take(self.with_rings).map(rings_of).sum()
    }

    /// Each of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Area> {
        self.list.iter().map_while(OnceLock::get).map(|entry| &entry.area)
    }

    /// Says where most buffers will lie, before lanes are opened.
    pub(crate) fn expect_buffers(&mut self, range: StaticRange) {
        let entries = self.list.iter_mut().filter_map(OnceLock::get_mut);
        for (index, Entry { area, .. }) in entries.enumerate() {
            area.expect_buffers((index < self.with_rings).then_some(range));
        }
    }

    /// Opens a channel to each.
    #[must_use]
    pub(crate) fn open_lanes(&self) -> Lanes {
        let lane = |(index, area): (usize, &Area)| match index < self.with_rings {
            true => area.open_lane(),
            false => Lane::Plain,
        };
        Lanes { list: self.iter().enumerate().map(lane).collect(), plain: Lane::Plain }
    }

    /// How the devices are reached: see [`Facts::of_all`].
    #[must_use]
    pub(crate) fn facts(&self) -> Facts {
        let facts = Facts::of_all(self.iter().map(Area::facts));
        let have_rings = self.rings() == self.iter().map(rings_of).sum();
        Facts { io_uring: facts.io_uring && have_rings, ..facts }
    }

    /// How reads of single pages are waited for, area by area.
    pub(crate) fn knobs(&self) -> impl Iterator<Item = &Knobs> {
        self.iter().map(|area| area.polling().knobs())
    }

    /// Takes up to `want` adjacent slots from the best area that has any.
    ///
    /// # Errors
    /// When none has; says what stopped them.
    pub(crate) fn alloc_run(&self, cpu: usize, want: usize) -> Result<Run, AreaFull> {
        // Those that failed come last: one may have recovered.
        self.alloc_among(cpu, want, false).or_else(|full| {
            let is_any_last = self.own().any(Area::is_last);
            if is_any_last { self.alloc_among(cpu, want, true) } else { Err(full) }
        })
    }

    /// Takes up to `want` slots from the best area that has any, in as few runs as
    /// can be had without searching far.
    ///
    /// # Errors
    /// As [`Areas::alloc_run`].
    pub(crate) fn alloc_batch(&self, cpu: usize, want: usize) -> Result<SlotBatch, AreaFull> {
        self.complete(cpu, want, |want| self.alloc_run(cpu, want))
    }

    /// As [`Areas::alloc_batch`], but in no area that is asked last.
    ///
    /// # Errors
    /// When none of the others has any.
    pub(crate) fn alloc_elsewhere(&self, cpu: usize, want: usize) -> Result<SlotBatch, AreaFull> {
        self.complete(cpu, want, |want| self.alloc_among(cpu, want, false))
    }

    /// The first run that can be had, and what its area has beside it, up to so many slots.
    fn complete(
        &self,
        cpu: usize,
        want: usize,
        first: impl FnOnce(usize) -> Result<Run, AreaFull>,
    ) -> Result<SlotBatch, AreaFull> {
        let want = want.clamp(1, SlotBatch::MOST);
        let run = first(want)?;
        let index = index_of(run.first);
        let mut batch = SlotBatch::of(run);
        while let missing @ 1.. = want - batch.as_slice().len() {
            let Ok(run) = self.area(index).alloc_run(cpu, missing) else { break };
            batch.add(Run { first: global(index, run.first), ..run });
        }
        Ok(batch)
    }

    /// Asks the areas that are asked last, or the others.
    fn alloc_among(&self, cpu: usize, want: usize, last: bool) -> Result<Run, AreaFull> {
        if self.has_inherited() {
            return self.alloc_added(cpu, want, last);
        }
        let mut refused = None;
        for equals in &self.order {
            let count = equals.members.len();
            let first = if count > 1 { equals.next.fetch_add(1, Relaxed) % count } else { 0 };
            for step in 0..count {
                let index = equals.members[(first + step) % count];
                let area = self.area(index);
                if area.is_last() != last {
                    continue;
                }
                match area.alloc_run(cpu, want) {
                    Ok(run) => return Ok(Run { first: global(index, run.first), ..run }),
                    Err(full) => refused = Some(full),
                }
            }
        }
        Err(match refused {
            Some(full) if self.count() == 1 => full,
            None => AreaFull::Failed,
            Some(_) => AreaFull::Every { areas: self.count(), size_bytes: self.size_bytes() },
        })
    }

    /// As [`Areas::alloc_among`], in the areas that were added, one after the other.
    fn alloc_added(&self, cpu: usize, want: usize, last: bool) -> Result<Run, AreaFull> {
        let mut refused = AreaFull::Failed;
        for index in self.first_own()..self.count() {
            let area = self.area(index);
            if area.is_last() != last {
                continue;
            }
            match area.alloc_run(cpu, want) {
                Ok(run) => return Ok(Run { first: global(index, run.first), ..run }),
                Err(full) => refused = full,
            }
        }
        Err(refused)
    }

    /// Gives slots back. Their content may be overwritten at once, unless the
    /// areas are frozen.
    pub(crate) fn free(&self, first: u64, len: usize) {
        let (area, first) = self.of(first);
        area.free(first, len);
    }

    /// Notes which parts of a slot's page are in use.
    pub(crate) fn set_parts(&self, slot: u64, parts: u32) {
        let (area, slot) = self.of(slot);
        area.set_parts(slot, parts);
    }

    /// Gives one part of a slot's page back, and with the last the slot.
    pub(crate) fn free_part(&self, slot: u64, part: u8) {
        let (area, slot) = self.of(slot);
        area.free_part(slot, part);
    }

    /// Gives slots back that were taken and never used: at once, since nobody
    /// knows of them.
    pub(crate) fn give_back(&self, first: u64, len: usize) {
        let (area, first) = self.of(first);
        area.give_back(first, len);
    }

    /// Takes slots out of service whose storage failed.
    pub(crate) fn retire(&self, first: u64, len: usize) {
        let (area, first) = self.of(first);
        area.retire(first, len);
    }

    /// Notes the seal of what a slot holds.
    pub(crate) fn set_seal(&self, slot: u64, seal: Seal) {
        let (area, slot) = self.of(slot);
        area.set_seal(slot, seal);
    }

    /// The seal last noted for a slot.
    #[must_use]
    pub(crate) fn seal(&self, slot: u64) -> Seal {
        let (area, slot) = self.of(slot);
        area.seal(slot)
    }

    /// How often a slot was handed out.
    #[must_use]
    pub(crate) fn generation(&self, slot: u64) -> u32 {
        let (area, slot) = self.of(slot);
        area.generation(slot)
    }

    /// Writes one page to each of `slots`, all of which lie in one area: as
    /// [`Area::write_each`].
    ///
    /// # Errors
    /// As [`Area::write_each`].
    pub(crate) fn write_each(
        &self,
        lanes: &mut Lanes,
        slots: &[u64],
        buf: &[u8],
    ) -> Result<(), IoError> {
        let Some(first) = slots.first() else { return Ok(()) };
        debug_assert!(slots.iter().all(|slot| self.are_together(*first, *slot)));
        let (area, _) = self.of(*first);
        area.write_each(lane_of(lanes, *first), |at| self.of(slots[at]).1, buf)
    }

    /// Reads whole pages from `first` and the slots that follow it.
    ///
    /// # Errors
    /// As [`Area::read`].
    pub(crate) fn read(
        &self,
        lanes: &mut Lanes,
        first: u64,
        buf: &mut [u8],
    ) -> Result<(), IoError> {
        let (area, slot) = self.of(first);
        area.read(lane_of(lanes, first), slot, buf)
    }

    /// Reads one page from each of `slots`, all of which lie in one area: as
    /// [`Area::read_each`].
    ///
    /// # Errors
    /// As [`Area::read`].
    pub(crate) fn read_each(
        &self,
        lanes: &mut Lanes,
        slots: &[u64],
        buf: &mut [u8],
        waits: bool,
    ) -> Result<(), IoError> {
        let Some(first) = slots.first() else { return Ok(()) };
        debug_assert!(slots.iter().all(|slot| self.are_together(*first, *slot)));
        let (area, _) = self.of(*first);
        area.read_each(lane_of(lanes, *first), |at| self.of(slots[at]).1, buf, waits)
    }

    /// How many runs of slots of the area of `slot` are read at once.
    #[must_use]
    pub(crate) fn reads_at_once(&self, lanes: &Lanes, slot: u64) -> usize {
        lanes.list.get(index_of(slot)).unwrap_or(&lanes.plain).reads_at_once()
    }

    /// Whether two slots lie in one area.
    #[must_use]
    pub(crate) fn are_together(&self, one: u64, other: u64) -> bool {
        index_of(one) == index_of(other)
    }

    /// Reads one page that the calling thread has nothing to do without.
    ///
    /// # Errors
    /// As [`Area::read_page`].
    pub(crate) fn read_page(
        &self,
        lanes: &mut Lanes,
        slot: u64,
        page: &mut [u8],
    ) -> Result<(), IoError> {
        let (area, local) = self.of(slot);
        area.read_page(lane_of(lanes, slot), local, page)
    }

    /// Why the area of `slot` takes nothing now, where an error of a write says that.
    #[must_use]
    pub(crate) fn refusal(&self, slot: u64, error: &IoError) -> Option<AreaFull> {
        self.of(slot).0.refusal(error)
    }

    /// Whether a slot's area has failed.
    #[must_use]
    pub(crate) fn has_failed(&self, slot: u64) -> bool {
        self.of(slot).0.has_failed()
    }

    /// Whether a slot's area can do without the slots of pages that are in DRAM.
    #[must_use]
    pub(crate) fn has_spare(&self, slot: u64) -> bool {
        self.of(slot).0.has_spare()
    }

    /// Whether slots are plenty: there is an area that works and is less than half full.
    #[must_use]
    pub(crate) fn have_spare(&self) -> bool {
        self.own().any(Area::has_spare)
    }

    /// Whether a slot's area is one whose pages are to be brought elsewhere.
    #[must_use]
    pub(crate) fn is_leaving(&self, slot: u64) -> bool {
        self.of(slot).0.is_leaving()
    }

    /// Discards one cluster of any area that has one waiting.
    pub(crate) fn discard_one(&self) -> Discarded {
        let mut results = self.own().map(Area::discard_one);
        results.find(|done| *done != Discarded::Nothing).unwrap_or(Discarded::Nothing)
    }

    /// Gives storage back that is not needed. Returns the bytes given back.
    pub(crate) fn shrink(&self) -> u64 {
        self.own().map(Area::shrink).sum()
    }

    /// Slots taken, those freed in a freeze included.
    #[must_use]
    pub(crate) fn used_slots(&self) -> u64 {
        self.iter().map(Area::used_slots).sum()
    }

    /// Backing claimed so far, in bytes.
    #[must_use]
    pub(crate) fn size_bytes(&self) -> u64 {
        self.iter().map(Area::size_bytes).sum()
    }

    /// Slots out of service because writing to them failed.
    #[must_use]
    pub(crate) fn retired_slots(&self) -> u64 {
        self.iter().map(Area::retired_slots).sum()
    }

    /// DRAM that the tables take by now, in bytes.
    #[must_use]
    pub(crate) fn metadata_bytes(&self) -> u64 {
        self.iter().map(Area::metadata_bytes).sum()
    }

    fn of(&self, slot: u64) -> (&Area, u64) {
        (self.area(index_of(slot)), slot & (MAX_SLOTS - 1))
    }

    fn area(&self, index: usize) -> &Area {
        &self.entry(index).area
    }

    /// One that is there: who has a slot of an area has seen that it was added.
    fn entry(&self, index: usize) -> &Entry {
        self.list[index].get().expect("a slot of an area that was never added")
    }
}

/// Rings of a lane: two more where the device can be asked for completions.
fn rings_of(area: &Area) -> usize {
    let facts = area.facts();
    match (facts.io_uring, facts.device_polling) {
        (false, _) => 0,
        (true, false) => 1,
        (true, true) => 3,
    }
}

fn index_of(slot: u64) -> usize {
    (slot >> SLOT_BITS) as usize
}

fn global(index: usize, slot: u64) -> u64 {
    (index as u64) << SLOT_BITS | slot
}

fn lane_of(lanes: &mut Lanes, slot: u64) -> &mut Lane {
    lanes.list.get_mut(index_of(slot)).unwrap_or(&mut lanes.plain)
}

#[cfg(test)]
#[path = "areas_tests.rs"]
mod tests;
