//! The parts that both walks use, side by side: they do not know each other,
//! the walks pass values between them.

use crate::base::page::{PageNo, PageTable, Place};
use crate::base::stats::{Counter, Stats, StopReason};
use crate::codec::seal::Sealer;
use crate::codec::{Choice, Packer, Scratch, Selector, Workspaces};
use crate::memory::address_space::AddressSpace;
use crate::memory::budget::Budget;
use crate::memory::interrupted_wait::InterruptedWait;
use crate::memory::pinners::Pinners;
use crate::policy::admission::Admission;
use crate::policy::clock::{Clock, PREFETCHED};
use crate::policy::codec_choice::CodecChoice;
use crate::policy::grace::Grace;
use crate::policy::partition::{Partition, PoolView};
use crate::policy::prefetch::companions::Companions;
use crate::policy::prefetch::readahead::Readahead;
use crate::policy::refault::Weight;
use crate::policy::stored_copies::StoredCopies;
use crate::policy::write_load::WriteLoad;
use crate::store::bounce::{self, Buffer};
use crate::store::io::poll::places::Places;
use crate::store::io::poll::pressure::Pressure;
use crate::store::pool::{Handle, Pool, SLAB_BYTES};
use crate::store::read_ahead_pages::ReadAheadPages;
use crate::store::standby::Standby;
use crate::store::swap::Areas;
use crate::store::swap::area::Discarded;
use softswap_sys::PAGE_SIZE;
use softswap_sys::affinity::{Hop, Processors};
use softswap_sys::alloc::HEAP;
use softswap_sys::raw::{current_cpu, now_ns, process_cpu_ns};
use softswap_sys::window::Window;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

/// Waiting longer than this for a buffer is worth a word.
const LONG_WAIT_NS: u64 = 100_000_000;

/// What tables and transient buffers may take while somebody finds that there
/// is room for a slab.
const SPARE_BYTES: usize = 4 * SLAB_BYTES;
/// As little as that is to spare where much is about to leave.
const LEAST_SPARE_BYTES: usize = SLAB_BYTES;

/// Room in the budget for what its holder may take.
pub struct Room<'p> {
    bytes: usize,
    claimed_bytes: &'p AtomicUsize,
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.claimed_bytes.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// Everything an engine is made of, except who runs it.
pub struct Parts {
    /// The managed window and the staging frames.
    pub window: Window,
    /// One entry per page of the window.
    pub pages: PageTable<'static>,
    /// Which pages belong to the program.
    pub space: AddressSpace,
    /// Which pages are cold.
    pub clock: Clock,
    /// How much longer those stay that do not pack.
    pub grace: Grace,
    /// Which pages come back in streams, and which are not for the pool.
    pub(crate) admission: Admission,
    /// Which pages are touched one after the other.
    pub readahead: Readahead,
    /// What they reach next.
    pub read_ahead_pages: ReadAheadPages,
    /// What has just left.
    pub standby: Standby,
    /// Which pages are touched together.
    pub companions: Companions,
    /// What is stored of resident pages.
    pub copies: StoredCopies,
    /// Compressed pages.
    pub pool: Pool,
    /// The swap areas.
    pub areas: Areas,
    /// I/O buffers.
    pub bounce: bounce::Pools,
    /// Whether those that leave need the disk.
    pub write_load: WriteLoad,
    /// Whether pages may leave together that lie apart.
    pub pinners: Pinners,
    /// What seals pages that leave DRAM.
    pub sealer: Sealer,
    /// The DRAM budget.
    pub budget: Budget,
    /// How much of it the pool gets.
    pub partition: Partition,
    /// What may be taken of it in a moment: by stores into the pool, each of
    /// which may open a slab, and for transient buffers.
    pub claimed_bytes: AtomicUsize,
    /// Counters shared with `softswap run`.
    pub stats: Stats,
    /// What packs pages; may be changed at any time.
    pub codec: Selector,
    /// Which codec that is, where none was asked for.
    pub codec_choice: CodecChoice,
    /// Whether pages of the pool go to the swap area before it is full.
    pub pool_shrinks: AtomicBool,
    /// Whether idle pages of the pool are packed again.
    pub recompresses: AtomicBool,
    /// How much processors are wanted.
    pub pressure: Arc<Pressure>,
    /// On which processor waiting for a page takes least.
    pub places: Arc<Places>,
    /// Those that there are, where that is known.
    pub processors: Option<Processors>,
    /// What the codecs have taken beside their scratch.
    pub workspaces: Arc<Workspaces>,
    /// Whether the swap area may be written; a forked child only reads it.
    pub may_write: AtomicBool,
    /// Bumped to wake background reclaim.
    pub kick: AtomicU32,
    /// Whether background reclaim sleeps on `kick`.
    pub asleep: AtomicBool,
    /// Whether there is a background thread, about: a forked child has none.
    pub has_background: AtomicBool,
    /// Who was called away while room was waited for.
    pub interrupted_wait: InterruptedWait,
}

