//! All swap areas of an engine: the order of allocation, and the area of each slot.
//!
//! Areas with the highest priority are filled first. Areas of equal priority take batches in turn,
//! so their devices work in parallel. The upper bits of a slot's number are its area.

mod own;

use super::area::{
    AreaConfig, AreaError, AreaFull, Discarded, FixedPages, MAX_SLOTS, Run, SwapArea, TreeShare,
};
use super::batch::SlotBatch;
use super::discard::Discard;
use crate::codec::seal::Sealer;
use crate::store::io::poll::Polling;
use crate::store::io::poll::mode::{Knobs, Mode};
use crate::store::io::{Device, DeviceProperties, IoError, Lane};
use softswap_shared::cluster_table::ClusterTable;
use softswap_sys::block_map::Fingerprint;
use softswap_sys::file::SwapFile;
use softswap_sys::segment::StaticRange;
use std::cmp::Reverse;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};

const SLOT_BITS: u32 = MAX_SLOTS.trailing_zeros();
pub use super::cluster::MAX_AREAS;
const _: () = assert!(MAX_AREAS == 1 << (40 - SLOT_BITS));
/// Maximum number of rings of one lane.
pub(crate) const MAX_RINGS: usize = 3;

pub enum Layout {
    Growing {
        limit_bytes: Option<u64>,
        /// Space that stays free on the file system, in bytes.
        reserve_bytes: u64,
        chunk_bytes: u64,
        may_start_full: bool,
    },
    Fixed(FixedPages),
    Shared(SharedPages),
}

/// Preallocated pages, shared by a tree of processes.
#[derive(Debug, Clone)]
pub struct SharedPages {
    pub pages: Arc<FixedPages>,
    pub table: ClusterTable,
    /// Mark of this process's clusters and of its file: see [`softswap_shared::cluster_table`].
    pub mark: u64,
    /// The marked open file, or the raw one's device. Without it no owner is considered dead.
    pub file: Option<Arc<SwapFile>>,
    /// The descriptor of the file that all processes of the tree inherit.
    pub inherited: i32,
    /// The swap file and its verified map, if it is written through its device.
    pub raw: Option<(Arc<SwapFile>, Fingerprint)>,
}

pub struct Backing {
    pub device: Box<dyn Device>,
    pub layout: Layout,
    /// Areas with a higher priority are filled first.
    pub priority: i32,
    pub discard: Discard,
    pub poll: Option<Mode>,
}

impl Backing {
    pub fn growing(
        device: Box<dyn Device>,
        limit_bytes: Option<u64>,
        reserve_bytes: u64,
    ) -> Backing {
        let layout = Layout::Growing {
            limit_bytes,
            reserve_bytes,
            chunk_bytes: 64 << 20,
            may_start_full: false,
        };
        Backing { device, layout, priority: 0, discard: Discard::None, poll: None }
    }

    /// Accepts a file system without free space: the area grows when space becomes free.
    #[must_use]
    pub fn even_if_full(mut self) -> Backing {
        if let Layout::Growing { may_start_full, .. } = &mut self.layout {
            *may_start_full = true;
        }
        self
    }

    fn into_area(
        self,
        cpus: usize,
        polling: impl FnOnce(Option<Mode>) -> Polling,
    ) -> Result<SwapArea, AreaError> {
        let polling = polling(self.poll);
        let config = AreaConfig { cpus, discard: self.discard, ..AreaConfig::default() };
        match self.layout {
            Layout::Growing { limit_bytes, reserve_bytes, chunk_bytes, may_start_full } => {
                let config = AreaConfig {
                    limit_bytes,
                    reserve_bytes,
                    chunk_bytes,
                    may_start_full,
                    ..config
                };
                SwapArea::growing(self.device, config, polling)
            }
            Layout::Fixed(pages) => SwapArea::fixed(self.device, &pages, config, polling),
            Layout::Shared(SharedPages { pages, table, mark, file, .. }) => {
                let share = TreeShare::new(table, mark, file);
                SwapArea::shared(self.device, &pages, share, config, polling)
            }
        }
    }
}

struct EqualPriority {
    members: Box<[usize]>,
    next: AtomicUsize,
}

impl EqualPriority {
    fn in_turn(&self) -> impl Iterator<Item = usize> + '_ {
        let count = self.members.len();
        let first = if count > 1 { self.next.fetch_add(1, Relaxed) % count } else { 0 };
        (0..count).map(move |step| self.members[(first + step) % count])
    }
}

pub(crate) struct Lanes {
    list: Box<[Lane]>,
    plain: Lane,
}

impl Lanes {
    /// Replaces all rings in a forked child, without a drop: their completions are the parent's.
    pub(crate) fn abandon_rings(&mut self) {
        for lane in &mut self.list {
            std::mem::forget(std::mem::replace(lane, Lane::Plain));
        }
    }
}

struct Entry {
    area: SwapArea,
    sealer: Arc<Sealer>,
}

