//! Charging of the budget: pages, slabs of the pool, buffers, standby pages.

use crate::base::page::PageNo;
use crate::codec::Scratch;
use crate::core::state::Core;
use crate::policy::mechanism::Mechanism;
use crate::store::bounce::Buffer;
use crate::store::pool::SLAB_BYTES;
use softswap_sys::PAGE_SIZE;
use softswap_sys::raw::{current_cpu, now_ns};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Margin for tables and transient buffers allocated between the check for a slab and its use.
const SPARE_BYTES: usize = 4 * SLAB_BYTES;

pub(crate) struct BudgetReservation<'c> {
    bytes: usize,
    claimed_bytes: &'c AtomicUsize,
}

impl Drop for BudgetReservation<'_> {
    fn drop(&mut self) {
        self.claimed_bytes.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

impl Core {
    /// Charges `count` pages if the budget has space for them and for decompressing them.
    #[must_use]
    pub(crate) fn try_charge(
        &self,
        scratch: &mut Scratch,
        count: usize,
        other_bytes: usize,
    ) -> bool {
        let budget = &self.memory.budget;
        let workspace = scratch.bytes_to_decompress() / PAGE_SIZE;
        let has_space = budget.try_charge(count + workspace, other_bytes);
        if has_space && workspace > 0 {
            scratch.open();
            // The workspace is included in `other_bytes` now.
            budget.release(workspace);
        }
        has_space
    }

    /// Requests more of a shared budget. Returns true if the limit rose.
    pub(crate) fn grow_budget(&self) -> bool {
        let raise = |bytes: usize| self.memory.budget.raise_to(bytes);
        self.background.more.get().is_some_and(|more| more(&raise))
    }

    /// Records that a forked child adds `count` pages. In a child that cannot write, inherited
    /// pages are not evictable, so they are never charged.
    pub(crate) fn count_inherited(&self, count: usize) {
        if self.background.more.get().is_none() {
            return;
        }
        match self.stores.may_write() {
            true => self.memory.budget.count_inherited(count),
            false => self.memory.budget.count_inherited_no_more(),
        }
    }

    /// Reserves a slab of the pool and the workspace of the compressing thread.
    #[must_use]
    pub(crate) fn reserve_for_pool(&self, workspace_bytes: usize) -> Option<BudgetReservation<'_>> {
        // Pages about to be evicted count as free soon. Without a slab they would go to the disk
        // although memory is free a moment later.
        let leaving_bytes = self.memory.budget.unstored_pages() * PAGE_SIZE;
        // Keep a margin of one slab while many pages are about to be evicted.
        let spare_bytes = SPARE_BYTES.saturating_sub(leaving_bytes).max(SLAB_BYTES);
        self.reserve(SLAB_BYTES + workspace_bytes, spare_bytes)
    }

    fn reserve(&self, bytes: usize, spare_bytes: usize) -> Option<BudgetReservation<'_>> {
        let claimed_bytes = &self.memory.claimed_bytes;
        claimed_bytes.fetch_add(bytes, Ordering::AcqRel);
        let reservation = BudgetReservation { bytes, claimed_bytes };
        // Load the reservations before the use: memory whose reservation was released is already
        // counted as used.
        let claimed = claimed_bytes.load(Ordering::Acquire);
        let used = claimed + self.used_bytes();
        (used + spare_bytes <= self.memory.budget.limit_bytes()).then_some(reservation)
    }

    /// Keeps a page that was evicted to a slot on the standby list. `fill` returns false on
    /// failure. Pages of streams are not kept: most of them are read ahead of their touch.
    pub(crate) fn keep_on_standby(
        &self,
        page: PageNo,
        slot: u64,
        fill: impl FnOnce(&mut [u8; PAGE_SIZE]) -> bool,
    ) {
        let standby = &self.stores.standby;
        if !self.policies.has(Mechanism::Standby)
            || !standby.is_on()
            || self.policies.admission.refaults_in_streams(page)
        {
            return;
        }
        let mut reservation = None;
        let has_space = || {
            // May use at most one slab's worth of the reserve, which is for reclaim.
            reservation = self.reserve(PAGE_SIZE, self.memory.budget.reserve_bytes() - SLAB_BYTES);
            reservation.is_some()
        };
        standby.keep((slot, self.stores.areas.generation(slot)), has_space, fill);
    }

    /// Returns a buffer from the pools, else a transient one if the budget has space.
    #[must_use]
    pub(crate) fn buffer(&self, pages: usize) -> Option<Buffer<'_>> {
        let bounce = &self.stores.bounce;
        bounce.take(current_cpu(), pages).or_else(|| {
            let _memory = self.reserve(pages * PAGE_SIZE, SPARE_BYTES / 2)?;
            bounce.take_transient(pages)
        })
    }

    /// If there is no buffer, waits for another thread's write. The caller must not hold one.
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
            if now_ns() - since > 100_000_000 {
                self.stores.bounce.note_long_wait(pages);
            }
        }
    }

    pub(crate) fn resize_buffers(&self) {
        let (now, bounce) = (now_ns(), &self.stores.bounce);
        if bounce.wants_pool() {
            let claimed = self.memory.claimed_bytes.load(Ordering::Acquire);
            let used = self.used_bytes() + claimed + SPARE_BYTES;
            bounce.grow(self.memory.budget.limit_bytes().saturating_sub(used), now);
        }
        bounce.release_idle(now);
    }

    /// Returns the approximate number of resident pages, and of pages with content.
    pub(crate) fn resident_of_all(&self) -> (usize, usize) {
        let resident = self.memory.budget.pages();
        let objects = self.stores.pool.objects();
        let pooled = objects.saturating_sub(self.policies.stored_copies.pooled());
        (resident, resident + self.non_resident_slots() as usize + pooled)
    }
}
