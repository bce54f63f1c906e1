//! Reports refaults to the policies, and adjusts the pool's limit.

use crate::base::page::{PageNo, Place};
use crate::base::stats::Return;
use crate::core::state::Core;
use crate::policy::partition::PoolView;
use softswap_sys::raw::{now_ns, process_cpu_ns};

impl Core {
    /// Records the refault of a touched page. The caller holds the page's claim, and the page's
    /// age is not decided yet.
    pub(crate) fn note_return(&self, page: PageNo, place: Place) {
        if let (Place::Slot { .. }, Some(distance)) = (place, self.policies.clock.distance(page)) {
            // Pages of streams are not kept on standby, so they would not be found there.
            let is_in_stream = self.policies.admission.refaults_in_streams(page);
            let left = if is_in_stream { u64::MAX } else { distance };
            self.stores.standby.note_return(left, self.non_resident_slots());
        }
        let from = match place {
            Place::Slot { is_incompressible: true, .. } => Some(Return::Incompressible),
            Place::Slot { .. } | Place::CompressedSlot { .. } => Some(Return::Disk),
            Place::Pool { .. } | Place::SameFilled { .. } => Some(Return::Pool),
            _ => None,
        };
        if let (Some(from), Some(left)) = (from, self.policies.clock.distance(page)) {
            self.stats.record_return(from, left);
        }
        self.policies.note_return(page, place, || self.pool_view());
    }

    /// Returns true if a page should be evicted to the disk without being offered to the pool.
    pub(crate) fn bypasses_pool(&self, page: PageNo) -> bool {
        let slots_are_plenty = || self.stores.areas.have_spare();
        self.stores.may_write()
            && self.policies.bypasses_pool(page, slots_are_plenty, || self.pool_view())
    }

    pub(crate) fn pool_view(&self) -> PoolView {
        let pool = &self.stores.pool;
        let (limit_bytes, used_bytes) = (pool.limit_bytes(), pool.used_bytes());
        PoolView { limit_bytes, used_bytes, objects: pool.objects() }
    }

    /// Adjusts the pool's limit if enough events justify it.
    pub(crate) fn balance_pool(&self) {
        let Self { policies, memory, .. } = self;
        let (partition, pool) = (&policies.partition, &self.stores.pool);
        partition.costs().sample(now_ns(), process_cpu_ns);
        // A forked child without areas has no other place for pages.
        if !self.stores.may_write() {
            return;
        }
        let set_limit = |limit_bytes| pool.set_limit_bytes(limit_bytes);
        let distance = |random| {
            let owner = pool.owner_at_random(random)?;
            // A damaged header may contain any owner.
            (owner < memory.window.pages() as u64).then(|| policies.clock.distance(owner))?
        };
        partition.step(|| self.pool_view(), distance, set_limit);
    }
}
