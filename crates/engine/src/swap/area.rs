//! A swap area: slots, the extents they lie in, the device below, and what is
//! known about each slot's content.
//!
//! On the way out: take a run of slots, note each page's seal, write the run.
//! On the way in: read from the slot, compare the seal. An area begins without
//! any storage and grows by chunks when its clusters run out, so that a
//! program that fits in DRAM costs no disk. It stops growing at its limit, and
//! before the file system becomes so full that others suffer.

use super::cluster::CLUSTER_SLOTS;
use super::extent::{AppendError, ExtentMap};
use super::slot::SlotAllocator;
use crate::io::poll::Polling;
use crate::io::{Device, Facts, IoError, IoErrorKind, Lane, MAX_PIECES, Operation, Piece};
use softswap_sys::PAGE_SIZE;
use softswap_sys::memory::reserve_u32;
use softswap_sys::raw::now_ns;
use std::io;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Mutex, MutexGuard, PoisonError};

const PAGE_BYTES: u64 = PAGE_SIZE as u64;
/// Areas grow by whole clusters.
const CLUSTER_BYTES: u64 = CLUSTER_SLOTS as u64 * PAGE_BYTES;
/// Slot numbers stay below this; page entries rely on it.
const MAX_SLOTS: u64 = 1 << 40;

/// An area of which less is used grows only when nothing at all is free. Above
/// it, new clusters are worth their disk space: they take whole runs, where
/// the gaps in old clusters would cut every batch into single pages.
const GROW_ABOVE_USED_PERCENT: u64 = 50;
/// After a growth that was not urgent failed, so many allocations go by before
/// the next attempt.
const GROWTH_PAUSE: u32 = 4096;

/// How large an area may become.
#[derive(Debug, Clone, Copy)]
pub struct AreaConfig {
    /// Bytes of storage it may have; without, what the file system has.
    pub limit_bytes: Option<u64>,
    /// Bytes that stay free on the file system.
    pub reserve_bytes: u64,
    /// Bytes it grows by.
    pub chunk_bytes: u64,
    /// Processors that allocate without getting into each other's way.
    pub cpus: usize,
}

impl Default for AreaConfig {
    fn default() -> Self {
        Self { limit_bytes: None, reserve_bytes: 0, chunk_bytes: 64 << 20, cpus: 1 }
    }
}

/// Why an area could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum AreaError {
    /// Not even the smallest step of growth fits below the limit.
    #[error(
        "swap area limit of {limit_bytes} bytes is too small: give it at least {CLUSTER_BYTES} bytes"
    )]
    LimitTooSmall {
        /// The configured limit.
        limit_bytes: u64,
    },
    /// The file system is too full to begin with.
    #[error(
        "swap area has no room: {free_bytes} bytes are free and {reserve_bytes} are to stay free; \
         free some space, lower the reserve, or use another directory"
    )]
    NoRoom {
        /// Free on the file system.
        free_bytes: u64,
        /// The configured reserve.
        reserve_bytes: u64,
    },
    /// Address space for the tables was refused.
    #[error(
        "swap area tables: {0}; raise the address-space limit (ulimit -v) or lower the area's limit"
    )]
    Tables(#[from] io::Error),
    /// The device did not answer.
    #[error(transparent)]
    Device(#[from] IoError),
}

/// Why no slot is to be had, and what would help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AreaFull {
    /// The configured limit is reached.
    #[error(
        "swap area is full: all of its limit of {limit_bytes} bytes is in use; raise the limit, or add an area"
    )]
    Limit {
        /// The configured limit.
        limit_bytes: u64,
    },
    /// Growing would eat into the reserve.
    #[error(
        "swap area is full at {size_bytes} bytes: its file system has {free_bytes} bytes free, of which \
         {reserve_bytes} are to stay free; free some space, lower the reserve, or add an area elsewhere"
    )]
    Reserve {
        /// What the area has.
        size_bytes: u64,
        /// Free on the file system.
        free_bytes: u64,
        /// The configured reserve.
        reserve_bytes: u64,
    },
    /// The device refused to grow for lack of space.
    #[error(
        "swap area is full at {size_bytes} bytes: {cause}; free some space, or add an area elsewhere"
    )]
    NoSpace {
        /// What the area has.
        size_bytes: u64,
        /// What the device said.
        cause: IoError,
    },
    /// The tables, sized when the area was made, have no room for more.
    #[error(
        "swap area is full: its tables end at {size_bytes} bytes; restart to use space that became free since the start, or add an area"
    )]
    Tables {
        /// What the area has.
        size_bytes: u64,
    },
    /// The device failed to grow for another reason.
    #[error(
        "swap area cannot grow beyond {size_bytes} bytes: {cause}; add an area on another device"
    )]
    Device {
        /// What the area has.
        size_bytes: u64,
        /// What the device said.
        cause: IoError,
    },
}

