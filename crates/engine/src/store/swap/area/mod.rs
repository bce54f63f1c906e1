//! A swap area: slots, the extents they lie in, the device below, and what is
//! known about each slot's content.
//!
//! On the way out: take slots, in runs, note each page's seal, write them.
//! On the way in: read from the slot, look the seal up. An area lies either in
//! a file of its own, which [`growth`] makes longer and shorter, or in a fixed
//! number of pages that somebody set aside: for this process alone, or for a tree of
//! processes, whose clusters [`sharing`] takes and gives back. [`transfer`] moves pages,
//! [`upkeep`] tells the storage what is not needed and notices when it fails.

mod errors;
mod health;
mod share;
mod growth;
mod sharing;
mod transfer;
mod upkeep;

pub(crate) use errors::AreaError;
pub use errors::AreaFull;
pub(crate) use health::Discarded;
pub(crate) use share::Share;

use super::cluster::{CLUSTER_BYTES, CLUSTER_SLOTS, PAGE_BYTES};
use super::discard::Discard;
use super::extent::ExtentMap;
use super::slot::{NotInUse, SlotAllocator};
use crate::codec::seal::{Seal, TAG_BYTES};
use crate::store::io::poll::Polling;
use crate::store::io::{Device, Facts, Lane};
use health::Health;
use softswap_sys::memory::{reserve_u32, reserve_u64};
use softswap_sys::segment::StaticRange;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Slot numbers stay below this (128 TiB): above are the bits that tell areas
/// apart.
pub(crate) const MAX_SLOTS: u64 = 1 << 35;

/// How large an area may become.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AreaConfig {
    /// Bytes of storage it may have; without, what the file system has.
    pub(crate) limit_bytes: Option<u64>,
    /// Bytes that stay free on the file system.
    pub(crate) reserve_bytes: u64,
    /// Bytes it grows by.
    pub(crate) chunk_bytes: u64,
    /// Processors that allocate without getting into each other's way.
    pub(crate) cpus: usize,
    /// When the storage is told what is not needed.
    pub(crate) discard: Discard,
}

impl Default for AreaConfig {
    fn default() -> Self {
        Self {
            limit_bytes: None,
            reserve_bytes: 0,
            chunk_bytes: 64 << 20,
            cpus: 1,
            discard: Discard::None,
        }
    }
}

/// Pages that somebody set aside: a swap file or a device with a header.
#[derive(Debug, Clone, Default)]
pub struct FixedPages {
    /// How many, the header's page 0 among them.
    pub pages: u64,
    /// Where they lie, in ascending order and without gaps: first page, number
    /// of pages, first block of the device.
    pub spans: Vec<(u64, u64, u64)>,
    /// Pages that must not be used.
    pub bad_pages: Vec<u64>,
}

impl FixedPages {
    fn clusters(&self) -> u32 {
        self.pages.min(MAX_SLOTS).div_ceil(CLUSTER_SLOTS as u64) as u32
    }
}

/// Adjacent slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    /// The first slot.
    pub(crate) first: u64,
    /// How many there are, at least one.
    pub(crate) len: usize,
}

/// One swap area.
pub(crate) struct Area {
    device: Box<dyn Device>,
    /// Whether the storage is a file that grows and shrinks.
    is_growing: bool,
    /// This process's part, where a tree of processes shares the area.
    share: Option<Share>,
    polling: Polling,
    config: AreaConfig,
    extents: ExtentMap,
    slots: SlotAllocator,
    /// Per slot: how often it was handed out, and the checksum of its content, or
    /// instead of that the tag of its encrypted content, in two halves.
    generations: &'static [AtomicU32],
    checksums: &'static [AtomicU32],
    tags: &'static [AtomicU64],
    /// Whether pages have tags: of the two tables one is never touched.
    has_tags: AtomicBool,
    /// The epoch of the key of each tag.
    epochs: &'static [AtomicU32],
    /// True once an epoch after the first was used. Until then the table takes no DRAM.
    has_epochs: AtomicBool,
    /// A bit for each part of a packed page that is in use.
    parts: &'static [AtomicU32],
    /// Whether there have been packed pages: without, nothing of that is in DRAM.
    has_parts: AtomicBool,
    /// A bit per cluster whose storage went back to the file system; it has to
    /// be claimed again before it is written.
    hollow: &'static [AtomicU64],
    has_hollow: AtomicBool,
    health: Health,
    discarded_at_start: Discarded,
    /// Held while the area grows or shrinks.
    growth: Mutex<()>,
    growth_pause: AtomicU32,
    size_bytes: AtomicU64,
    /// What it can grow to, as far as its file system, or the tree, had room when that was last
    /// asked.
    capacity_bytes: AtomicU64,
    /// Blocks left out between chunks. None outside tests, which want an area
    /// of more than one extent.
    gap_blocks: u64,
}

