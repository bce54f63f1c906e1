//! How soon pages come back after they left, and how much grace that earns.
//!
//! Nobody tells which resident pages are used, but a page that comes back tells
//! that it was: the sooner after it left, the better it had stayed. Time is
//! counted in pages that left meanwhile (the refault distance of Linux's
//! working-set detection), and what is soon depends on the balance: as long as
//! most resident pages are cold, coming back within a few times as many will do;
//! the more of them are warm, the sooner a page must be back to become one, and
//! when all are, none does. So the pages that are used most come to stay; and of
//! a loop over more than there is room for, of which each page is back after the
//! same time, some stay and the others pass by, instead of all of them leaving
//! just before they are needed.

use crate::base::page::{MAX_HEAT, PageNo};
use softswap_sys::PAGE_SIZE;
use softswap_sys::memory::{reserve_u16, reserve_u64};
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU16, AtomicU64, AtomicUsize};

/// Grace of a page that comes in for the first time.
pub const FRESH: u8 = 1;
/// Grace by a page's standing, which rises by one when it is back soon and falls
/// by one when it is not.
const GRANTS: [u8; 4] = [0, 3, 7, MAX_HEAT];
/// Soon is before so many times the resident pages that are not warm have left.
const REACH: usize = 4;

/// Bits of a mark that say when a page left: units, modulo their number. The
/// others say what standing it has.
const TIME_BITS: u32 = 14;
const TIMES: u64 = 1 << TIME_BITS;
/// Units in what can be resident at most. Time goes round after 64 times as much.
const UNITS: usize = 256;
/// Marks take one page of memory for so many that can be resident, at most, so
/// that a page in each corner of a sparse mapping costs no more than its table.
/// Where pages lie side by side that is enough for 64 times as many.
const MARKS_SHARE: usize = 32;
/// Marks in a page of memory.
const MARKS: usize = PAGE_SIZE / size_of::<AtomicU16>();
const _: () = assert!(GRANTS.len() <= 1 << (u16::BITS - TIME_BITS));

/// When pages left, and their standing.
#[derive(Debug)]
pub(crate) struct Refaults {
    /// Time in the lower bits, standing above. Only who has claimed the
    /// page writes its mark.
    marks: &'static [AtomicU16],
    /// A bit for each page of marks that has been written to, and how many have.
    touched: &'static [AtomicU64],
    touched_pages: AtomicUsize,
    most_touched: AtomicUsize,
    /// Time: units of pages that have left, and fractions of one in the lower bits. So it
    /// goes on from where it is when units become larger or smaller.
    time: AtomicU64,
    unit_pages: AtomicU64,
}

/// Bits of the time that are fractions of a unit.
const FRACTION_BITS: u32 = 32;

impl Refaults {
    /// For a window of `pages` pages, of which at most `most_resident` are
    /// resident.
    ///
    /// # Errors
    /// When there is no address space for the marks.
    pub(crate) fn new(pages: usize, most_resident: usize) -> io::Result<Refaults> {
        let refaults = Refaults {
            marks: reserve_u16(pages)?,
            touched: reserve_u64(pages.div_ceil(MARKS).div_ceil(64))?,
            touched_pages: AtomicUsize::new(0),
            most_touched: AtomicUsize::new(0),
            time: AtomicU64::new(0),
            unit_pages: AtomicU64::new(1),
        };
        refaults.resize(most_resident);
        Ok(refaults)
    }

    /// So many pages are resident at most from now on. What left before seems to have left
    /// earlier, or later, by as much.
    pub(crate) fn resize(&self, most_resident: usize) {
        self.most_touched.store((most_resident / MARKS_SHARE).max(16), Relaxed);
        self.unit_pages.store((most_resident / UNITS).max(1) as u64, Relaxed);
    }

    fn unit_pages(&self) -> u64 {
        self.unit_pages.load(Relaxed)
    }

    /// Notes that a page leaves.
    pub(crate) fn note_eviction(&self, page: PageNo) {
        let step = (1_u64 << FRACTION_BITS).div_ceil(self.unit_pages());
        let now = (self.time.fetch_add(step, Relaxed) >> FRACTION_BITS) % TIMES;
        if !self.touch(page) {
            return;
        }
        let mark = &self.marks[page as usize];
        mark.store(mark.load(Relaxed) & !(TIMES as u16 - 1) | now as u16, Relaxed);
    }

