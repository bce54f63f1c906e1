//! A swap area: slots, their extents, the device, and metadata for each slot.
//!
//! An area is stored in an unnamed file, which [`growth`] extends and shrinks, or in preallocated
//! pages. These belong to this process or to a tree, whose clusters [`sharing`] takes and returns.
//! [`transfer`] moves pages. [`upkeep`] discards unused storage and detects failures.

mod errors;
mod health;
mod growth;
mod tree_share;
mod sharing;
mod transfer;
mod upkeep;

pub(crate) use errors::AreaError;
pub use errors::AreaFull;
pub(crate) use health::Discarded;
pub(crate) use tree_share::TreeShare;

use super::cluster::{CLUSTER_BYTES, CLUSTER_SLOTS, PAGE_BYTES};
use super::discard::Discard;
use super::extent_map::ExtentMap;
use super::slot_allocator::{NotInUse, SlotAllocator};
use crate::codec::seal::{Seal, TAG_BYTES};
use crate::store::io::poll::Polling;
use crate::store::io::{Device, DeviceProperties, Lane};
use health::Health;
use softswap_sys::memory::{can_reserve, reserve_u32, reserve_u64};
use softswap_sys::segment::StaticRange;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Exclusive upper bound of slot numbers in an area (128 TiB). The bits above select the area.
pub(crate) const MAX_SLOTS: u64 = 1 << 35;

#[derive(Debug, Clone, Copy)]
pub(crate) struct AreaConfig {
    /// Largest size in bytes. If `None`, the file system is the limit.
    pub(crate) limit_bytes: Option<u64>,
    /// Bytes that stay free on the file system.
    pub(crate) reserve_bytes: u64,
    pub(crate) chunk_bytes: u64,
    pub(crate) may_start_full: bool,
    pub(crate) cpus: usize,
    pub(crate) discard: Discard,
}

impl Default for AreaConfig {
    fn default() -> Self {
        Self {
            limit_bytes: None,
            reserve_bytes: 0,
            chunk_bytes: 64 << 20,
            may_start_full: false,
            cpus: 1,
            discard: Discard::None,
        }
    }
}

/// Preallocated pages: a swap file or a device with a header.
#[derive(Debug, Clone, Default)]
pub struct FixedPages {
    /// Number of pages, including the header's page 0.
    pub pages: u64,
    /// Ascending, without gaps: first page, number of pages, first block of the device.
    pub spans: Vec<(u64, u64, u64)>,
    pub bad_pages: Vec<u64>,
}

impl FixedPages {
    fn clusters(&self) -> u32 {
        self.pages.min(MAX_SLOTS).div_ceil(CLUSTER_SLOTS as u64) as u32
    }
}

/// Least size for which a growing area has tables, if its limit allows it.
const MIN_TABLES_BYTES: u64 = 16 << 30;
/// Bytes of tables for each slot, rounded up.
const TABLE_BYTES_PER_SLOT: usize = 40;

/// Returns as many clusters as have tables in half of the free address space, at most `clusters`.
/// `ulimit -v` and strict overcommit bound it, although tables take DRAM only when they are used.
fn within_address_space(mut clusters: u64) -> u64 {
    let bytes = |clusters: u64| clusters as usize * CLUSTER_SLOTS * TABLE_BYTES_PER_SLOT;
    while clusters > 1 && !can_reserve(2 * bytes(clusters)) {
        clusters /= 2;
    }
    clusters
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) first: u64,
    /// Number of slots, at least one.
    pub(crate) len: usize,
}