/// Adjacent slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The first slot.
    pub first: u64,
    /// How many there are, at least one.
    pub len: usize,
}

/// One swap area.
pub struct Area {
    device: Box<dyn Device>,
    polling: Polling,
    config: AreaConfig,
    extents: ExtentMap,
    slots: SlotAllocator,
    /// Per slot: the checksum of its content, and how often it was handed out.
    seals: &'static [AtomicU32],
    generations: &'static [AtomicU32],
    /// Held while the area grows.
    growth: Mutex<()>,
    growth_pause: AtomicU32,
    size_bytes: AtomicU64,
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
    /// An area on `device`. No storage is claimed yet, but there must be room
    /// for some.
    ///
    /// # Errors
    /// When there is no room, or no address space for the tables.
    pub fn new(
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
        let slots = (clusters * CLUSTER_SLOTS as u64) as usize;
        Ok(Self {
            extents: ExtentMap::new(clusters as usize)?,
            slots: SlotAllocator::new(clusters as u32, config.cpus)?,
            seals: reserve_u32(slots)?,
            generations: reserve_u32(slots)?,
            growth: Mutex::new(()),
            growth_pause: AtomicU32::new(0),
            size_bytes: AtomicU64::new(0),
            gap_blocks: 0,
            polling,
            device,
            config,
        })
    }

    /// Opens a channel to the device, for one owner at a time.
    #[must_use]
    pub fn open_lane(&self) -> Lane {
        self.device.open_lane()
    }

    /// How the device is reached.
    #[must_use]
    pub fn facts(&self) -> Facts {
        self.device.describe()
    }

    /// Takes up to `want` adjacent slots, growing the area when it must.
    ///
    /// # Errors
    /// When nothing is free and the area cannot grow; says what stopped it.
    pub fn alloc_run(&self, cpu: usize, want: usize) -> Result<Run, AreaFull> {
        self.grow_ahead();
        loop {
            if let Some((first, len)) = self.slots.alloc_run(cpu, want) {
                for slot in first..first + len as u64 {
                    self.generations[slot as usize].fetch_add(1, AcqRel);
                }
                return Ok(Run { first, len });
            }
            self.grow(&lock(&self.growth))?;
        }
    }

    /// Grows while there are still single slots, if runs have become scarce.
    fn grow_ahead(&self) {
        let total = self.slots.total_slots();
        let scarce = self.slots.free_clusters() == 0 && total > 0;
        if !scarce || self.slots.used_slots() * 100 < total * GROW_ABOVE_USED_PERCENT {
            return;
        }
        // Losing a count to another processor here only shifts the attempt.
        let pause = self.growth_pause.load(Relaxed);
        if pause > 0 {
            self.growth_pause.store(pause - 1, Relaxed);
            return;
        }
        // Not worth waiting for: somebody is growing already.
        if let Ok(held) = self.growth.try_lock()
            && self.grow(&held).is_err()
        {
            self.growth_pause.store(GROWTH_PAUSE, Relaxed);
        }
    }

    fn grow(&self, _held: &MutexGuard<'_, ()>) -> Result<(), AreaFull> {
        if self.slots.free_clusters() > 0 {
            return Ok(());
        }
        let size_bytes = self.size_bytes();
        let mut bytes = self.growth_bytes(size_bytes)?;
        let first_page = size_bytes / PAGE_BYTES;
        let first_block = first_page + self.gap_blocks * self.extents.count() as u64;
        while let Err(cause) = self.device.grow(first_block * PAGE_BYTES, bytes) {
            match cause.is_no_space() {
                // The last bit of room is often smaller than a chunk.
                true if bytes > CLUSTER_BYTES => {
                    bytes = whole_clusters(bytes / 2).max(CLUSTER_BYTES)
                }
                true => return Err(AreaFull::NoSpace { size_bytes, cause }),
                false => return Err(AreaFull::Device { size_bytes, cause }),
            }
        }
        match self.extents.append(first_page, bytes / PAGE_BYTES, first_block) {
            Ok(()) => {}
            Err(
                AppendError::TooMany { .. }
                | AppendError::BadLength
                | AppendError::NotAdjacent { .. },
            ) => {
                return Err(AreaFull::Tables { size_bytes });
            }
        }
        self.size_bytes.store(size_bytes + bytes, Release);
        // Last: from here on the slots are handed out.
        self.slots.grow((bytes / CLUSTER_BYTES) as u32);
        Ok(())
    }