impl Parts {
    /// What counts against the budget beside pages and fixed parts, in bytes.
    #[must_use]
    pub fn other_bytes(&self) -> usize {
        self.pool.used_bytes()
            + self.areas.metadata_bytes() as usize
            + self.space.metadata_bytes()
            + self.clock.metadata_bytes()
            + self.bounce.extra_bytes()
            + self.standby.used_bytes()
            + self.workspaces.touched_bytes()
            + HEAP.taken_bytes()
    }

    /// Everything that counts against the budget, in bytes.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        self.budget.used_bytes(self.other_bytes())
    }

    /// Whether this process may write to the swap area; a forked child only reads it.
    #[must_use]
    pub fn may_write(&self) -> bool {
        self.may_write.load(Ordering::Relaxed)
    }

    /// Charges `count` pages to the budget if there is room for them, and for what unpacking
    /// them with this scratch takes.
    #[must_use]
    pub fn try_charge(&self, scratch: &mut Scratch, count: usize, other_bytes: usize) -> bool {
        let workspace = scratch.bytes_to_unpack() / PAGE_SIZE;
        let has_room = self.budget.try_charge(count + workspace, other_bytes);
        if has_room && workspace > 0 {
            scratch.open();
            // It is among what else is used now.
            self.budget.release(workspace);
        }
        has_room
    }

    /// Keeps a page that has left for a slot for a while longer, where that pays: `fill`
    /// writes it, and says whether it could. One that comes back in a stream is mostly read
    /// before it is touched, by whole pieces.
    pub fn keep_on_standby(
        &self,
        page: PageNo,
        slot: u64,
        fill: impl FnOnce(&mut [u8; PAGE_SIZE]) -> bool,
    ) {
        if !self.standby.is_on() || self.admission.comes_in_streams(page) {
            return;
        }
        let mut room = None;
        let has_room = || {
            // Of the reserve, where faults leave no more, only a little: it is reclaim's.
            room = self.room(PAGE_SIZE, self.budget.reserve_bytes() - SLAB_BYTES);
            room.is_some()
        };
        self.standby.keep((slot, self.areas.generation(slot)), has_room, fill);
    }

    /// Takes what has left for a slot lately, if it has been kept.
    #[must_use]
    pub fn take_from_standby(&self, slot: u64, page: &mut [u8; PAGE_SIZE]) -> bool {
        self.standby.take((slot, self.areas.generation(slot)), page)
    }

    /// How many pages are resident, about, of how many that hold something.
    #[must_use]
    pub fn resident_of_all(&self) -> (usize, usize) {
        let resident = self.budget.pages();
        let pooled = self.pool.objects().saturating_sub(self.copies.pooled());
        (resident, resident + self.slots_of_others() as usize + pooled)
    }

    /// Slots of pages that are not resident.
    fn slots_of_others(&self) -> u64 {
        self.areas.used_slots().saturating_sub(self.copies.count() as u64)
    }

    /// Room within the budget for one slab that the pool may take, and for `workspace_bytes`
    /// of who packs, for as long as it is held: others who ask at the same time count it.
    #[must_use]
    pub fn room_for_pool(&self, workspace_bytes: usize) -> Option<Room<'_>> {
        // Pages that are about to leave the budget are as good as to spare. Without a slab
        // they went to the disk, though the next moment there is room.
        let leaving_bytes = self.budget.leaving_pages() * PAGE_SIZE;
        let spare_bytes = SPARE_BYTES.saturating_sub(leaving_bytes).max(LEAST_SPARE_BYTES);
        self.room(SLAB_BYTES + workspace_bytes, spare_bytes)
    }

    /// Room for so many bytes, with so many to spare.
    fn room(&self, bytes: usize, spare_bytes: usize) -> Option<Room<'_>> {
        self.claimed_bytes.fetch_add(bytes, Ordering::AcqRel);
        let room = Room { bytes, claimed_bytes: &self.claimed_bytes };
        // In this order: what is no longer claimed has been taken, or never is.
        let claimed = self.claimed_bytes.load(Ordering::Acquire);
        let used = claimed + self.used_bytes();
        (used + spare_bytes <= self.budget.limit_bytes()).then_some(room)
    }

    /// A buffer of `pages` pages: where the pools have none, one for this use
    /// only, if the budget has room for it.
    #[must_use]
    pub fn buffer(&self, pages: usize) -> Option<Buffer<'_>> {
        self.bounce.take(current_cpu(), pages).or_else(|| {
            let _room = self.room(pages * PAGE_SIZE, SPARE_BYTES / 2)?;
            self.bounce.take_transient(pages)
        })
    }

    /// As [`Parts::buffer`]; waits until somebody else's write is done where
    /// there is none. Nobody who has a buffer waits for another.
    #[must_use]
    pub fn wait_for_buffer(&self, pages: usize) -> Buffer<'_> {
        let mut since = None;
        loop {
            if let Some(buffer) = self.buffer(pages) {
                return buffer;
            }
            self.wake_reclaim();
            self.bounce.wait();
            let since = *since.get_or_insert_with(now_ns);
            if now_ns() - since > LONG_WAIT_NS {
                self.bounce.note_long_wait(pages);
            }
        }
    }

    /// Moves the calling thread, which has just waited for a page, to where it has
    /// to wait less, if it is the only one that waits and a processor is idle.
    pub fn steer(&self) {
        let Some(processors) = self.processors.as_ref().filter(|_| self.places.is_due()) else {
            return;
        };
        let now = now_ns();
        let is_quiet = || self.pressure.is_alone(now) && self.pressure.has_idle_processor();
        let Some(to) = self.places.advise(current_cpu(), now, is_quiet) else { return };
        match processors.hop_to(to) {
            Ok(Hop::Moved) => self.stats.add(Counter::IoSteered, 1),
            Ok(Hop::Nowhere) => self.places.nowhere(to),
            Ok(Hop::Bound) | Err(_) => self.places.refused(now),
        }
    }

    /// Adds and takes away bounce buffers as they are needed.
    pub fn tend_buffers(&self) {
        let now = now_ns();
        if self.bounce.wants_pool() {
            let claimed = self.claimed_bytes.load(Ordering::Acquire);
            let used = self.used_bytes() + claimed + SPARE_BYTES;
            self.bounce.grow(self.budget.limit_bytes().saturating_sub(used), now);
        }
        self.bounce.release_idle(now);
    }

    /// Says so if somebody has waited long for a buffer.
    pub fn tell_of_full_buffers(&self) {
        if let Some(message) = self.bounce.full_message(now_ns()) {
            softswap_sys::raw::write_stderr(message.as_bytes());
        }
    }

    /// Says how the bounce buffers are used. Not in a fault: it looks at what
    /// every processor writes to.
    fn note_buffers(&self) {
        let usage = self.bounce.usage();
        let figures = [
            (Counter::BounceSlots, usage.slots as u64),
            (Counter::BounceUsed, usage.used as u64),
            (Counter::BouncePeakSlots, usage.high_water as u64),
            (Counter::BounceTransient, usage.transient as u64),
            (Counter::BounceTakes, usage.takes),
            (Counter::BounceLent, usage.lent),
            (Counter::BounceMisses, usage.misses),
            (Counter::BounceAreasVisited, usage.areas_visited),
            (Counter::BounceContended, usage.contended),
            (Counter::BounceGrown, usage.grown),
            (Counter::BounceReleased, usage.released),
        ];
        figures.into_iter().for_each(|(counter, value)| self.stats.set(counter, value));
    }

    /// Says how the swap areas are.
    pub fn note_areas(&self) {
        let failed = self.areas.iter().filter(|area| area.has_failed()).count();
        self.stats.set(Counter::AreasFailed, failed as u64);
        self.stats.set(Counter::SlotsRetired, self.areas.retired_slots());
    }

    /// Counts what discarding came to.
    pub fn count_discarded(&self, discarded: Discarded) {
        match discarded {
            Discarded::Bytes(bytes) => self.stats.add(Counter::DiscardedBytes, bytes),
            Discarded::Failed => self.stats.add(Counter::DiscardErrors, 1),
            Discarded::Nothing | Discarded::Unsupported => {}
        }
    }

    /// Says all that reports show.
    pub fn note_all(&self) {
        self.note_buffers();
        self.note_peaks();
    }

    /// Raises the peaks that reports show.
    pub fn note_peaks(&self) {
        self.note_areas();
        let stats = &self.stats;
        let used_bytes = self.used_bytes() as u64;
        stats.set(Counter::UsedBytes, used_bytes);
        stats.peak(Counter::UsedPeakBytes, used_bytes);
        let pages = self.budget.pages() * PAGE_SIZE;
        stats.peak(Counter::ResidentPeakBytes, pages as u64);
        stats.peak(Counter::PoolPeakBytes, self.pool.used_bytes() as u64);
        stats.set(Counter::PoolObjects, self.pool.objects() as u64);
        stats.set(Counter::PoolStoredBytes, self.pool.stored_bytes() as u64);
        stats.set(Counter::PoolUsedBytes, self.pool.used_bytes() as u64);
        stats.set(Counter::PoolLimitBytes, self.pool.limit_bytes() as u64);
        let disk = self.areas.used_slots() * PAGE_SIZE as u64;
        stats.peak(Counter::DiskPeakBytes, disk);
        let metadata = self.space.metadata_bytes() + self.clock.metadata_bytes();
        stats.peak(Counter::MetadataPeakBytes, metadata as u64);
        stats.peak(Counter::MappedPeakBytes, self.space.mapped_bytes() as u64);
        stats.set(Counter::SwapFileBytes, self.areas.size_bytes());
    }

    /// Ends the process: going on would lose a page. Never returns.
    pub fn die(&self, why: &str) -> ! {
        self.stats.set(Counter::StopReason, StopReason::InternalError as u64);
        softswap_sys::raw::write_stderr(b"softswap: internal error: ");
        softswap_sys::raw::write_stderr(why.as_bytes());
        softswap_sys::raw::write_stderr(b"; stopping the program rather than losing data\n");
        std::process::abort()
    }

    /// Seals a page, in place, for a slot that was handed out for it: once.
    pub fn seal(&self, slot: u64, page: &mut [u8]) {
        if !self.may_write() {
            // The parent seals with the same key, for the same slots.
            self.die("a forked child was about to seal a page");
        }
        match self.sealer.seal(slot, self.areas.generation(slot), page) {
            Some(seal) => self.areas.set_seal(slot, seal),
            None => self.die("a page cannot be encrypted"),
        }
    }

    /// Makes what was read from a slot the page again, in place. False when it is
    /// not what was written there.
    #[must_use]
    pub fn open_sealed(&self, slot: u64, page: &mut [u8]) -> bool {
        let (generation, seal) = (self.areas.generation(slot), self.areas.seal(slot));
        self.sealer.open(slot, generation, page, seal)
    }

    /// Notes how soon a touched page is back from where it was. Whoever notes it
    /// has claimed it, and it has not been welcomed back yet.
    pub fn note_return(&self, page: PageNo, place: Place) {
        if matches!(place, Place::Slot { .. })
            && let Some(left) = self.clock.distance(page)
        {
            // What is not kept is not had from there, however soon it is back.
            let left = if self.admission.comes_in_streams(page) { u64::MAX } else { left };
            self.standby.note_return(left, self.slots_of_others());
        }
        if !matches!(place, Place::Pool { .. } | Place::Packed { .. }) {
            return;
        }
        let Some(distance) = self.clock.distance(page) else { return };
        match place {
            Place::Pool { .. } => {
                let (limit_bytes, used_bytes) = (self.pool.limit_bytes(), self.pool.used_bytes());
                self.partition.found_in_pool(distance, limit_bytes, used_bytes);
                if self.chooses_codec() {
                    self.codec_choice.found_in_pool(distance);
                }
            }
            _ => {
                let more = self.partition.turnover().note_found(distance);
                let view = self.pool_view();
                self.partition.found_on_disk(more, view);
                if self.chooses_codec() && view.is_full() {
                    self.codec_choice.found_on_disk(more);
                }
            }
        }
    }

    /// Notes that a page has come back in a stream. Before its grace is decided.
    pub fn note_streamed(&self, page: PageNo, place: Place) {
        let was_held = match (place, self.clock.distance(page)) {
            (Place::Pool { .. }, _) => true,
            (Place::Packed { .. }, _) => false,
            (Place::Slot { .. }, Some(left)) => {
                self.admission.would_hold(left, self.pool.limit_bytes())
            }
            _ => return,
        };
        self.admission.streamed(page, was_held);
    }

    /// Notes that a page that is stored has been waited for.
    pub fn note_waited_for(&self, page: PageNo, place: Place) {
        if matches!(place, Place::Pool { .. } | Place::Slot { .. } | Place::Packed { .. }) {
            self.admission.waited_for(page);
        }
    }

    /// Whether a page that leaves goes to the disk without being offered to the pool.
    pub fn passes_pool(&self, page: PageNo) -> bool {
        self.may_write() && self.admission.passes(page)
    }

    fn pool_view(&self) -> PoolView {
        let pool = &self.pool;
        let (limit_bytes, used_bytes) = (pool.limit_bytes(), pool.used_bytes());
        PoolView { limit_bytes, used_bytes, objects: pool.objects() }
    }

    /// Gives the pool all that it may take, where nothing can be written. False where it
    /// has that, or its limit does not move.
    pub fn widen_pool(&self) -> bool {
        let widest = self.partition.widest(self.pool.limit_bytes());
        widest.into_iter().for_each(|limit_bytes| self.pool.set_limit_bytes(limit_bytes));
        widest.is_some()
    }

    /// Moves the pool's limit to where most is gained, once enough has been seen.
    pub fn keep_balance(&self) {
        self.partition.prices().look(now_ns(), process_cpu_ns);
        // A forked child has no place but the pool.
        if !self.may_write() {
            return;
        }
        let set_limit = |limit_bytes| self.pool.set_limit_bytes(limit_bytes);
        let distance = |random| {
            let owner = self.pool.owner_at_random(random)?;
            // A damaged header may name any owner.
            (owner < self.window.pages() as u64).then(|| self.clock.distance(owner))?
        };
        self.partition.step(|| self.pool_view(), distance, set_limit);
        if self.chooses_codec() {
            self.codec_choice.step(|| self.pool_view(), || self.partition.spared_ns());
        }
    }

    /// Whether nobody asked for a codec.
    pub(crate) fn chooses_codec(&self) -> bool {
        self.codec.get() == Choice::Auto
    }

    /// What packs the next page, if anything does.
    #[must_use]
    pub fn packer(&self) -> Option<Packer> {
        match self.codec.get() {
            Choice::Auto => Some(self.codec_choice.packer()),
            Choice::Fixed(packer) => packer,
        }
    }

    /// What is to pack the next page beside `packer`, to see what it gains.
    #[must_use]
    pub fn packer_to_try(&self, packer: Packer) -> Option<Packer> {
        if self.chooses_codec() { self.codec_choice.to_try(packer) } else { None }
    }

    /// Heat of a page that was touched and is to come in from `place`, by what that
    /// costs: if it `is_shared` with others, which come in the same stream, as the average.
    #[must_use]
    pub fn grace(&self, page: PageNo, place: Place, is_shared: bool) -> u8 {
        if place == Place::Vacant {
            return self.clock.welcome(page);
        }
        let weight = if is_shared { Weight::EVEN } else { self.partition.weight(place) };
        self.clock.welcome_back(page, self.budget.pages(), weight)
    }

    /// Heat of a page that has come in with another one. In a stream it will be
    /// touched, and then passed; elsewhere it is the first to go again: nobody tells
    /// whether it is touched.
    #[must_use]
    pub fn grace_ahead(&self, page: PageNo, is_stream: bool) -> u8 {
        if !is_stream {
            return PREFETCHED;
        }
        self.clock.welcome_back(page, self.budget.pages(), Weight::EVEN)
    }

    /// Frees what a place outside the program's memory occupies.
    pub fn release_copy(&self, place: Place) {
        match place {
            Place::Pool { handle } => self.pool.free(Handle::from_bits(handle)),
            Place::Slot { slot } => self.areas.free(slot, 1),
            Place::Packed { slot, part } => self.areas.free_part(slot, part),
            _ => {}
        }
    }

    /// Counts `count` pages from `page`, all of one chunk or not, as resident.
    pub fn count_resident(&self, page: PageNo, count: usize) {
        for offset in 0..count as u64 {
            self.space.add_resident(page + offset, 1);
        }
    }

    /// Wakes background reclaim if it sleeps.
    pub fn wake_reclaim(&self) {
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::AcqRel) {
            self.kick.fetch_add(1, Ordering::Release);
            softswap_sys::futex::wake_all(&self.kick);
        }
    }
}
