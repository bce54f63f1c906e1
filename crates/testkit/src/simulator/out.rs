//! Eviction of simulated pages.

use super::{Content, Simulation};
use softswap_engine::base::page::{PageNo, Place, StoredCopy};
use softswap_engine::codec::compressed_slot::SlotPacker;
use softswap_engine::codec::{Codec, Compressor, MAX_COMPRESSED_BYTES};
use softswap_engine::core::policies::Batch;
use softswap_engine::memory::context::{BATCH_PAGES, GROUP_PAGES, WRITE_BACK_PAGES};
use softswap_engine::policy::compression_tier::SECOND;
use softswap_engine::policy::partition::WRITE_BACK_PERCENT;
use softswap_engine::store::pool::{Handle, SLAB_BYTES};
use softswap_sys::PAGE_SIZE;

/// Content of every object in the pool. Only sizes matter.
static ANYTHING: [u8; MAX_COMPRESSED_BYTES] = [0; MAX_COMPRESSED_BYTES];

#[derive(PartialEq)]
enum NotInPool {
    Incompressible,
    PoolRefused,
}

impl Simulation {
    pub(super) fn charge_pages(&mut self) {
        while self.used_bytes() + PAGE_SIZE > self.setup.memory_bytes {
            if !self.round() {
                return;
            }
        }
    }

    /// Reclaims a batch, like `reclaim::round`. Returns true if that freed memory.
    fn round(&mut self) -> bool {
        let (used, limit) = (self.pool.used_bytes(), self.pool.limit_bytes());
        let from_pool = match used * 100 > limit * WRITE_BACK_PERCENT {
            true => self.write_back(),
            false => 0,
        };
        if from_pool > 0 && self.pool.used_bytes() < used && self.pool.used_bytes() > limit {
            return true;
        }
        let left = self.page_out();
        left + from_pool > 0 || self.write_back() > 0
    }

    fn page_out(&mut self) -> usize {
        let mut victims = [const { None }; BATCH_PAGES];
        let pages = self.pages;
        let found = self.policies.clock.claim_victims(&pages, &self.space, false, &mut victims);
        let cpu_ns = self.cpu_ns;
        let mut batch = Batch { left: found as u64, ..Batch::default() };
        for (page, claim) in victims.into_iter().flatten() {
            self.policies.clock.refaults.note_eviction(page);
            self.space.sub_resident(page);
            self.resident -= 1;
            let place = self.evict_page(page, claim.before().place().copy(), &mut batch);
            claim.publish(place);
        }
        self.reclaim(found as u64 * self.setup.costs.evict_ns);
        batch.cpu_ns = self.cpu_ns - cpu_ns;
        self.policies.note_batch(found, batch);
        self.figures.pages_out += found as u64;
        found
    }

    fn evict_page(&mut self, page: PageNo, copy: Option<StoredCopy>, batch: &mut Batch) -> Place {
        if let Some(copy) = copy {
            self.policies.stored_copies.note(
                page,
                self.policies.clock.refaults.refaults_early(page),
                false,
            );
            if let Some(place) = self.detach_copy(copy) {
                return self.evict_to_copy(page, place);
            }
        }
        let content = self.contents[page as usize];
        if content.lz4_bytes == 0 {
            return Place::SameFilled { code: 0 };
        }
        let is_incompressible = match self.compress_into_pool(page) {
            Ok(place) => return place,
            Err(why) => why == NotInPool::Incompressible,
        };
        batch.for_disk += 1;
        self.figures.pages_written += 1;
        let ns = self.setup.costs.write_ns;
        self.reclaim(ns);
        self.policies.admission.wrote(1, ns);
        Place::Slot { slot: self.slot(1), is_incompressible }
    }

    /// Prefers the pool to a copy in the swap area, if the pool accepts the page now.
    fn evict_to_copy(&mut self, page: PageNo, place: Place) -> Place {
        let is_on_disk = place.in_slot().is_some();
        let is_offered = is_on_disk
            && !self.policies.bypasses_pool(page, || true, || self.pool_view())
            && self.policies.stored_copies.should_offer_to_pool();
        if is_offered {
            let compressed = self.compress_into_pool(page);
            self.policies.stored_copies.note_compressed(compressed.is_ok());
            if let Ok(compressed) = compressed {
                self.free(place);
                return compressed;
            }
        }
        if is_on_disk && !place.is_incompressible() && self.pool_view().is_nearly_full() {
            self.policies.note_bypassed(page);
        }
        place
    }

    fn slot(&mut self, parts: u32) -> u64 {
        let slot = self.next_slot;
        self.next_slot += 1;
        self.slots.insert(slot, parts);
        slot
    }