    /// How much to grow by: a chunk, or what limit, tables and reserve leave.
    fn growth_bytes(&self, size_bytes: u64) -> Result<u64, AreaFull> {
        let AreaConfig { limit_bytes, reserve_bytes, chunk_bytes, .. } = self.config;
        let below_limit = limit_bytes.unwrap_or(u64::MAX).saturating_sub(size_bytes);
        if let Some(limit_bytes) = limit_bytes
            && below_limit < CLUSTER_BYTES
        {
            return Err(AreaFull::Limit { limit_bytes });
        }
        let table_bytes = u64::from(self.slots.room_clusters()) * CLUSTER_BYTES;
        if table_bytes == 0 {
            return Err(AreaFull::Tables { size_bytes });
        }
        let free_bytes =
            self.device.free_bytes().map_err(|cause| AreaFull::Device { size_bytes, cause })?;
        let spare_bytes = free_bytes.saturating_sub(reserve_bytes);
        if spare_bytes < CLUSTER_BYTES {
            return Err(AreaFull::Reserve { size_bytes, free_bytes, reserve_bytes });
        }
        let most = chunk_bytes.min(below_limit).min(table_bytes).min(spare_bytes);
        Ok(whole_clusters(most))
    }

    /// Gives slots back. Their content may be overwritten at once, unless the
    /// area is frozen.
    pub fn free(&self, first: u64, len: usize) {
        let result = self.slots.free(first, len);
        debug_assert!(result.is_ok(), "{result:?}");
    }

    /// Takes slots out of service whose storage failed.
    pub fn retire(&self, first: u64, len: usize) {
        let result = self.slots.retire(first, len);
        debug_assert!(result.is_ok(), "{result:?}");
    }

    /// Notes the checksum of what a slot holds.
    pub fn set_seal(&self, slot: u64, seal: u32) {
        self.seals[slot as usize].store(seal, Release);
    }

    /// The checksum last noted for a slot.
    #[must_use]
    pub fn seal(&self, slot: u64) -> u32 {
        self.seals[slot as usize].load(Acquire)
    }

    /// How often a slot was handed out. A reader that finds it changed has
    /// read somebody else's page.
    #[must_use]
    pub fn generation(&self, slot: u64) -> u32 {
        self.generations[slot as usize].load(Acquire)
    }

    /// Writes whole pages to the first slots of a run.
    ///
    /// # Errors
    /// When not all of it was written; what the slots hold is unknown then.
    pub fn write(&self, lane: &mut Lane, run: Run, buf: &[u8]) -> Result<(), IoError> {
        debug_assert!(buf.len() <= run.len * PAGE_SIZE && buf.len().is_multiple_of(PAGE_SIZE));
        let start = now_ns();
        let mut rest = buf;
        while !rest.is_empty() {
            let mut pieces: [Piece<&[u8]>; MAX_PIECES] =
                [const { Piece { offset: 0, buf: &[] } }; MAX_PIECES];
            let mut count = 0;
            while count < MAX_PIECES && !rest.is_empty() {
                let done = buf.len() - rest.len();
                let (offset, len) = self.locate(Operation::Write, run.first, done, rest.len())?;
                let (piece, after) = rest.split_at(len);
                pieces[count] = Piece { offset, buf: piece };
                (rest, count) = (after, count + 1);
            }
            match &pieces[..count] {
                [only] => self.device.write(lane, only.offset, only.buf)?,
                several => self.device.write_many(lane, several)?,
            }
        }
        self.polling.note(true, buf.len(), start);
        Ok(())
    }