pub(crate) struct SwapArea {
    device: Box<dyn Device>,
    is_growing: bool,
    /// This process's part, if a tree of processes shares the area.
    share: Option<TreeShare>,
    polling: Polling,
    config: AreaConfig,
    extents: ExtentMap,
    slots: SlotAllocator,
    generations: &'static [AtomicU32],
    /// Used if the area is not encrypted.
    checksums: &'static [AtomicU32],
    /// In two halves; used if the area is encrypted.
    tags: &'static [AtomicU64],
    /// True if pages have tags. Either the tags or the checksums are never touched.
    has_tags: AtomicBool,
    /// Epoch of the key of each slot's tag.
    epochs: &'static [AtomicU32],
    /// False until a later epoch than the first: the table then takes no DRAM.
    has_epochs: AtomicBool,
    /// A bit for each used part of a shared slot.
    parts: &'static [AtomicU32],
    /// False until the first use: the table then takes no DRAM.
    has_parts: AtomicBool,
    /// A bit for each cluster whose storage must be claimed again before a write.
    punched: &'static [AtomicU64],
    has_punched: AtomicBool,
    health: Health,
    discarded_at_start: Discarded,
    growth: Mutex<()>,
    growth_pause: AtomicU32,
    size_bytes: AtomicU64,
    /// Largest size according to the last check of the free space of the file system or tree.
    capacity_bytes: AtomicU64,
    /// Blocks skipped between chunks, so that tests get several extents; otherwise 0.
    gap_blocks: u64,
}

impl SwapArea {
    /// Creates an area in a growing file. Claims no storage yet, but needs free space for a
    /// cluster, unless it may start full.
    pub(crate) fn growing(
        device: Box<dyn Device>,
        mut config: AreaConfig,
        polling: Polling,
    ) -> Result<Self, AreaError> {
        let free_bytes = device.free_bytes()?;
        let limit_bytes = config.limit_bytes.unwrap_or(u64::MAX);
        if limit_bytes < CLUSTER_BYTES {
            return Err(AreaError::LimitTooSmall { limit_bytes });
        }
        let reserve_bytes = config.reserve_bytes;
        let spare_bytes = free_bytes.saturating_sub(reserve_bytes);
        if spare_bytes < CLUSTER_BYTES && !config.may_start_full {
            return Err(AreaError::NoSpaceLeft { free_bytes, reserve_bytes });
        }
        config.chunk_bytes = whole_clusters(config.chunk_bytes).max(CLUSTER_BYTES);
        // Tables reserve address space only, so they allow for space that becomes free later.
        let wanted_bytes = free_bytes.saturating_mul(2).max(MIN_TABLES_BYTES);
        let most_bytes = limit_bytes.min(wanted_bytes).min(MAX_SLOTS * PAGE_BYTES);
        let clusters = within_address_space(most_bytes / CLUSTER_BYTES);
        let slots = SlotAllocator::new(clusters as u32, config.cpus)?;
        let area = Self::assemble(device, slots, clusters as usize, config, polling)?;
        let area = Self { is_growing: true, ..area };
        area.note_free(0, free_bytes);
        Ok(area)
    }

    /// Creates an area in preallocated pages, of which the first is never used.
    pub(crate) fn fixed(
        device: Box<dyn Device>,
        fixed: &FixedPages,
        config: AreaConfig,
        polling: Polling,
    ) -> Result<Self, AreaError> {
        let clusters = fixed.clusters();
        let slots = SlotAllocator::new(clusters, config.cpus)?;
        let mut area = Self::assemble(device, slots, fixed.spans.len(), config, polling)?;
        area.set_extents(fixed)?;
        area.size_bytes.store(fixed.pages.min(MAX_SLOTS) * PAGE_BYTES, Release);
        if config.discard.at_start() {
            // Everything but the header, before anything is stored.
            let pages = area.extents.pages() as usize;
            area.discarded_at_start = area.discard(1, pages.saturating_sub(1));
        }
        area.slots.grow(clusters);
        Ok(area)
    }

    /// Creates an area of which the process uses only the clusters that its `share` takes.
    pub(crate) fn shared(
        device: Box<dyn Device>,
        fixed: &FixedPages,
        share: TreeShare,
        config: AreaConfig,
        polling: Polling,
    ) -> Result<Self, AreaError> {
        let slots = SlotAllocator::sparse(fixed.clusters(), config.cpus)?;
        let area = Self::assemble(device, slots, fixed.spans.len(), config, polling)?;
        area.set_extents(fixed)?;
        area.update_limits(&share);
        Ok(Self { share: Some(share), ..area })
    }