    fn compress_into_pool(&mut self, page: PageNo) -> Result<Place, NotInPool> {
        let content = self.contents[page as usize];
        if !self.policies.has_codec() {
            return Err(NotInPool::PoolRefused);
        }
        if self.policies.bypasses_pool(page, || true, || self.pool_view())
            && !self.policies.admission.is_due(page)
        {
            self.policies.note_bypassed(page);
            return Err(NotInPool::PoolRefused);
        }
        // The evicted page itself frees memory.
        let has_space = self.used_bytes() + SLAB_BYTES <= self.setup.memory_bytes + PAGE_SIZE;
        let has_space_left = self.pool.accepts() && (has_space || self.pool.used_bytes() > 0);
        let first = has_space_left.then(|| self.policies.compressor(|| self.pool_view())).flatten();
        let first = first.ok_or(NotInPool::PoolRefused)?;
        let compressed = self.pack(first, content).or_else(|| {
            let second = self.policies.second_compressor(first)?;
            self.pack(second, content)
        });
        let (codec, bytes) = compressed.ok_or(NotInPool::Incompressible)?;
        let stored = self.pool.store(&ANYTHING[..bytes], page, codec.tag());
        let handle = stored.map_err(|_| NotInPool::PoolRefused)?;
        Ok(Place::Pool { handle: handle.to_bits() })
    }

    fn pack(&mut self, compressor: Compressor, content: Content) -> Option<(Codec, usize)> {
        let costs = self.setup.costs;
        let (bytes, ns) = match compressor {
            Compressor::Lz4 => (content.lz4_bytes, costs.lz4_ns),
            // If LZ4 compresses the page, a trace has no size for Huffman coding alone.
            SECOND if usize::from(content.lz4_bytes) <= MAX_COMPRESSED_BYTES => {
                (u16::MAX, costs.lz4_ns)
            }
            SECOND => (content.zstd_bytes, costs.lz4_ns),
            Compressor::Zstd { .. } => (content.zstd_bytes, costs.zstd_ns),
        };
        let bytes = Some(usize::from(bytes)).filter(|it| *it <= MAX_COMPRESSED_BYTES);
        self.reclaim(ns);
        self.policies.admission.compressed(bytes, ns);
        self.policies.tier.note_tried(compressor, bytes.is_some());
        bytes.map(|bytes| (compressor.codec(), bytes))
    }

    /// Also frees the oldest copies of resident pages. Returns the number of pages written.
    fn write_back(&mut self) -> usize {
        let (mut written_back, mut slots) = (0, 0);
        let (mut slot, mut compressor, mut content) = (0, SlotPacker::FULL, [0; PAGE_SIZE]);
        let cpu_ns = self.cpu_ns;
        while written_back < WRITE_BACK_PAGES && slots < BATCH_PAGES {
            let mut oldest = [(0, Handle::default())];
            if self.pool.oldest(&mut oldest) == 0 {
                break;
            }
            let (owner, handle) = oldest[0];
            self.reclaim_copies(owner, handle);
            let first = owner / GROUP_PAGES as u64 * GROUP_PAGES as u64;
            for page in first..(first + GROUP_PAGES as u64).min(self.setup.window_pages) {
                let Place::Pool { handle } = self.pages.load(page).place() else { continue };
                let bytes = &ANYTHING[..Handle::from_bits(handle).compressed_bytes()];
                if !compressor.fits(bytes.len()) {
                    slots += 1;
                    (slot, compressor) = (self.slot(0), SlotPacker::default());
                }
                let Some(part) = compressor.add(&mut content, 0, bytes) else { continue };
                self.slots.entry(slot).and_modify(|parts| *parts += 1);
                let age = self.policies.clock.refaults.distance(page);
                let rate = &self.policies.partition.write_back_rate;
                age.into_iter().for_each(|age| rate.note_age(age));
                self.pages.claim(page).publish(Place::CompressedSlot { slot, part });
                self.pool.free(Handle::from_bits(handle));
                written_back += 1;
            }
        }
        self.figures.pages_written += slots as u64;
        self.reclaim(slots as u64 * self.setup.costs.write_ns);
        let partition = &self.policies.partition;
        partition.write_back_rate.note_write_backs(written_back as u64);
        partition.costs.note_write_backs(written_back as u64, self.cpu_ns - cpu_ns);
        written_back
    }

    /// Frees the pool copy of a resident page, if it is the object `handle`.
    fn reclaim_copies(&mut self, page: PageNo, handle: Handle) {
        let copy = StoredCopy::pooled(handle.to_bits());
        let claim = self.pages.claim(page);
        match claim.before().place() {
            Place::Resident { age, copy: Some(has) } if has == copy => {
                claim.publish(Place::resident(age));
                self.detach_copy(copy).into_iter().for_each(|place| self.free(place));
            }
            _ => drop(claim),
        }
    }
}
