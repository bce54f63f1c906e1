//! One 64-bit atomic entry per page: where the page is, and who may change that.
//!
//! ```text
//!  bit 0-2  state        Vacant Resident Staged Filled Pool Slot Foreign Packed
//!  bit 3    busy         one thread is changing the page's place
//!  bit 4    waiters      somebody sleeps until busy is cleared
//!  bit 6-63 payload      Resident: heat (4 bits), whether it is protected, then
//!                                  pins (16 bits) or whether a copy is in the
//!                                  pool and, from bit 20 on, where (all ones:
//!                                  nowhere)
//!                        Staged: frame
//!                        Filled: word code
//!                        Pool: handle     Slot: slot number
//!                        Packed: slot number, part
//! ```
//!
//! A resident page whose copy is still stored is write-protected: it can leave
//! without being stored again, unless it is written first. So may be one without a
//! copy: it can leave together with others. A page is pinned for what the kernel may
//! write to it, so a pinned page is not protected, and the two share their place in
//! the entry.
//!
//! A transition is: claim (compare-and-swap that sets busy), act, publish
//! (store the new entry, wake waiters). Only the claimer acts, so a page has
//! one author of its fate at any time. Waiters spin briefly, then sleep.

use crate::base::primitive::{self, AtomicU64, Ordering};

const STATE: u64 = 0b111;
const BUSY: u64 = 1 << 3;
const WAITERS: u64 = 1 << 4;
const PAYLOAD_SHIFT: u32 = 6;
/// Payloads are below this.
pub const PAYLOAD_LIMIT: u64 = 1 << (64 - PAYLOAD_SHIFT);
const HEAT_SHIFT: u32 = PAYLOAD_SHIFT;
/// Heat is at most this.
pub const MAX_HEAT: u8 = 15;
const HEAT: u64 = (MAX_HEAT as u64) << HEAT_SHIFT;
const PROTECTED: u64 = 1 << (HEAT_SHIFT + 4);
const COPY_IN_POOL: u64 = PROTECTED << 1;
const PIN_SHIFT: u32 = HEAT_SHIFT + 5;
const PIN_ONE: u64 = 1 << PIN_SHIFT;
const PINS: u64 = 0xffff << PIN_SHIFT;
const RESIDENT_COPY_SHIFT: u32 = 64 - COPY_BITS;
const COPY_BITS: u32 = SLOT_BITS + 4;
const NO_COPY: u64 = (1 << COPY_BITS) - 1;
/// Looks before sleeping: a transition of a page in DRAM takes a few microseconds.
const SPINS: u32 = if cfg!(loom) { 1 } else { 200 };

/// The upper bits of a handle of the pool's, so many, say which object it is.
pub const OBJECT_BITS: u32 = 34;
const OBJECT_SHIFT: u32 = 64 - PAYLOAD_SHIFT - OBJECT_BITS;
const _: () = assert!(OBJECT_BITS <= COPY_BITS);

/// Slot numbers are below this.
pub const SLOT_LIMIT: u64 = 1 << SLOT_BITS;
const SLOT_BITS: u32 = 40;
/// Parts of packed pages are below this.
pub const PART_LIMIT: u8 = 15;
/// Stands for no part: the slot holds one page.
const WHOLE: u8 = PART_LIMIT;

/// A page's number in the window.
pub type PageNo = u64;

/// Where a page is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Nothing is stored: never touched, discarded, or not mapped at all.
    Vacant,
    /// In the program's memory. Heat is what reclaim still grants it.
    Resident {
        /// 0 to [`MAX_HEAT`] rounds of grace.
        heat: u8,
        /// What is stored of it, if anything, while it is unchanged and write-protected.
        copy: Option<StoredCopy>,
    },
    /// Taken out, waiting in a staging frame.
    Staged {
        /// Number of the frame.
        frame: u32,
    },
    /// All words equal.
    Filled {
        /// The word, as [`crate::codec::same_filled`] encodes it.
        code: u64,
    },
    /// Compressed in DRAM.
    Pool {
        /// The pool's handle, as bits.
        handle: u64,
    },
    /// In the swap area.
    Slot {
        /// Slot number.
        slot: u64,
    },
    /// A mapping that is not managed lies here.
    Foreign,
    /// In the swap area, compressed, in a slot that it shares.
    Packed {
        /// Slot number.
        slot: u64,
        /// Which part of the slot's page, below [`PART_LIMIT`].
        part: u8,
    },
}