    /// How many pages have left, about, since this one did; `None` where that is
    /// not known.
    #[must_use]
    pub(crate) fn distance(&self, page: PageNo) -> Option<u64> {
        self.has_mark(page).then(|| {
            let seen = u64::from(self.marks[page as usize].load(Relaxed));
            let now = self.time.load(Relaxed) >> FRACTION_BITS;
            now.wrapping_sub(seen) % TIMES * self.unit_pages()
        })
    }

    /// The grace of a page that comes back while so many pages are resident, and
    /// so many of them warm. A page without a mark is like a fresh one.
    #[must_use]
    pub(crate) fn grant(&self, page: PageNo, resident: usize, warm: usize) -> u8 {
        let Some(distance) = self.distance(page) else { return FRESH };
        let mark = &self.marks[page as usize];
        let seen = u64::from(mark.load(Relaxed));
        let is_soon = distance < (REACH * resident.saturating_sub(warm)) as u64;
        let had = (seen >> TIME_BITS) as usize;
        let most = GRANTS.len() - 1;
        let has = if is_soon { (had + 1).min(most) } else { had.saturating_sub(1) };
        if has != had {
            mark.store((seen % TIMES) as u16 | (has as u16) << TIME_BITS, Relaxed);
        }
        GRANTS[has]
    }

    /// Whether a page has standing: it came back soon the last time, or the more
    /// often before.
    #[must_use]
    pub(crate) fn comes_soon(&self, page: PageNo) -> bool {
        self.has_mark(page) && self.marks[page as usize].load(Relaxed) >> TIME_BITS != 0
    }

    /// Forgets a page: another one has its number now.
    pub(crate) fn forget(&self, page: PageNo) {
        let mark = &self.marks[page as usize];
        // Writing would take memory for a page that never left.
        if self.has_mark(page) && mark.load(Relaxed) != 0 {
            mark.store(0, Relaxed);
        }
    }

    /// DRAM that the marks have taken so far, in bytes.
    #[must_use]
    pub(crate) fn metadata_bytes(&self) -> usize {
        self.touched_pages.load(Relaxed) * PAGE_SIZE
    }

    fn has_mark(&self, page: PageNo) -> bool {
        let number = page as usize / MARKS;
        self.touched[number / 64].load(Relaxed) & 1 << (number % 64) != 0
    }