    fn set_extents(&self, fixed: &FixedPages) -> Result<(), AreaError> {
        let pages = fixed.pages.min(MAX_SLOTS);
        for &(page, count, block) in &fixed.spans {
            self.extents.append(page, count, block)?;
        }
        if self.extents.pages() < pages {
            return Err(AreaError::Unmapped { mapped: self.extents.pages(), pages });
        }
        for page in &fixed.bad_pages {
            self.slots.withhold(*page, 1);
        }
        let end = u64::from(fixed.clusters()) * CLUSTER_SLOTS as u64;
        self.slots.withhold(pages, (end - pages) as usize);
        Ok(())
    }

    fn assemble(
        device: Box<dyn Device>,
        slots: SlotAllocator,
        extents: usize,
        config: AreaConfig,
        polling: Polling,
    ) -> Result<Self, AreaError> {
        let clusters = slots.capacity() as usize;
        let count = clusters * CLUSTER_SLOTS;
        let area = Self {
            extents: ExtentMap::new(extents)?,
            slots,
            generations: reserve_u32(count)?,
            checksums: reserve_u32(count)?,
            tags: reserve_u64(2 * count)?,
            has_tags: AtomicBool::new(false),
            epochs: reserve_u32(count)?,
            has_epochs: AtomicBool::new(false),
            parts: reserve_u32(count)?,
            has_parts: AtomicBool::new(false),
            punched: reserve_u64(clusters.div_ceil(64))?,
            has_punched: AtomicBool::new(false),
            health: Health::default(),
            discarded_at_start: Discarded::Nothing,
            growth: Mutex::new(()),
            growth_pause: AtomicU32::new(0),
            size_bytes: AtomicU64::new(0),
            capacity_bytes: AtomicU64::new(0),
            gap_blocks: 0,
            is_growing: false,
            share: None,
            polling,
            device,
            config,
        };
        area.slots.set_discards(config.discard.of_clusters());
        Ok(area)
    }

    pub(crate) fn expect_buffers(&mut self, range: Option<StaticRange>) {
        self.device.expect_buffers(range);
    }

    pub(crate) fn open_lane(&self) -> Lane {
        self.device.open_lane()
    }

    pub(crate) fn properties(&self) -> DeviceProperties {
        self.device.describe()
    }

    /// Takes up to `want` adjacent slots, and grows the area if none is free.
    pub(crate) fn alloc_run(&self, cpu: usize, want: usize) -> Result<Run, AreaFull> {
        self.grow_ahead();
        let mut punched = 0;
        loop {
            if let Some((first, len)) = self.slots.alloc_slots(cpu, want) {
                if self.has_punched.load(Acquire)
                    && let Err(full) = self.claim_again(first)
                {
                    self.slots.set_aside(first, len);
                    punched += 1;
                    // The next call continues after these.
                    if punched == 64 {
                        return Err(full);
                    }
                    continue;
                }
                for slot in first..first + len as u64 {
                    self.generations[slot as usize].fetch_add(1, AcqRel);
                }
                return Ok(Run { first, len });
            }
            self.grow(&lock(&self.growth))?;
        }
    }

    /// Frees slots. Their content may be overwritten immediately, unless the area is frozen.
    pub(crate) fn free(&self, first: u64, len: usize) {
        self.free_or_retire(first, len, |first, len| self.slots.free(first, len));
    }

    pub(crate) fn free_unused(&self, first: u64, len: usize) {
        self.free_or_retire(first, len, |first, len| self.slots.free_unused(first, len));
    }

    /// Retires slots whose generation is at its maximum: a repeated one would repeat a nonce.
    fn free_or_retire(
        &self,
        first: u64,
        len: usize,
        free: impl Fn(u64, usize) -> Result<(), NotInUse>,
    ) {
        let end = first + len as u64;
        let mut start = first;
        for slot in first..end {
            if self.generation(slot) < u32::MAX {
                continue;
            }
            if start < slot {
                expect_in_use(free(start, (slot - start) as usize));
            }
            self.retire(slot, 1);
            start = slot + 1;
        }
        if start < end {
            expect_in_use(free(start, (end - start) as usize));
        }
        self.return_surplus();
    }

    pub(crate) fn retire(&self, first: u64, len: usize) {
        expect_in_use(self.slots.retire(first, len));
    }

    pub(crate) fn set_parts(&self, slot: u64, parts: u32) {
        self.has_parts.store(true, Relaxed);
        self.parts[slot as usize].store(parts, Release);
    }