pub(crate) struct SwapAreas {
    /// [`MAX_AREAS`] entries; the first `count` are set.
    list: Box<[OnceLock<Entry>]>,
    count: AtomicUsize,
    /// Areas with a lower index belong to a parent.
    first_own: AtomicUsize,
    freezes: Mutex<u32>,
    order: Box<[EqualPriority]>,
    /// Number of areas that use rings. They are the first ones.
    with_rings: usize,
}

impl SwapAreas {
    /// Creates between one and [`MAX_AREAS`] areas, whose pages `sealer` seals.
    pub(crate) fn new(
        storage: Vec<Backing>,
        cpus: usize,
        polling: impl Fn(Option<Mode>) -> Polling,
        sealer: Sealer,
    ) -> Result<SwapAreas, AreaError> {
        if storage.is_empty() || storage.len() > MAX_AREAS {
            return Err(AreaError::Count { areas: storage.len(), most: MAX_AREAS });
        }
        let priorities: Vec<_> = storage.iter().map(|storage| storage.priority).collect();
        let created: Result<Vec<SwapArea>, _> =
            storage.into_iter().map(|storage| storage.into_area(cpus, &polling)).collect();
        let same_priority = |priority| EqualPriority {
            members: (0..priorities.len()).filter(|at| priorities[*at] == priority).collect(),
            next: AtomicUsize::new(0),
        };
        let mut distinct = priorities.clone();
        distinct.sort_unstable_by_key(|priority| Reverse(*priority));
        distinct.dedup();
        let order = distinct.into_iter().map(same_priority).collect();
        let created = created?;
        let count = created.len();
        let sealer = Arc::new(sealer);
        let created = created.into_iter().map(|area| Entry { area, sealer: Arc::clone(&sealer) });
        let later = std::iter::repeat_with(OnceLock::new).take(MAX_AREAS - count);
        Ok(SwapAreas {
            list: created.map(OnceLock::from).chain(later).collect(),
            count: AtomicUsize::new(count),
            first_own: AtomicUsize::new(0),
            freezes: Mutex::new(0),
            order,
            with_rings: count,
        })
    }