    /// Makes sure that the page has a mark; false where there is no room for it.
    fn touch(&self, page: PageNo) -> bool {
        if self.has_mark(page) {
            return true;
        }
        if self.touched_pages.load(Relaxed) >= self.most_touched.load(Relaxed) {
            return false;
        }
        let number = page as usize / MARKS;
        if self.touched[number / 64].fetch_or(1 << (number % 64), Relaxed) & 1 << (number % 64) == 0
        {
            self.touched_pages.fetch_add(1, Relaxed);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// 2560 pages fit: a unit is ten.
    const RESIDENT: usize = 2560;

    fn refaults() -> Refaults {
        Refaults::new(100_000, RESIDENT).unwrap()
    }

    fn leave(refaults: &Refaults, count: u64) {
        (0..count).for_each(|at| refaults.note_eviction(50_000 + at % 40_000));
    }

    #[test]
    fn a_page_that_is_back_soon_is_granted_more_each_time_and_after_long_less() {
        let refaults = refaults();
        for (left, expected) in [
            (1000, 3),
            (1000, 7),
            (5000, MAX_HEAT),
            (0, MAX_HEAT),
            (11_000, 7),
            (11_000, 3),
            (11_000, 0),
        ] {
            refaults.note_eviction(7);
            leave(&refaults, left);
            assert_eq!(refaults.grant(7, RESIDENT, 0), expected);
        }
    }

    #[test]
    fn the_more_pages_are_warm_the_sooner_another_must_be_back() {
        let refaults = refaults();
        let back_after = |left: u64, warm: usize| {
            refaults.forget(7);
            refaults.note_eviction(7);
            leave(&refaults, left);
            refaults.grant(7, RESIDENT, warm)
        };
        assert_eq!((back_after(5000, 1280), back_after(5200, 1280)), (3, 0));
        assert_eq!((back_after(1000, 2304), back_after(1100, 2304)), (3, 0));
        assert_eq!((back_after(0, RESIDENT), back_after(0, 2 * RESIDENT)), (0, 0));
    }

    #[test]
    fn a_page_that_was_forgotten_begins_anew() {
        let refaults = refaults();
        refaults.note_eviction(7);
        assert_eq!(refaults.grant(7, RESIDENT, 0), 3);
        refaults.forget(7);
        refaults.note_eviction(7);
        assert_eq!(refaults.grant(7, RESIDENT, 0), 3);
    }

    #[test]
    fn marks_take_memory_only_where_pages_left() {
        let refaults = refaults();
        refaults.forget(9000);
        assert_eq!(refaults.metadata_bytes(), 0);
        (0..MARKS as u64).for_each(|page| refaults.note_eviction(page));
        assert_eq!(refaults.metadata_bytes(), PAGE_SIZE);
        (0..=MARKS as u64).for_each(|page| refaults.note_eviction(page));
        assert_eq!(refaults.metadata_bytes(), 2 * PAGE_SIZE);
    }

    #[test]
    fn marks_of_a_sparse_mapping_take_no_more_than_their_share() {
        let refaults = Refaults::new(1 << 20, RESIDENT).unwrap();
        let far = |at: u64| at * MARKS as u64;
        (0..500).for_each(|at| refaults.note_eviction(far(at)));
        assert_eq!(refaults.metadata_bytes(), RESIDENT / MARKS_SHARE * PAGE_SIZE);
        assert_eq!(refaults.grant(far(10), RESIDENT, 0), 3);
        assert_eq!(refaults.grant(far(400), RESIDENT, 0), FRESH);
        refaults.forget(far(400));
    }

    /// What is noted, without units and without going round.
    #[derive(Default)]
    struct Model {
        left: u64,
        pages: std::collections::BTreeMap<PageNo, (u64, usize)>,
    }

    impl Model {
        fn grant(&mut self, page: PageNo, resident: usize, warm: usize) -> u8 {
            let (when, soon) = self.pages.entry(page).or_default();
            let is_soon = self.left - *when < (REACH * resident.saturating_sub(warm)) as u64;
            *soon = if is_soon { (*soon + 1).min(3) } else { soon.saturating_sub(1) };
            GRANTS[*soon]
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Leave(PageNo),
        Grant(PageNo, (usize, usize)),
        Forget(PageNo),
    }

    fn steps() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (0..40u64).prop_map(Step::Leave),
            3 => (0..40u64, (0..60usize, 0..60usize))
                .prop_map(|(page, memory)| Step::Grant(page, memory)),
            1 => (0..40u64).prop_map(Step::Forget),
        ]
    }

    proptest! {
        #[test]
        fn marks_agree_with_a_table_of_times(steps in prop::collection::vec(steps(), 0..400)) {
            // Units of one page, and fewer steps than there are times.
            let (refaults, mut model) = (Refaults::new(64, 60).unwrap(), Model::default());
            // From here on all have marks.
            refaults.note_eviction(63);
            model.left += 1;
            for step in steps {
                match step {
                    Step::Leave(page) => {
                        refaults.note_eviction(page);
                        model.pages.entry(page).or_default().0 = model.left;
                        model.left += 1;
                    }
                    Step::Grant(page, memory) => {
                        prop_assert_eq!(
                            refaults.grant(page, memory.0, memory.1),
                            model.grant(page, memory.0, memory.1)
                        );
                    }
                    Step::Forget(page) => {
                        refaults.forget(page);
                        model.pages.remove(&page);
                    }
                }
            }
        }
    }

    #[test]
    fn time_goes_on_when_more_or_fewer_pages_may_be_resident() {
        let refaults = refaults();
        leave(&refaults, 1000);
        refaults.note_eviction(7);
        for most in [16 * RESIDENT, RESIDENT / 16, RESIDENT] {
            refaults.resize(most);
            assert_eq!(refaults.distance(7), Some(0));
        }
        leave(&refaults, 1000);
        assert_eq!(refaults.distance(7), Some(1000));
        refaults.resize(16 * RESIDENT);
        refaults.note_eviction(7);
        leave(&refaults, 32_000);
        assert_eq!(refaults.distance(7), Some(32_000));
    }

    #[test]
    fn time_goes_round() {
        let refaults = refaults();
        leave(&refaults, TIMES * 10 - 50);
        refaults.note_eviction(7);
        leave(&refaults, 150);
        assert_eq!(refaults.grant(7, 100, 0), 3);
        refaults.note_eviction(7);
        leave(&refaults, 600);
        assert_eq!(refaults.grant(7, 100, 0), 0, "not before it went round");
    }
}