    pub(crate) fn free_part(&self, slot: u64, part: u8) {
        let bit = 1 << part;
        let before = self.parts[slot as usize].fetch_and(!bit, AcqRel);
        debug_assert!(before & bit != 0, "part {part} of slot {slot} is not in use");
        if before == bit {
            self.free(slot, 1);
        }
    }

    /// Records the seal of a slot's content. All seals of an area are of one kind.
    pub(crate) fn set_seal(&self, slot: u64, seal: Seal) {
        match seal {
            Seal::Checksum(sum) => self.checksums[slot as usize].store(sum, Release),
            Seal::Tag { tag, epoch } => {
                self.has_tags.store(true, Relaxed);
                if epoch > 0 {
                    self.has_epochs.store(true, Relaxed);
                }
                if self.has_epochs.load(Relaxed) {
                    self.epochs[slot as usize].store(epoch, Release);
                }
                let tag = u128::from_ne_bytes(tag);
                self.tags[2 * slot as usize].store(tag as u64, Release);
                self.tags[2 * slot as usize + 1].store((tag >> 64) as u64, Release);
            }
        }
    }

    pub(crate) fn seal(&self, slot: u64) -> Seal {
        if !self.has_tags.load(Relaxed) {
            return Seal::Checksum(self.checksums[slot as usize].load(Acquire));
        }
        let half = |at: usize| u128::from(self.tags[2 * slot as usize + at].load(Acquire));
        let tag = (half(1) << 64 | half(0)).to_ne_bytes();
        let has_epochs = self.has_epochs.load(Relaxed);
        let epoch = if has_epochs { self.epochs[slot as usize].load(Acquire) } else { 0 };
        Seal::Tag { tag, epoch }
    }

    /// Counts a slot's allocations. If it changed during a read, the page read is wrong.
    pub(crate) fn generation(&self, slot: u64) -> u32 {
        self.generations[slot as usize].load(Acquire)
    }

    pub(crate) fn polling(&self) -> &Polling {
        &self.polling
    }

    /// Makes slots in use keep their content after they are freed, until [`SwapArea::thaw`].
    pub(crate) fn freeze(&self) {
        self.slots.freeze();
    }

    pub(crate) fn thaw(&self) {
        self.slots.thaw();
        self.return_surplus();
    }

    pub(crate) fn used_slots(&self) -> u64 {
        self.slots.used_slots()
    }

    pub(crate) fn has_spare(&self) -> bool {
        let most_bytes = match self.is_growing || self.share.is_some() {
            true => self.capacity_bytes.load(Relaxed),
            false => self.size_bytes(),
        };
        self.used_slots() < most_bytes / PAGE_BYTES / 2 && !self.has_failed()
    }

    pub(crate) fn retired_slots(&self) -> u64 {
        self.slots.retired_slots()
    }

    pub(crate) fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Acquire)
    }

    #[cfg(test)]
    pub(crate) fn extent_count(&self) -> usize {
        self.extents.count()
    }

    /// Returns the DRAM of the tables, which depends on the clusters used so far.
    pub(crate) fn metadata_bytes(&self) -> u64 {
        const WORD_BYTES: usize = size_of::<u32>();
        let seal_bytes = if self.has_tags.load(Relaxed) { TAG_BYTES } else { WORD_BYTES };
        let epoch_bytes = if self.has_epochs.load(Relaxed) { WORD_BYTES } else { 0 };
        let parts_bytes = if self.has_parts.load(Relaxed) { WORD_BYTES } else { 0 };
        let touched = u64::from(self.slots.touched_clusters()) * CLUSTER_SLOTS as u64;
        touched * (WORD_BYTES + seal_bytes + epoch_bytes + parts_bytes) as u64
            + self.slots.metadata_bytes()
            + self.extents.metadata_bytes()
    }
}

fn whole_clusters(bytes: u64) -> u64 {
    bytes / CLUSTER_BYTES * CLUSTER_BYTES
}

fn expect_in_use(result: Result<(), NotInUse>) {
    debug_assert!(result.is_ok(), "{result:?}");
}

fn lock(mutex: &Mutex<()>) -> MutexGuard<'_, ()> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
