//! What the return of a page tells the policies, and what they say for it: its grace, and
//! how large the pool is to be.

use crate::base::page::{PageNo, Place};
use crate::core::state::Core;
use crate::policy::clock::PREFETCHED;
use crate::policy::mechanism::Mechanism;
use crate::policy::partition::PoolView;
use crate::policy::refault::Weight;
use softswap_sys::raw::{now_ns, process_cpu_ns};

impl Core {
    /// Notes how soon a touched page is back from where it was. Whoever notes it
    /// has claimed it, and it has not been welcomed back yet.
    pub(crate) fn note_return(&self, page: PageNo, place: Place) {
        let Some(distance) = self.policies.clock.distance(page) else { return };
        match place {
            Place::Slot { .. } => {
                // What is not kept is not had from there, however soon it is back.
                let is_in_stream = self.policies.admission.comes_in_streams(page);
                let left = if is_in_stream { u64::MAX } else { distance };
                self.stores.standby.note_return(left, self.slots_of_others());
                if !is_in_stream {
                    self.policies.partition.found_unpacked(distance);
                }
            }
            Place::Pool { .. } => {
                let pool = &self.stores.pool;
                let (limit_bytes, used_bytes) = (pool.limit_bytes(), pool.used_bytes());
                self.policies.partition.found_in_pool(distance, limit_bytes, used_bytes);
            }
            Place::Packed { .. } => {
                let more = self.policies.partition.write_back_rate().note_found(distance);
                let view = self.pool_view();
                self.policies.partition.found_on_disk(more, view);
            }
            _ => {}
        }
    }

    /// Notes that a page has come back in a stream. Before its grace is decided.
    pub(crate) fn note_streamed(&self, page: PageNo, place: Place) {
        let was_held = match (place, self.policies.clock.distance(page)) {
            (Place::Pool { .. }, _) => true,
            (Place::Packed { .. }, _) => false,
            (Place::Slot { .. }, Some(left)) => {
                self.policies.admission.would_hold(left, self.stores.pool.limit_bytes())
            }
            _ => return,
        };
        self.policies.admission.streamed(page, was_held);
    }

    /// Notes that a page that is stored has been waited for.
    pub(crate) fn note_waited_for(&self, page: PageNo, place: Place) {
        if matches!(place, Place::Pool { .. } | Place::Slot { .. } | Place::Packed { .. }) {
            self.policies.admission.waited_for(page);
        }
    }

    /// Whether a page that leaves goes to the disk without being offered to the pool.
    pub(crate) fn bypasses_pool(&self, page: PageNo) -> bool {
        self.stores.may_write()
            && self.policies.has(Mechanism::Admission)
            && self.policies.admission.passes(page)
    }

    /// Heat of a page that was touched and is to come in from `place`, by what that
    /// costs: if it `is_shared` with others, which come in the same stream, as the average.
    #[must_use]
    pub(crate) fn grace(&self, page: PageNo, place: Place, is_shared: bool) -> u8 {
        let Self { policies, memory, .. } = self;
        if place == Place::Vacant {
            return policies.clock.heat_of_new(page);
        }
        if !policies.has(Mechanism::RefaultDistance) {
            return policies.clock.heat_of_new(page);
        }
        let is_even = is_shared || !policies.has(Mechanism::CostWeight);
        let weight = if is_even { Weight::EVEN } else { policies.partition.weight(place) };
        policies.clock.heat_of_refault(page, memory.budget.pages(), weight)
    }

    /// Heat of a page that has come in with another one. In a stream it will be
    /// touched, and then passed; elsewhere it is the first to go again: nobody tells
    /// whether it is touched.
    #[must_use]
    pub(crate) fn grace_ahead(&self, page: PageNo, is_stream: bool) -> u8 {
        if !is_stream {
            return PREFETCHED;
        }
        self.policies.clock.heat_of_refault(page, self.memory.budget.pages(), Weight::EVEN)
    }

    fn pool_view(&self) -> PoolView {
        let pool = &self.stores.pool;
        let (limit_bytes, used_bytes) = (pool.limit_bytes(), pool.used_bytes());
        PoolView { limit_bytes, used_bytes, objects: pool.objects() }
    }

    /// Gives the pool all that it may take, where nothing can be written. False where it
    /// has that, or its limit does not move.
    pub(crate) fn widen_pool(&self) -> bool {
        let pool = &self.stores.pool;
        let widest = self.policies.partition.widest(pool.limit_bytes());
        widest.into_iter().for_each(|limit_bytes| pool.set_limit_bytes(limit_bytes));
        widest.is_some()
    }

    /// Moves the pool's limit to where most is gained, once enough has been seen.
    pub(crate) fn balance_pool(&self) {
        let Self { policies, memory, .. } = self;
        let (partition, pool) = (&policies.partition, &self.stores.pool);
        partition.costs().look(now_ns(), process_cpu_ns);
        // A forked child has no place but the pool.
        if !self.stores.may_write() {
            return;
        }
        let set_limit = |limit_bytes| pool.set_limit_bytes(limit_bytes);
        let distance = |random| {
            let owner = pool.owner_at_random(random)?;
            // A damaged header may name any owner.
            (owner < memory.window.pages() as u64).then(|| policies.clock.distance(owner))?
        };
        partition.step(|| self.pool_view(), distance, set_limit);
    }
}
