//! The policies, and the switches that are set while a program runs.

use crate::base::page::{PageNo, Place};
use crate::codec::{Choice, Packer, Selector};
use crate::policy::admission::Admission;
use crate::policy::clock::{Clock, PREFETCHED};
use crate::policy::compression_tier::CompressionTier;
use crate::policy::mechanism::{Mechanism, Without};
use crate::policy::partition::{Partition, PoolView};
use crate::policy::passing_over::PassingOver;
use crate::policy::prefetch::advised::Advised;
use crate::policy::prefetch::offset_prefetch::OffsetPrefetch;
use crate::policy::prefetch::readahead::Readahead;
use crate::policy::stored_copies::{Stays, StoredCopies, TOO_LIKELY};
use crate::policy::write_load::WriteLoad;
use softswap_sys::PAGE_SIZE;
use std::io;

/// A page that leaves now is so many times as likely to be touched soon as those that are the
/// oldest in the pool: with less, programs pay whose memory has hot and cold pages.
const NEWCOMERS: f64 = 8.0;

/// What a batch of pages that leave came to.
#[derive(Debug, Clone, Copy, Default)]
pub struct Batch {
    /// How many left.
    pub left: u64,
    /// How many of them are known not to pack.
    pub incompressible: u64,
    /// How many were to go to the swap area.
    pub for_disk: usize,
    /// Processor time.
    pub cpu_ns: u64,
}

/// What is decided, and by what.
pub struct Policies {
    /// What is switched off.
    pub(crate) without: Without,
    /// Which pages are cold.
    pub clock: Clock,
    /// How much longer those stay that do not pack.
    pub passing_over: PassingOver,
    /// Which pages come back in streams, and which are not for the pool.
    pub admission: Admission,
    /// How much of the budget the pool gets.
    pub partition: Partition,
    /// Whether those that leave need the disk.
    pub(crate) write_load: WriteLoad,
    /// Which pages are touched one after the other.
    pub readahead: Readahead,
    /// Which pages are touched together.
    pub(crate) offset_prefetch: OffsetPrefetch,
    pub(crate) advised: Advised,
    /// What is stored of resident pages, and where that is worth keeping.
    pub stored_copies: StoredCopies,
    /// What packs pages; may be changed at any time.
    pub(crate) codec: Selector,
    /// How dense, where nothing was asked for.
    pub tier: CompressionTier,
}

impl Policies {
    /// For a window of so many pages and a budget of so many bytes, with so many contexts.
    ///
    /// # Errors
    /// When there is no address space for the tables.
    pub fn new(
        window_pages: usize,
        budget_bytes: usize,
        contexts: usize,
        partition: Partition,
        codec: Choice,
        without: Without,
    ) -> io::Result<Policies> {
        let budget_pages = budget_bytes / PAGE_SIZE;
        Ok(Policies {
            without,
            clock: Clock::new(window_pages, budget_pages)?,
            passing_over: PassingOver::default(),
            admission: Admission::new(window_pages)?,
            partition,
            write_load: WriteLoad::default(),
            readahead: Readahead::new(budget_pages, without),
            offset_prefetch: OffsetPrefetch::new(window_pages)?,
            advised: Advised::new(window_pages)?,
            stored_copies: StoredCopies::new(window_pages)?,
            codec: Selector::new(codec),
            tier: CompressionTier::new(budget_bytes, contexts, !without.has(Mechanism::DenseTier)),
        })
    }

    /// The budget has so many bytes from now on. The partition is told by itself.
    pub(crate) fn resize(&self, budget_bytes: usize) {
        self.clock.resize(budget_bytes / PAGE_SIZE);
        self.readahead.resize(budget_bytes / PAGE_SIZE);
        self.tier.resize(budget_bytes);
    }

    /// Whether a mechanism is switched on.
    #[must_use]
    pub fn has(&self, mechanism: Mechanism) -> bool {
        !self.without.has(mechanism)
    }

    /// Notes how soon a touched page is back from where it was, with the pool as it is.
    /// Whoever notes it has claimed it, and it has not been welcomed back yet.
    pub fn note_return(&self, page: PageNo, place: Place, pool: impl FnOnce() -> PoolView) {
        let Some(distance) = self.clock.distance(page) else { return };
        match place {
            Place::Slot { .. } if self.admission.comes_in_streams(page) => {}
            Place::Slot { is_incompressible: true, .. } => {
                self.partition.found_incompressible(distance)
            }
            Place::Pool { .. } => {
                self.partition.write_back_rate().note_held();
                let PoolView { limit_bytes, used_bytes, .. } = pool();
                self.partition.found_in_pool(distance, limit_bytes, used_bytes);
            }
            // What passed a pool that was full would be there, too, had it been large enough.
            Place::Slot { .. } => {
                let more = self.partition.write_back_rate().note_passed_found(distance);
                self.partition.found_on_disk(more, pool());
            }
            Place::Packed { .. } => {
                let more = self.partition.write_back_rate().note_found(distance);
                self.partition.found_on_disk(more, pool());
            }
            _ => {}
        }
    }