/// Where a page is stored that is in DRAM as it is, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoredCopy {
    /// In the swap area.
    Slot(SlotCopy),
    /// Compressed in the pool.
    Pool {
        /// Which object: a handle's upper [`OBJECT_BITS`] bits.
        object: u64,
    },
    /// Nowhere, or not any more; but the page is still unchanged since it came, and
    /// write-protected.
    Nowhere,
}

/// Where in the swap area a copy lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotCopy {
    slot: u64,
    part: u8,
}

impl SlotCopy {
    /// The slot.
    #[must_use]
    pub fn slot(self) -> u64 {
        self.slot
    }

    /// Which part of it, where it is shared.
    #[must_use]
    pub fn part(self) -> Option<u8> {
        (self.part != WHOLE).then_some(self.part)
    }

    /// Where the page is once it has left DRAM.
    #[must_use]
    pub fn place(self) -> Place {
        let SlotCopy { slot, part } = self;
        if part == WHOLE { Place::Slot { slot } } else { Place::Packed { slot, part } }
    }

    fn bits(copy: Option<SlotCopy>) -> u64 {
        copy.map_or(NO_COPY, |SlotCopy { slot, part }| slot | u64::from(part) << SLOT_BITS)
    }

    fn from_bits(bits: u64) -> Option<SlotCopy> {
        let copy = SlotCopy { slot: bits & (SLOT_LIMIT - 1), part: (bits >> SLOT_BITS) as u8 };
        (bits != NO_COPY).then_some(copy)
    }
}

impl StoredCopy {
    /// The copy in the pool that a handle names.
    #[must_use]
    pub fn pooled(handle: u64) -> StoredCopy {
        StoredCopy::Pool { object: handle >> OBJECT_SHIFT }
    }

    /// The copy, if it is in the swap area.
    #[must_use]
    pub fn in_slot(self) -> Option<SlotCopy> {
        match self {
            StoredCopy::Slot(copy) => Some(copy),
            StoredCopy::Pool { .. } | StoredCopy::Nowhere => None,
        }
    }

    fn bits(self) -> u64 {
        let (mark, bits) = match self {
            StoredCopy::Slot(copy) => (PROTECTED, SlotCopy::bits(Some(copy))),
            StoredCopy::Pool { object } => (PROTECTED | COPY_IN_POOL, object),
            StoredCopy::Nowhere => (PROTECTED, SlotCopy::bits(None)),
        };
        mark | bits << RESIDENT_COPY_SHIFT
    }

    fn from_bits(bits: u64) -> Option<StoredCopy> {
        let copy = bits >> RESIDENT_COPY_SHIFT;
        match bits & (PROTECTED | COPY_IN_POOL) {
            PROTECTED => {
                Some(SlotCopy::from_bits(copy).map_or(StoredCopy::Nowhere, StoredCopy::Slot))
            }
            marks if marks & PROTECTED != 0 => Some(StoredCopy::Pool { object: copy }),
            _ => None,
        }
    }
}

impl Place {
    /// A resident page of which nothing is stored.
    #[must_use]
    pub const fn resident(heat: u8) -> Place {
        Place::Resident { heat, copy: None }
    }

    /// What is stored of a resident page.
    #[must_use]
    pub fn copy(self) -> Option<StoredCopy> {
        match self {
            Place::Resident { copy, .. } => copy,
            _ => None,
        }
    }

