//! The budget and all that counts against it: room for pages, for a slab of the pool, for
//! a buffer, for a page on standby.

use crate::base::page::PageNo;
use crate::codec::Scratch;
use crate::core::state::Core;
use crate::policy::mechanism::Mechanism;
use crate::store::bounce::Buffer;
use crate::store::pool::SLAB_BYTES;
use softswap_sys::PAGE_SIZE;
use softswap_sys::alloc::HEAP;
use softswap_sys::raw::{current_cpu, now_ns};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Waiting longer than this for a buffer is worth a word.
const LONG_WAIT_NS: u64 = 100_000_000;

/// What tables and transient buffers may take while somebody finds that there
/// is room for a slab.
const SPARE_BYTES: usize = 4 * SLAB_BYTES;
/// As little as that is to spare where much is about to leave.
const LEAST_SPARE_BYTES: usize = SLAB_BYTES;

/// Room in the budget for what its holder may take.
pub(crate) struct Room<'c> {
    bytes: usize,
    claimed_bytes: &'c AtomicUsize,
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.claimed_bytes.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

impl Core {
    /// What counts against the budget beside pages and what never changes, in bytes.
    #[must_use]
    pub(crate) fn other_bytes(&self) -> usize {
        self.stores.used_bytes() + self.metadata_bytes() + HEAP.taken_bytes()
    }

    /// What the tables of the program's pages take, in bytes.
    #[must_use]
    pub(crate) fn metadata_bytes(&self) -> usize {
        self.memory.space.metadata_bytes() + self.policies.clock.metadata_bytes()
    }

    /// Everything that counts against the budget, in bytes.
    #[must_use]
    pub(crate) fn used_bytes(&self) -> usize {
        self.memory.budget.used_bytes(self.other_bytes())
    }

    /// Charges `count` pages to the budget if there is room for them, and for what unpacking
    /// them with this scratch takes.
    #[must_use]
    pub(crate) fn try_charge(
        &self,
        scratch: &mut Scratch,
        count: usize,
        other_bytes: usize,
    ) -> bool {
        let budget = &self.memory.budget;
        let workspace = scratch.bytes_to_unpack() / PAGE_SIZE;
        let has_room = budget.try_charge(count + workspace, other_bytes);
        if has_room && workspace > 0 {
            scratch.open();
            // It is among what else is used now.
            budget.release(workspace);
        }
        has_room
    }

    /// Whether the budget has grown, for whoever finds it short.
    pub(crate) fn grow_budget(&self) -> bool {
        let raise = |bytes: usize| self.memory.budget.raise_to(bytes);
        self.background.more.get().is_some_and(|more| more(&raise))
    }

    /// A forked child that shares a budget is to add `count` pages. Where it can write nothing,
    /// what it inherits could not leave, and never counts.
    pub(crate) fn count_inherited(&self, count: usize) {
        if self.background.more.get().is_none() {
            return;
        }
        match self.stores.may_write() {
            true => self.memory.budget.count_inherited(count),
            false => self.memory.budget.count_inherited_no_more(),
        }
    }

    /// Room within the budget for one slab that the pool may take, and for `workspace_bytes`
    /// of who packs, for as long as it is held: others who ask at the same time count it.
    #[must_use]
    pub(crate) fn room_for_pool(&self, workspace_bytes: usize) -> Option<Room<'_>> {
        // Pages that are about to leave the budget are as good as to spare. Without a slab
        // they went to the disk, though the next moment there is room.
        let leaving_bytes = self.memory.budget.leaving_pages() * PAGE_SIZE;
        let spare_bytes = SPARE_BYTES.saturating_sub(leaving_bytes).max(LEAST_SPARE_BYTES);
        self.room(SLAB_BYTES + workspace_bytes, spare_bytes)
    }

    /// Room for so many bytes, with so many to spare.
    fn room(&self, bytes: usize, spare_bytes: usize) -> Option<Room<'_>> {
        let claimed_bytes = &self.memory.claimed_bytes;
        claimed_bytes.fetch_add(bytes, Ordering::AcqRel);
        let room = Room { bytes, claimed_bytes };
        // In this order: what is no longer claimed has been taken, or never is.
        let claimed = claimed_bytes.load(Ordering::Acquire);
        let used = claimed + self.used_bytes();
        (used + spare_bytes <= self.memory.budget.limit_bytes()).then_some(room)
    }

    /// Keeps a page that has left for a slot on the standby list, where that pays: `fill`
    /// writes it, and says whether it could. One that comes back in a stream is mostly read
    /// before it is touched, by whole windows.
    pub(crate) fn keep_on_standby(
        &self,
        page: PageNo,
        slot: u64,
        fill: impl FnOnce(&mut [u8; PAGE_SIZE]) -> bool,
    ) {
        let standby = &self.stores.standby;
        if !self.policies.has(Mechanism::Standby)
            || !standby.is_on()
            || self.policies.admission.comes_in_streams(page)
        {
            return;
        }
        let mut room = None;
        let has_room = || {
            // Of the reserve, where faults leave no more, only a little: it is reclaim's.
            room = self.room(PAGE_SIZE, self.memory.budget.reserve_bytes() - SLAB_BYTES);
            room.is_some()
        };
        standby.keep((slot, self.stores.areas.generation(slot)), has_room, fill);
    }

    /// A buffer of `pages` pages: where the pools have none, one for this use
    /// only, if the budget has room for it.
    #[must_use]
    pub(crate) fn buffer(&self, pages: usize) -> Option<Buffer<'_>> {
        let bounce = &self.stores.bounce;
        bounce.take(current_cpu(), pages).or_else(|| {
            let _room = self.room(pages * PAGE_SIZE, SPARE_BYTES / 2)?;
            bounce.take_transient(pages)
        })
    }

    /// As [`Core::buffer`]; waits until somebody else's write is done where
    /// there is none. Nobody who has a buffer waits for another.
    #[must_use]
    pub(crate) fn wait_for_buffer(&self, pages: usize) -> Buffer<'_> {
        let mut since = None;
        loop {
            if let Some(buffer) = self.buffer(pages) {
                return buffer;
            }
            self.background.wake();
            self.stores.bounce.wait();
            let since = *since.get_or_insert_with(now_ns);
            if now_ns() - since > LONG_WAIT_NS {
                self.stores.bounce.note_long_wait(pages);
            }
        }
    }

    /// Adds and takes away bounce buffers as they are needed.
    pub(crate) fn tend_buffers(&self) {
        let (now, bounce) = (now_ns(), &self.stores.bounce);
        if bounce.wants_pool() {
            let claimed = self.memory.claimed_bytes.load(Ordering::Acquire);
            let used = self.used_bytes() + claimed + SPARE_BYTES;
            bounce.grow(self.memory.budget.limit_bytes().saturating_sub(used), now);
        }
        bounce.release_idle(now);
    }

    /// How many pages are resident, about, of how many that hold something.
    #[must_use]
    pub(crate) fn resident_of_all(&self) -> (usize, usize) {
        let resident = self.memory.budget.pages();
        let objects = self.stores.pool.objects();
        let pooled = objects.saturating_sub(self.policies.stored_copies.pooled());
        (resident, resident + self.slots_of_others() as usize + pooled)
    }

    /// Slots of pages that are not resident.
    pub(super) fn slots_of_others(&self) -> u64 {
        let copies = self.policies.stored_copies.count() as u64;
        self.stores.areas.used_slots().saturating_sub(copies)
    }
}