    /// Disables rings for areas that would need more than `most` descriptors in all; the first area
    /// may use twice as many. `contexts` is the number of lanes to each area.
    #[must_use]
    pub(crate) fn within_descriptors(mut self, contexts: usize, most: usize) -> SwapAreas {
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

    pub(crate) fn rings(&self) -> usize {
        self.iter().take(self.with_rings).map(rings_of).sum()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &SwapArea> {
        self.list.iter().map_while(OnceLock::get).map(|entry| &entry.area)
    }

    pub(crate) fn expect_buffers(&mut self, range: StaticRange) {
        let entries = self.list.iter_mut().filter_map(OnceLock::get_mut);
        for (index, Entry { area, .. }) in entries.enumerate() {
            area.expect_buffers((index < self.with_rings).then_some(range));
        }
    }

    pub(crate) fn open_lanes(&self) -> Lanes {
        let lane = |(index, area): (usize, &SwapArea)| match index < self.with_rings {
            true => area.open_lane(),
            false => Lane::Plain,
        };
        Lanes { list: self.iter().enumerate().map(lane).collect(), plain: Lane::Plain }
    }

    pub(crate) fn properties(&self) -> DeviceProperties {
        let properties = DeviceProperties::of_all(self.iter().map(SwapArea::properties));
        let have_rings = self.rings() == self.iter().map(rings_of).sum();
        DeviceProperties { io_uring: properties.io_uring && have_rings, ..properties }
    }

    pub(crate) fn knobs(&self) -> impl Iterator<Item = &Knobs> {
        self.iter().map(|area| area.polling().knobs())
    }

    /// Takes up to `want` adjacent slots from the best area that has any.
    pub(crate) fn alloc_from_areas(&self, cpu: usize, want: usize) -> Result<Run, AreaFull> {
        // Failed areas come last: they may have recovered.
        self.alloc_among(cpu, want, false).or_else(|full| {
            let is_any_last = self.own().any(SwapArea::is_last);
            if is_any_last { self.alloc_among(cpu, want, true) } else { Err(full) }
        })
    }

    /// Takes up to `want` slots, in few runs, without searching far.
    pub(crate) fn alloc_batch(&self, cpu: usize, want: usize) -> Result<SlotBatch, AreaFull> {
        self.complete(cpu, want, |want| self.alloc_from_areas(cpu, want))
    }

    /// As [`SwapAreas::alloc_batch`], but skips areas that failed or refused a write recently.
    pub(crate) fn alloc_elsewhere(&self, cpu: usize, want: usize) -> Result<SlotBatch, AreaFull> {
        self.complete(cpu, want, |want| self.alloc_among(cpu, want, false))
    }

    fn complete(
        &self,
        cpu: usize,
        want: usize,
        first: impl FnOnce(usize) -> Result<Run, AreaFull>,
    ) -> Result<SlotBatch, AreaFull> {
        let want = want.clamp(1, SlotBatch::MAX);
        let run = first(want)?;
        let index = index_of(run.first);
        let mut batch = SlotBatch::of(run);
        while let missing @ 1.. = want - batch.as_slice().len() {
            let Ok(run) = self.area(index).alloc_run(cpu, missing) else { break };
            batch.add(Run { first: global(index, run.first), ..run });
        }
        Ok(batch)
    }

    fn alloc_among(&self, cpu: usize, want: usize, last: bool) -> Result<Run, AreaFull> {
        let mut refused = None;
        let mut alloc = |index: usize| {
            let area = self.area(index);
            let run = (area.is_last() == last).then(|| area.alloc_run(cpu, want))?;
            let run = run.inspect_err(|full| refused = Some(*full)).ok()?;
            Some(Run { first: global(index, run.first), ..run })
        };
        let run = if self.has_inherited() {
            (self.first_own()..self.count()).find_map(&mut alloc)
        } else {
            self.order.iter().find_map(|same_priority| same_priority.in_turn().find_map(&mut alloc))
        };
        run.ok_or_else(|| match refused {
            Some(full) if self.count() == 1 || self.has_inherited() => full,
            None => AreaFull::Failed,
            Some(_) => AreaFull::Every { areas: self.count(), size_bytes: self.size_bytes() },
        })
    }

    pub(crate) fn free(&self, first: u64, len: usize) {
        let (area, first) = self.of(first);
        area.free(first, len);
    }

    pub(crate) fn free_unused(&self, first: u64, len: usize) {
        let (area, first) = self.of(first);
        area.free_unused(first, len);
    }

    pub(crate) fn generation(&self, slot: u64) -> u32 {
        let (area, slot) = self.of(slot);
        area.generation(slot)
    }

    pub(crate) fn write_each(
        &self,
        lanes: &mut Lanes,
        slots: &[u64],
        buf: &[u8],
    ) -> Result<(), IoError> {
        let Some(first) = slots.first() else { return Ok(()) };
        debug_assert!(slots.iter().all(|slot| self.are_in_one_area(*first, *slot)));
        let (area, _) = self.of(*first);
        area.write_each(lane_of(lanes, *first), |at| self.of(slots[at]).1, buf)
    }

    pub(crate) fn read(
        &self,
        lanes: &mut Lanes,
        first: u64,
        buf: &mut [u8],
    ) -> Result<(), IoError> {
        let (area, slot) = self.of(first);
        area.read(lane_of(lanes, first), slot, buf)
    }

    pub(crate) fn read_each(
        &self,
        lanes: &mut Lanes,
        slots: &[u64],
        buf: &mut [u8],
        waits: bool,
    ) -> Result<(), IoError> {
        let Some(first) = slots.first() else { return Ok(()) };
        debug_assert!(slots.iter().all(|slot| self.are_in_one_area(*first, *slot)));
        let (area, _) = self.of(*first);
        area.read_each(lane_of(lanes, *first), |at| self.of(slots[at]).1, buf, waits)
    }

    pub(crate) fn reads_at_once(&self, lanes: &Lanes, slot: u64) -> usize {
        lanes.list.get(index_of(slot)).unwrap_or(&lanes.plain).reads_at_once()
    }

    pub(crate) fn are_in_one_area(&self, one: u64, other: u64) -> bool {
        index_of(one) == index_of(other)
    }

    pub(crate) fn read_page(
        &self,
        lanes: &mut Lanes,
        slot: u64,
        page: &mut [u8],
    ) -> Result<(), IoError> {
        let (area, local) = self.of(slot);
        area.read_page(lane_of(lanes, slot), local, page)
    }

    pub(crate) fn discard_one(&self) -> Discarded {
        let mut results = self.own().map(SwapArea::discard_one);
        results.find(|done| *done != Discarded::Nothing).unwrap_or(Discarded::Nothing)
    }

    pub(crate) fn shrink(&self) -> u64 {
        self.own().map(SwapArea::shrink).sum()
    }

    pub(crate) fn used_slots(&self) -> u64 {
        self.iter().map(SwapArea::used_slots).sum()
    }

    pub(crate) fn size_bytes(&self) -> u64 {
        self.iter().map(SwapArea::size_bytes).sum()
    }

    pub(crate) fn retired_slots(&self) -> u64 {
        self.iter().map(SwapArea::retired_slots).sum()
    }

    pub(crate) fn metadata_bytes(&self) -> u64 {
        self.iter().map(SwapArea::metadata_bytes).sum()
    }

    pub(crate) fn area_of(&self, slot: u64) -> &SwapArea {
        self.area(index_of(slot))
    }

    /// Returns the area of a slot, and the slot's number in it.
    pub(crate) fn of(&self, slot: u64) -> (&SwapArea, u64) {
        (self.area_of(slot), slot & (MAX_SLOTS - 1))
    }

    fn area(&self, index: usize) -> &SwapArea {
        &self.entry(index).area
    }

    /// The entry exists: slots are allocated only after their area was added.
    fn entry(&self, index: usize) -> &Entry {
        self.list[index].get().expect("a slot of an area that was never added")
    }
}

fn rings_of(area: &SwapArea) -> usize {
    let properties = area.properties();
    match (properties.io_uring, properties.device_polling) {
        (false, _) => 0,
        (true, false) => 1,
        (true, true) => MAX_RINGS,
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