    /// Where in the swap area it is.
    #[must_use]
    pub fn in_slot(self) -> Option<SlotCopy> {
        match self {
            Place::Slot { slot } => Some(SlotCopy { slot, part: WHOLE }),
            Place::Packed { slot, part } => Some(SlotCopy { slot, part }),
            _ => None,
        }
    }

    /// What a page at this place leaves there when it comes in.
    #[must_use]
    pub fn to_copy(self) -> Option<StoredCopy> {
        match self {
            Place::Pool { handle } => Some(StoredCopy::pooled(handle)),
            _ => self.in_slot().map(StoredCopy::Slot),
        }
    }
}

/// An entry as it was at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry(u64);

impl Entry {
    /// The entry of a page at `place`, not busy.
    #[must_use]
    pub fn new(place: Place) -> Entry {
        let (state, payload) = match place {
            Place::Vacant => (0, 0),
            Place::Resident { heat, copy } => return Entry::resident(heat, copy),
            Place::Staged { frame } => (2, u64::from(frame)),
            Place::Filled { code } => (3, code),
            Place::Pool { handle } => (4, handle),
            Place::Slot { slot } => (5, slot),
            Place::Foreign => (6, 0),
            Place::Packed { slot, part } => {
                debug_assert!(part < PART_LIMIT);
                (7, slot | u64::from(part) << SLOT_BITS)
            }
        };
        debug_assert!(payload < PAYLOAD_LIMIT);
        Entry(state | payload << PAYLOAD_SHIFT)
    }

    fn resident(heat: u8, copy: Option<StoredCopy>) -> Entry {
        debug_assert!(heat <= MAX_HEAT);
        Entry(1 | u64::from(heat) << HEAT_SHIFT | copy.map_or(0, StoredCopy::bits))
    }

    /// Where the page is.
    #[must_use]
    pub fn place(self) -> Place {
        let payload = self.0 >> PAYLOAD_SHIFT;
        match self.0 & STATE {
            0 => Place::Vacant,
            1 => Place::Resident {
                heat: ((self.0 & HEAT) >> HEAT_SHIFT) as u8,
                copy: StoredCopy::from_bits(self.0),
            },
            2 => Place::Staged { frame: payload as u32 },
            3 => Place::Filled { code: payload },
            4 => Place::Pool { handle: payload },
            5 => Place::Slot { slot: payload },
            6 => Place::Foreign,
            _ => Place::Packed {
                slot: payload & (SLOT_LIMIT - 1),
                part: (payload >> SLOT_BITS) as u8,
            },
        }
    }

    /// Whether somebody is changing the page's place.
    #[must_use]
    pub fn is_busy(self) -> bool {
        self.0 & BUSY != 0
    }

    /// Whether the page is in the program's memory.
    #[must_use]
    pub fn is_resident(self) -> bool {
        self.0 & STATE == 1
    }

    /// How many system calls rely on the page staying where it is.
    #[must_use]
    pub fn pins(self) -> u64 {
        let may_be = self.is_resident() && !self.is_protected();
        if may_be { (self.0 & PINS) >> PIN_SHIFT } else { 0 }
    }

    /// Whether the page is resident, unchanged, and protected from writes.
    #[must_use]
    pub fn is_protected(self) -> bool {
        self.is_resident() && self.0 & PROTECTED != 0
    }
}

/// The entries of a run of pages (the whole window, in an engine).
#[derive(Debug, Clone, Copy)]
pub struct PageTable<'t> {
    words: &'t [AtomicU64],
}

/// The right to change one page's place. Dropped without [`Claim::publish`],
/// the page is where it was.
#[derive(Debug)]
#[must_use]
pub struct Claim<'t> {
    word: &'t AtomicU64,
    before: Entry,
}