    /// Notes that a page has come back in a stream, while the pool may take so much. Before
    /// its grace is decided.
    pub fn note_streamed(&self, page: PageNo, place: Place, limit_bytes: usize) {
        let was_held = match (place, self.clock.distance(page)) {
            (Place::Pool { .. }, _) => true,
            (Place::Packed { .. }, _) => false,
            (Place::Slot { .. }, Some(left)) => self.admission.would_hold(left, limit_bytes),
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

    /// Whether a page that leaves goes to the disk, if that can be written, without being
    /// offered to the pool as it is: because its chunk comes in streams, or because it would
    /// only make another one go on that is as likely to be touched. For that slots must be
    /// plenty: as it is, it takes a whole one.
    pub fn bypasses_pool(
        &self,
        page: PageNo,
        slots_are_plenty: impl FnOnce() -> bool,
        pool: impl FnOnce() -> PoolView,
    ) -> bool {
        let gains_too_little = || {
            self.admission.may_pass()
                && pool().is_nearly_full()
                && slots_are_plenty()
                && !self.is_held_for_long()
        };
        self.has(Mechanism::Admission) && (self.admission.passes(page) || gains_too_little())
    }

    /// Whether pages stay in the pool until they are touched often enough to pay for those that
    /// were packed in vain.
    fn is_held_for_long(&self) -> bool {
        let (pool_ns, disk_ns) = self.partition.costs().faults_ns();
        let spared_ns = disk_ns.saturating_sub(pool_ns) as f64;
        let share_held = self.partition.write_back_rate().share_held();
        NEWCOMERS * share_held * spared_ns
            >= self.admission.pack_ns() as f64
                + (1.0 - share_held) * self.partition.costs().pass_on_ns() as f64
    }

    /// Heat of a page that was touched and is to come in from `place`, while so many are
    /// resident.
    #[must_use]
    pub fn grace(&self, page: PageNo, place: Place, resident: usize) -> u8 {
        if place == Place::Vacant || !self.has(Mechanism::RefaultDistance) {
            return self.clock.heat_of_new(page);
        }
        self.clock.heat_of_refault(page, resident)
    }

    /// Heat of a page that has come in with another one. In a stream it will be
    /// touched, and then passed; elsewhere it is the first to go again: nobody tells
    /// whether it is touched.
    #[must_use]
    pub fn grace_ahead(&self, page: PageNo, is_stream: bool, resident: usize) -> u8 {
        if !is_stream {
            return PREFETCHED;
        }
        self.clock.heat_of_refault(page, resident)
    }

    /// How often pages known not to pack are met before they grow colder ([`PassingOver::times`]).
    #[must_use]
    pub fn times_passed_over(&self) -> u64 {
        if self.has(Mechanism::PassingOver) { self.passing_over.times() } else { 1 }
    }

    /// What is to stay of what is stored of a page that comes in from `place` to be read,
    /// where that may stay if there `is_room`. One that `is_touched` has been given its grace,
    /// which tells of which kind it is.
    #[must_use]
    pub fn stays(&self, page: PageNo, place: Place, is_room: bool, is_touched: bool) -> Stays {
        let mechanism = match place {
            Place::Pool { .. } => Mechanism::PoolCopies,
            _ => Mechanism::SwapCache,
        };
        let comes_soon = self.clock.comes_soon(page);
        let is_promising =
            |soon, too_likely| self.stored_copies.is_promising(page, soon, too_likely);
        let is_worth_a_copy = || {
            is_promising(comes_soon, TOO_LIKELY)
                && (is_touched || is_promising(!comes_soon, TOO_LIKELY))
        };
        match is_room && self.has(mechanism) {
            true if is_worth_a_copy() => Stays::Copy,
            _ => Stays::Nothing,
        }
    }

    /// Notes a batch: of `found` victims so many pages left, in so much processor time, of
    /// these so many are `incompressible`, and `for_disk` were to be written.
    pub fn note_batch(&self, found: usize, batch: Batch) {
        let Batch { left, incompressible, for_disk, cpu_ns } = batch;
        self.write_load.note(found, for_disk);
        self.passing_over.note_left(left, incompressible);
        self.partition.write_back_rate().note_left(left);
        self.partition.costs().left(left, cpu_ns);
    }

    /// Whether a page that is packed so would be packed by the same codec now, or by whichever
    /// the pool is in need of.
    pub(crate) fn is_of_now(&self, tag: u8) -> bool {
        match self.codec.get() {
            Choice::Auto => true,
            Choice::Fixed(packer) => packer.is_some_and(|packer| packer.codec().tag() == tag),
        }
    }

    /// A page has passed the pool, which was not to have it.
    pub fn note_passed(&self, page: PageNo) {
        self.admission.note_passed();
        if !self.admission.comes_in_streams(page) {
            self.partition.write_back_rate().note_passed();
        }
    }

    /// Whether pages are packed at all.
    #[must_use]
    pub fn has_codec(&self) -> bool {
        self.codec.get() != Choice::Fixed(None)
    }

    /// What packs instead of `packer` where that finds no room to work in, if anything does.
    #[must_use]
    pub(crate) fn without_room(&self, packer: Packer) -> Option<Packer> {
        (self.codec.get() == Choice::Auto && packer != Packer::Lz4).then_some(Packer::Lz4)
    }

    /// What packs the next page for the pool as it is, if anything does.
    #[must_use]
    pub fn packer(&self, pool: impl FnOnce() -> PoolView) -> Option<Packer> {
        match self.codec.get() {
            Choice::Auto => Some(self.tier.first_try(|| pool().is_filling())),
            Choice::Fixed(packer) => packer,
        }
    }

    /// What is to pack a page that `first` could not, if anything is.
    #[must_use]
    pub fn second_packer(&self, first: Packer) -> Option<Packer> {
        let is_on = first == Packer::Lz4 && self.codec.get() == Choice::Auto;
        if is_on { self.tier.second_try() } else { None }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    const PAGE: PageNo = 3;

    fn policies() -> Policies {
        let budget_bytes = 64 << 20;
        let partition = Partition::new(true, 1 << 20, 48 << 20, budget_bytes, 1);
        let (codec, without) = (Choice::Auto, Without::default());
        Policies::new(1 << 16, budget_bytes, 4, partition, codec, without).unwrap()
    }

    fn pool(used_percent: usize) -> PoolView {
        let limit_bytes = 16 << 20;
        PoolView { limit_bytes, used_bytes: limit_bytes / 100 * used_percent, objects: 4096 }
    }

    /// Of a hundred pages that end their stay in the pool, so many are touched there.
    fn held(policies: &Policies, percent: u64) {
        let rate = policies.partition.write_back_rate();
        (0..100 * percent).for_each(|_| rate.note_held());
        rate.note_gone(100 * (100 - percent));
        (0..1000).for_each(|_| policies.admission.packed(Some(2048), 20_000));
    }

    #[test]
    fn a_full_pool_that_holds_pages_in_vain_takes_nothing_more() {
        let passes = |percent, used_percent, slots_are_plenty| {
            let policies = policies();
            held(&policies, percent);
            policies.bypasses_pool(PAGE, || slots_are_plenty, || pool(used_percent))
        };
        assert!(passes(1, 95, true));
        assert!(!passes(1, 50, true), "there is room");
        assert!(!passes(1, 95, false), "each takes a whole slot");
        assert!(!passes(80, 95, true), "most are touched there");
        let policies = policies();
        assert!(!policies.bypasses_pool(PAGE, || true, || pool(95)), "nothing is known yet");
    }

    #[test]
    fn where_the_disk_takes_nothing_a_full_pool_is_offered_pages_all_the_same() {
        let policies = policies();
        held(&policies, 1);
        policies.note_passed(PAGE);
        assert!(policies.admission.refuse());
        assert!(!policies.bypasses_pool(PAGE, || true, || pool(95)));
    }

    #[test]
    fn what_passed_the_pool_argues_for_a_larger_one_and_what_does_not_pack_does_not() {
        let back = |is_incompressible| {
            let policies = policies();
            policies.clock.note_eviction(PAGE);
            (0..100).for_each(|page| policies.clock.note_eviction(1000 + page));
            policies.partition.write_back_rate().note_left(100);
            (0..100).for_each(|_| policies.note_passed(PAGE));
            let place = Place::Slot { slot: 1, is_incompressible };
            policies.note_return(PAGE, place, || pool(95));
            policies.partition.write_back_rate().share_back()
        };
        assert!(back(false) > back(true));
    }
}