impl std::fmt::Debug for Area {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Area")
            .field("config", &self.config)
            .field("size_bytes", &self.size_bytes())
            .field("used_slots", &self.used_slots())
            .finish_non_exhaustive()
    }
}

impl Area {
    /// An area in a growing file on `device`. No storage is claimed yet, but
    /// there must be room for some.
    ///
    /// # Errors
    /// When there is no room, or no address space for the tables.
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
        if free_bytes.saturating_sub(reserve_bytes) < CLUSTER_BYTES {
            return Err(AreaError::NoRoom { free_bytes, reserve_bytes });
        }
        config.chunk_bytes = whole_clusters(config.chunk_bytes).max(CLUSTER_BYTES);
        // Room in the tables is address space only, so they allow for space
        // that becomes free later.
        let most_bytes = limit_bytes.min(free_bytes.saturating_mul(2)).min(MAX_SLOTS * PAGE_BYTES);
        let clusters = most_bytes / CLUSTER_BYTES;
        let slots = SlotAllocator::new(clusters as u32, config.cpus)?;
        let area = Self::assemble(device, slots, clusters as usize, config, polling)?;
        let area = Self { is_growing: true, ..area };
        area.note_free(0, free_bytes);
        Ok(area)
    }

    /// An area in pages that were set aside. The first page is never used.
    ///
    /// # Errors
    /// When the pages cannot be used, or there is no address space for tables.
    pub(crate) fn fixed(
        device: Box<dyn Device>,
        fixed: &FixedPages,
        config: AreaConfig,
        polling: Polling,
    ) -> Result<Self, AreaError> {
        let clusters = fixed.clusters();
        let slots = SlotAllocator::new(clusters, config.cpus)?;
        let mut area = Self::assemble(device, slots, fixed.spans.len(), config, polling)?;
        area.settle_in(fixed)?;
        area.size_bytes.store(fixed.pages.min(MAX_SLOTS) * PAGE_BYTES, Release);
        if config.discard.at_start() {
            area.discarded_at_start = area.discard_all();
        }
        area.slots.grow(clusters);
        Ok(area)
    }

    /// As [`Area::fixed`], in pages that a tree of processes shares: of these it has what it
    /// takes for its `share`.
    ///
    /// # Errors
    /// As for [`Area::fixed`].
    pub(crate) fn shared(
        device: Box<dyn Device>,
        fixed: &FixedPages,
        share: Share,
        config: AreaConfig,
        polling: Polling,
    ) -> Result<Self, AreaError> {
        let slots = SlotAllocator::sparse(fixed.clusters(), config.cpus)?;
        let area = Self::assemble(device, slots, fixed.spans.len(), config, polling)?;
        area.settle_in(fixed)?;
        area.look_around(&share);
        Ok(Self { share: Some(share), ..area })
    }

    /// Notes where pages lie that were set aside, and which of them are none.
    fn settle_in(&self, fixed: &FixedPages) -> Result<(), AreaError> {
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
            hollow: reserve_u64(clusters.div_ceil(64))?,
            has_hollow: AtomicBool::new(false),
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

    /// Says where most buffers will lie, before lanes are opened; `None` where
    /// these are to have no rings.
    pub(crate) fn expect_buffers(&mut self, range: Option<StaticRange>) {
        self.device.expect_buffers(range);
    }

    /// Opens a channel to the device, for one owner at a time.
    #[must_use]
    pub(crate) fn open_lane(&self) -> Lane {
        self.device.open_lane()
    }

    /// How the device is reached.
    #[must_use]
    pub(crate) fn facts(&self) -> Facts {
        self.device.describe()
    }

    /// Takes up to `want` adjacent slots, growing the area when it must.
    ///
    /// # Errors
    /// When nothing is free and the area cannot grow; says what stopped it.
    pub(crate) fn alloc_run(&self, cpu: usize, want: usize) -> Result<Run, AreaFull> {
        /// Clusters whose storage is gone that are tried before giving up: the
        /// next call goes on from there.
        const MOST_HOLLOW: u32 = 64;
        self.grow_ahead();
        let mut hollow = 0;
        loop {
            if let Some((first, len)) = self.slots.alloc_run(cpu, want) {
                if self.has_hollow.load(Acquire)
                    && let Err(full) = self.claim_again(first)
                {
                    self.slots.set_aside(first, len);
                    hollow += 1;
                    if hollow == MOST_HOLLOW {
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

    /// Gives slots back. Their content may be overwritten at once, unless the
    /// area is frozen.
    pub(crate) fn free(&self, first: u64, len: usize) {
        self.unless_worn_out(first, len, |first, len| self.slots.free(first, len));
    }

    /// Gives slots back that were taken and never used, frozen or not.
    pub(crate) fn give_back(&self, first: u64, len: usize) {
        self.unless_worn_out(first, len, |first, len| self.slots.give_back(first, len));
    }

    /// Frees a run but for slots whose generation cannot rise any more: handed
    /// out again they would repeat one, and with it the nonce of another page.
    fn unless_worn_out(
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
        self.give_surplus();
    }

    /// Takes slots out of service, because their storage failed.
    pub(crate) fn retire(&self, first: u64, len: usize) {
        expect_in_use(self.slots.retire(first, len));
    }

    /// Notes which parts of a slot's page are in use, a bit each.
    pub(crate) fn set_parts(&self, slot: u64, parts: u32) {
        self.has_parts.store(true, Relaxed);
        self.parts[slot as usize].store(parts, Release);
    }

    /// Gives one part of a slot's page back, and with the last the slot.
    pub(crate) fn free_part(&self, slot: u64, part: u8) {
        let bit = 1 << part;
        let before = self.parts[slot as usize].fetch_and(!bit, AcqRel);
        debug_assert!(before & bit != 0, "part {part} of slot {slot} is not in use");
        if before == bit {
            self.free(slot, 1);
        }
    }

    /// Notes the seal of what a slot holds. All of an area are of one kind.
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

    /// The seal last noted for a slot.
    #[must_use]
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

    /// How often a slot was handed out. A reader that finds it changed has
    /// read somebody else's page.
    #[must_use]
    pub(crate) fn generation(&self, slot: u64) -> u32 {
        self.generations[slot as usize].load(Acquire)
    }

    /// How reads of single pages are waited for.
    #[must_use]
    pub(crate) fn polling(&self) -> &Polling {
        &self.polling
    }

    /// From now on the slots in use keep their content when they are freed, until [`Area::thaw`].
    pub(crate) fn freeze(&self) {
        self.slots.freeze();
    }

    /// Ends one freeze.
    pub(crate) fn thaw(&self) {
        self.slots.thaw();
        self.give_surplus();
    }

    /// Slots taken, those freed in a freeze included.
    #[must_use]
    pub(crate) fn used_slots(&self) -> u64 {
        self.slots.used_slots()
    }

    /// Whether less than half of what the area can hold is in use, and it works.
    #[must_use]
    pub(crate) fn has_spare(&self) -> bool {
        let most_bytes = match self.is_growing || self.share.is_some() {
            true => self.capacity_bytes.load(Relaxed),
            false => self.size_bytes(),
        };
        self.used_slots() < most_bytes / PAGE_BYTES / 2 && !self.has_failed()
    }

    /// Slots out of service.
    #[must_use]
    pub(crate) fn retired_slots(&self) -> u64 {
        self.slots.retired_slots()
    }

    /// Storage claimed so far.
    #[must_use]
    pub(crate) fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Acquire)
    }

    /// Pieces that the storage lies in.
    #[cfg(test)]
    pub(crate) fn extent_count(&self) -> usize {
        self.extents.count()
    }

    /// DRAM that the area's tables take by now. Nearly all of it follows from
    /// the clusters that were ever in use, since tables are populated on touch.
    #[must_use]
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

/// Freeing what is not in use is a bug that tests are to notice.
fn expect_in_use(result: Result<(), NotInUse>) {
    debug_assert!(result.is_ok(), "{result:?}");
}

fn lock(mutex: &Mutex<()>) -> MutexGuard<'_, ()> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