    /// Reads whole pages from `first` and the slots that follow it.
    ///
    /// # Errors
    /// When not all of it was read; the buffer then holds nothing of use.
    pub fn read(&self, lane: &mut Lane, first: u64, buf: &mut [u8]) -> Result<(), IoError> {
        debug_assert!(buf.len().is_multiple_of(PAGE_SIZE));
        let start = now_ns();
        let bytes = buf.len();
        let mut rest = buf;
        while !rest.is_empty() {
            let mut pieces: [Piece<&mut [u8]>; MAX_PIECES] =
                std::array::from_fn(|_| Piece { offset: 0, buf: Default::default() });
            let mut count = 0;
            while count < MAX_PIECES && !rest.is_empty() {
                let done = bytes - rest.len();
                let (offset, len) = self.locate(Operation::Read, first, done, rest.len())?;
                let (piece, after) = rest.split_at_mut(len);
                pieces[count] = Piece { offset, buf: piece };
                (rest, count) = (after, count + 1);
            }
            match &mut pieces[..count] {
                [only] => self.device.read(lane, only.offset, only.buf)?,
                several => self.device.read_many(lane, several)?,
            }
        }
        self.polling.note(false, bytes, start);
        Ok(())
    }

    /// Reads one page that the calling thread has nothing to do without: it
    /// waits as [`Area::polling`] says.
    ///
    /// # Errors
    /// As for [`Area::read`].
    pub fn read_page(&self, lane: &mut Lane, slot: u64, page: &mut [u8]) -> Result<(), IoError> {
        debug_assert!(page.len() == PAGE_SIZE);
        let (offset, _) = self.locate(Operation::Read, slot, 0, PAGE_SIZE)?;
        self.polling.single(|| self.device.read_page(lane, offset, page, &self.polling))
    }

    /// How reads of single pages are waited for.
    #[must_use]
    pub fn polling(&self) -> &Polling {
        &self.polling
    }

    /// Where the device holds what lies `done` bytes behind slot `first`, and
    /// how many of `left` bytes are in one piece there.
    fn locate(
        &self,
        operation: Operation,
        first: u64,
        done: usize,
        left: usize,
    ) -> Result<(u64, usize), IoError> {
        let slot = first + (done / PAGE_SIZE) as u64;
        let unmapped = |_| IoError {
            kind: IoErrorKind::Unmapped,
            operation,
            offset: slot.saturating_mul(PAGE_BYTES),
            length: left as u64,
            transferred: 0,
        };
        let mapping = self.extents.lookup(slot).map_err(unmapped)?;
        let piece = mapping.pages_left.saturating_mul(PAGE_BYTES).min(left as u64);
        Ok((mapping.block * PAGE_BYTES, piece as usize))
    }

    /// From now on freed slots keep their content, until [`Area::thaw`].
    pub fn freeze(&self) {
        self.slots.freeze();
    }

    /// Ends one freeze.
    pub fn thaw(&self) {
        self.slots.thaw();
    }

    /// Slots taken, those freed in a freeze included.
    #[must_use]
    pub fn used_slots(&self) -> u64 {
        self.slots.used_slots()
    }

    /// Slots out of service.
    #[must_use]
    pub fn retired_slots(&self) -> u64 {
        self.slots.retired_slots()
    }

    /// Storage claimed so far.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Acquire)
    }

    /// The configured limit.
    #[must_use]
    pub fn limit_bytes(&self) -> Option<u64> {
        self.config.limit_bytes
    }

    /// Pieces that the storage lies in.
    #[must_use]
    pub fn extent_count(&self) -> usize {
        self.extents.count()
    }

    /// DRAM that the area's tables take by now. Nearly all of it follows from
    /// the clusters that were ever in use, since tables are populated on touch.
    #[must_use]
    pub fn metadata_bytes(&self) -> u64 {
        const SLOT_BYTES: u64 = 2 * size_of::<u32>() as u64;
        let touched = u64::from(self.slots.touched_clusters()) * CLUSTER_SLOTS as u64;
        touched * SLOT_BYTES + self.slots.metadata_bytes() + self.extents.metadata_bytes()
    }
}

fn whole_clusters(bytes: u64) -> u64 {
    bytes / CLUSTER_BYTES * CLUSTER_BYTES
}

fn lock(mutex: &Mutex<()>) -> MutexGuard<'_, ()> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[path = "area_tests.rs"]
mod tests;