impl<'t> PageTable<'t> {
    /// A table over `words`; all-zero words mean [`Place::Vacant`].
    #[must_use]
    pub fn new(words: &'t [AtomicU64]) -> PageTable<'t> {
        PageTable { words }
    }

    /// The page's entry now.
    #[must_use]
    pub fn load(&self, page: PageNo) -> Entry {
        Entry(self.words[page as usize].load(Ordering::Acquire))
    }

    /// Claims the page if its entry is exactly `seen`, which must not be busy.
    pub fn try_claim(&self, page: PageNo, seen: Entry) -> Option<Claim<'t>> {
        let word = &self.words[page as usize];
        if seen.is_busy() {
            return None;
        }
        word.compare_exchange(seen.0, seen.0 | BUSY, Ordering::AcqRel, Ordering::Relaxed)
            .ok()
            .map(|_| Claim { word, before: seen })
    }

    /// Claims the page whatever its place, waiting for whoever has it.
    pub fn claim(&self, page: PageNo) -> Claim<'t> {
        loop {
            let seen = self.wait(page);
            if let Some(claim) = self.try_claim(page, seen) {
                return claim;
            }
        }
    }

    /// Waits until the page is not busy and returns its entry.
    pub fn wait(&self, page: PageNo) -> Entry {
        let word = &self.words[page as usize];
        let mut spins = 0;
        loop {
            let seen = word.load(Ordering::Acquire);
            if seen & BUSY == 0 {
                return Entry(seen);
            }
            if spins < SPINS {
                spins += 1;
                primitive::relax();
                continue;
            }
            let marked = seen | WAITERS;
            if seen == marked
                || word.compare_exchange(seen, marked, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            {
                primitive::wait(word, marked);
            }
        }
    }

    /// Keeps a resident page where it is until [`PageTable::unpin`]. False
    /// when the page is not resident, is protected, or is pinned too often.
    pub fn try_pin(&self, page: PageNo) -> bool {
        let word = &self.words[page as usize];
        loop {
            let seen = self.wait(page);
            if !seen.is_resident() || seen.is_protected() || seen.0 & PINS == PINS {
                return false;
            }
            let pinned = seen.0 + PIN_ONE;
            if word.compare_exchange(seen.0, pinned, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return true;
            }
        }
    }

    /// Takes back one pin. Does nothing when there is none: the program may
    /// have unmapped the page under its own system call.
    pub fn unpin(&self, page: PageNo) {
        let word = &self.words[page as usize];
        let mut seen = word.load(Ordering::Relaxed);
        while Entry(seen).pins() > 0 {
            match word.compare_exchange(seen, seen - PIN_ONE, Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }

    /// Takes one round of grace from a resident page that is not busy. True
    /// when it had none left.
    pub fn cool(&self, page: PageNo, seen: Entry) -> bool {
        if seen.0 & HEAT == 0 {
            return true;
        }
        let cooler = seen.0 - (1 << HEAT_SHIFT);
        // Losing the race means that somebody has just used the entry.
        let _ = self.words[page as usize].compare_exchange(
            seen.0,
            cooler,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
        false
    }
}

impl Claim<'_> {
    /// The entry before the claim.
    #[must_use]
    pub fn before(&self) -> Entry {
        self.before
    }

    /// The page is now at `place`; the claim ends.
    pub fn publish(self, place: Place) {
        let old = self.word.swap(Entry::new(place).0, Ordering::AcqRel);
        end(self.word, old);
        std::mem::forget(self);
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        // Only the marks go: a pin may have been taken back meanwhile.
        let old = self.word.fetch_and(!(BUSY | WAITERS), Ordering::AcqRel);
        end(self.word, old);
    }
}

/// Ends a claim: wakes those who wait for it.
fn end(word: &AtomicU64, old: u64) {
    debug_assert!(old & BUSY != 0, "an entry was released that nobody held");
    if old & WAITERS != 0 {
        primitive::wake(word);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The last slot stands for no copy.
    fn slot_copies() -> impl Strategy<Value = SlotCopy> {
        (0..SLOT_LIMIT - 1, 0..=WHOLE).prop_map(|(slot, part)| SlotCopy { slot, part })
    }

    fn copies() -> impl Strategy<Value = Option<StoredCopy>> {
        proptest::option::of(prop_oneof![
            slot_copies().prop_map(StoredCopy::Slot),
            (0..PAYLOAD_LIMIT).prop_map(StoredCopy::pooled),
            Just(StoredCopy::Nowhere),
        ])
    }

    fn places() -> impl Strategy<Value = Place> {
        prop_oneof![
            Just(Place::Vacant),
            (0..=MAX_HEAT, copies()).prop_map(|(heat, copy)| Place::Resident { heat, copy }),
            any::<u32>().prop_map(|frame| Place::Staged { frame }),
            (0..PAYLOAD_LIMIT).prop_map(|code| Place::Filled { code }),
            (0..PAYLOAD_LIMIT).prop_map(|handle| Place::Pool { handle }),
            (0..SLOT_LIMIT).prop_map(|slot| Place::Slot { slot }),
            (0..SLOT_LIMIT, 0..PART_LIMIT).prop_map(|(slot, part)| Place::Packed { slot, part }),
            Just(Place::Foreign),
        ]
    }

    proptest! {
        #[test]
        fn an_entry_says_what_was_published(place in places()) {
            let words = [AtomicU64::new(0)];
            let table = PageTable::new(&words);
            table.claim(0).publish(place);
            prop_assert_eq!(table.load(0).place(), place);
            prop_assert!(!table.load(0).is_busy());
        }

        #[test]
        fn a_copy_is_where_the_page_goes_again_and_such_a_page_is_not_pinned(
            copy in copies(), heat in 0..=MAX_HEAT,
        ) {
            let words = [AtomicU64::new(Entry::new(Place::Resident { heat, copy }).0)];
            let table = PageTable::new(&words);
            prop_assert_eq!(table.load(0).is_protected(), copy.is_some());
            if let Some(slot) = copy.and_then(StoredCopy::in_slot) {
                prop_assert_eq!(slot.place().to_copy(), copy);
            }
            prop_assert_eq!(table.load(0).pins(), 0);
            prop_assert_eq!(table.try_pin(0), copy.is_none());
            table.unpin(0);
            // Nothing but its heat changes.
            while !table.cool(0, table.load(0)) {}
            prop_assert_eq!(table.load(0).place(), Place::Resident { heat: 0, copy });
        }
    }

    #[test]
    fn a_claim_excludes_other_claims_and_pins_until_it_ends() {
        let words = [AtomicU64::new(Entry::new(Place::resident(1)).0)];
        let table = PageTable::new(&words);
        let seen = table.load(0);
        let claim = table.try_claim(0, seen).unwrap();
        assert!(table.try_claim(0, seen).is_none());
        assert!(table.try_claim(0, table.load(0)).is_none());
        drop(claim);
        assert_eq!(table.load(0), seen);
        assert!(table.try_pin(0));
        assert_eq!(table.load(0).pins(), 1);
        // The pinned entry differs from the one seen: reclaim's claim fails.
        assert!(table.try_claim(0, seen).is_none());
        table.unpin(0);
        table.unpin(0);
        assert_eq!(table.load(0), seen);
    }

    #[test]
    fn grace_ends_after_as_many_rounds_as_there_was_heat() {
        let words = [AtomicU64::new(Entry::new(Place::resident(2)).0)];
        let table = PageTable::new(&words);
        assert!(!table.cool(0, table.load(0)));
        assert!(!table.cool(0, table.load(0)));
        assert!(table.cool(0, table.load(0)));
    }
}

/// Every interleaving of claimers, waiters and pins, explored by loom.
#[cfg(all(test, loom))]
mod model {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    fn table(words: &Arc<Vec<AtomicU64>>) -> PageTable<'_> {
        PageTable::new(words)
    }

    fn one(place: Place) -> Arc<Vec<AtomicU64>> {
        Arc::new(vec![AtomicU64::new(Entry::new(place).0)])
    }

    #[test]
    fn a_missing_page_is_brought_in_exactly_once_and_nobody_sleeps_for_ever() {
        loom::model(|| {
            let words = one(Place::Slot { slot: 7 });
            let reads = Arc::new(loom::sync::atomic::AtomicUsize::new(0));
            let fault = |words: Arc<Vec<AtomicU64>>,
                         reads: Arc<loom::sync::atomic::AtomicUsize>| {
                move || loop {
                    let table = table(&words);
                    let seen = table.wait(0);
                    if seen.is_resident() {
                        return;
                    }
                    assert_eq!(seen.place(), Place::Slot { slot: 7 });
                    if let Some(claim) = table.try_claim(0, seen) {
                        reads.fetch_add(1, Ordering::Relaxed);
                        claim.publish(Place::resident(1));
                        return;
                    }
                }
            };
            let other = thread::spawn(fault(words.clone(), reads.clone()));
            fault(words.clone(), reads.clone())();
            other.join().unwrap();
            assert_eq!(reads.load(Ordering::Relaxed), 1);
            assert!(!table(&words).load(0).is_busy());
        });
    }

    #[test]
    fn a_page_is_never_both_pinned_and_taken_out() {
        loom::model(|| {
            let words = one(Place::resident(0));
            let other = {
                let words = words.clone();
                thread::spawn(move || {
                    let table = table(&words);
                    let seen = table.load(0);
                    if !seen.is_busy()
                        && seen.is_resident()
                        && seen.pins() == 0
                        && let Some(claim) = table.try_claim(0, seen)
                    {
                        claim.publish(Place::Staged { frame: 3 });
                    }
                })
            };
            let table = table(&words);
            if table.try_pin(0) {
                assert!(table.load(0).is_resident());
                table.unpin(0);
            } else {
                assert_eq!(table.load(0).place(), Place::Staged { frame: 3 });
            }
            other.join().unwrap();
        });
    }

    #[test]
    fn a_page_rescued_while_its_write_is_under_way_stays_with_the_program() {
        loom::model(|| {
            let words = one(Place::Staged { frame: 3 });
            let writer = {
                let words = words.clone();
                thread::spawn(move || {
                    // The write has completed: publish the slot unless rescued.
                    let table = table(&words);
                    let staged = Entry::new(Place::Staged { frame: 3 });
                    match table.try_claim(0, staged) {
                        Some(claim) => {
                            claim.publish(Place::Slot { slot: 9 });
                            true
                        }
                        None => false,
                    }
                })
            };
            let table = table(&words);
            let claim = table.claim(0);
            let rescued = claim.before().place() == Place::Staged { frame: 3 };
            claim.publish(Place::resident(2));
            let written = writer.join().unwrap();
            // Exactly one of them decided first, and the page is resident once.
            assert!(!(rescued && written));
            assert!(table.load(0).is_resident());
        });
    }

    #[test]
    fn a_page_that_is_written_never_leaves_as_its_copy() {
        loom::model(|| {
            let copy = Place::Slot { slot: 7 }.to_copy();
            let words = one(Place::Resident { heat: 0, copy });
            let evictor = {
                let words = words.clone();
                thread::spawn(move || {
                    let table = table(&words);
                    let seen = table.load(0);
                    if seen.is_protected()
                        && let Some(claim) = table.try_claim(0, seen)
                    {
                        claim.publish(Place::Slot { slot: 7 });
                    }
                })
            };
            let table = table(&words);
            let claim = table.claim(0);
            let was = claim.before().place();
            assert!(was.copy() == copy || was == Place::Slot { slot: 7 });
            // Unprotected, or read for a write: from now on only this is the page.
            claim.publish(Place::resident(1));
            assert!(table.try_pin(0));
            evictor.join().unwrap();
            assert_eq!(table.load(0).place(), Place::resident(1));
            assert_eq!(table.load(0).pins(), 1);
        });
    }
}
