//! Refault distances, and the age that pages earn by them.
//!
//! Time is counted in evicted pages (the refault distance of Linux's working-set detection). A
//! refault is early if its distance is below a multiple of the resident pages that are not active.
//! The more pages are active, the lower this limit, so the most used pages stay resident. Of a loop
//! over more pages than fit, which all have the same distance, some pages stay resident, instead of
//! all being evicted just before their use.

use crate::base::page::{MAX_AGE, PageNo};
use softswap_sys::PAGE_SIZE;
use softswap_sys::memory::{reserve_u16, reserve_u64};
use std::io;
use std::sync::atomic::{AtomicU16, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Age of a page at its first touch.
pub const FRESH: u8 = 1;
/// Ages by the page's level. An early refault raises the level by one, a late one lowers it.
const GRANTS: [u8; 4] = [0, 3, 7, MAX_AGE];
/// Multiple of the resident pages that are not active; refaults below this distance are early.
const REACH: usize = 4;

/// Low bits of a mark: the time of eviction, in units, modulo 2^14. The other bits hold the level.
const TIME_BITS: u32 = 14;
const TIMES: u64 = 1 << TIME_BITS;
/// One page of marks per this many resident pages bounds the memory for sparse mappings. For dense
/// mappings it suffices for 64 times the resident pages.
const MARKS_SHARE: usize = 32;
const MARKS: usize = PAGE_SIZE / size_of::<AtomicU16>();
const _: () = assert!(GRANTS.len() <= 1 << (u16::BITS - TIME_BITS));

#[derive(Debug, Default)]
pub struct Refaults {
    /// Only the page's claimer writes its mark.
    marks: &'static [AtomicU16],
    touched: &'static [AtomicU64],
    touched_pages: AtomicUsize,
    max_touched: AtomicUsize,
    /// In units of evicted pages, with a fraction, so that it continues when the unit changes.
    time: AtomicU64,
    unit_pages: AtomicU64,
}

const FRACTION_BITS: u32 = 32;

impl Refaults {
    pub(crate) fn new(pages: usize, max_resident: usize) -> io::Result<Refaults> {
        let refaults = Refaults {
            marks: reserve_u16(pages)?,
            touched: reserve_u64(pages.div_ceil(MARKS).div_ceil(64))?,
            ..Refaults::default()
        };
        refaults.resize(max_resident);
        Ok(refaults)
    }

    /// Scales the distances of earlier evictions.
    pub(crate) fn resize(&self, max_resident: usize) {
        self.max_touched.store((max_resident / MARKS_SHARE).max(16), Relaxed);
        // The eviction clock wraps around after 64 * `max_resident` evictions.
        self.unit_pages.store((max_resident / 256).max(1) as u64, Relaxed);
    }

    fn unit_pages(&self) -> u64 {
        self.unit_pages.load(Relaxed)
    }

    pub fn note_eviction(&self, page: PageNo) {
        let step = (1_u64 << FRACTION_BITS).div_ceil(self.unit_pages());
        let now = (self.time.fetch_add(step, Relaxed) >> FRACTION_BITS) % TIMES;
        if !self.touch(page) {
            return;
        }
        let mark = &self.marks[page as usize];
        mark.store(mark.load(Relaxed) & !(TIMES as u16 - 1) | now as u16, Relaxed);
    }

    /// Returns the approximate number of pages evicted since this page was; `None` if unknown.
    pub fn distance(&self, page: PageNo) -> Option<u64> {
        self.has_mark(page).then(|| {
            let seen = u64::from(self.marks[page as usize].load(Relaxed));
            let now = self.time.load(Relaxed) >> FRACTION_BITS;
            now.wrapping_sub(seen) % TIMES * self.unit_pages()
        })
    }

    /// Updates a page's level and returns its age; [`FRESH`] without a mark.
    #[must_use]
    pub(crate) fn grant(&self, page: PageNo, resident: usize, active: usize) -> u8 {
        let Some(distance) = self.distance(page) else { return FRESH };
        let mark = &self.marks[page as usize];
        let seen = u64::from(mark.load(Relaxed));
        let is_soon = distance < (REACH * resident.saturating_sub(active)) as u64;
        let had = (seen >> TIME_BITS) as usize;
        let most = GRANTS.len() - 1;
        let has = if is_soon { (had + 1).min(most) } else { had.saturating_sub(1) };
        if has != had {
            mark.store((seen % TIMES) as u16 | (has as u16) << TIME_BITS, Relaxed);
        }
        GRANTS[has]
    }

    /// Returns true if early refaults have raised the page's level above 0.
    pub fn refaults_early(&self, page: PageNo) -> bool {
        self.has_mark(page) && self.marks[page as usize].load(Relaxed) >> TIME_BITS != 0
    }

    pub(crate) fn forget(&self, page: PageNo) {
        let mark = &self.marks[page as usize];
        // Writing would allocate memory for pages that were never evicted.
        if self.has_mark(page) && mark.load(Relaxed) != 0 {
            mark.store(0, Relaxed);
        }
    }

    pub(crate) fn metadata_bytes(&self) -> usize {
        self.touched_pages.load(Relaxed) * PAGE_SIZE
    }

    fn has_mark(&self, page: PageNo) -> bool {
        let number = page as usize / MARKS;
        self.touched[number / 64].load(Relaxed) & 1 << (number % 64) != 0
    }

    /// Returns false if the limit of marks is reached.
    fn touch(&self, page: PageNo) -> bool {
        if self.has_mark(page) {
            return true;
        }
        if self.touched_pages.load(Relaxed) >= self.max_touched.load(Relaxed) {
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

    /// 2560 pages are resident, so a unit is ten pages.
    const RESIDENT: usize = 2560;

    fn refaults() -> Refaults {
        Refaults::new(100_000, RESIDENT).unwrap()
    }

    fn evict(refaults: &Refaults, count: u64) {
        (0..count).for_each(|at| refaults.note_eviction(50_000 + at % 40_000));
    }

    #[test]
    fn early_refaults_raise_age_and_late_ones_lower_it() {
        let refaults = refaults();
        for (left, expected) in [
            (1000, 3),
            (1000, 7),
            (5000, MAX_AGE),
            (0, MAX_AGE),
            (11_000, 7),
            (11_000, 3),
            (11_000, 0),
        ] {
            refaults.note_eviction(7);
            evict(&refaults, left);
            assert_eq!(refaults.grant(7, RESIDENT, 0), expected);
        }
    }

    #[test]
    fn active_pages_shorten_refault_threshold() {
        let refaults = refaults();
        let back_after = |left: u64, active: usize| {
            refaults.forget(7);
            refaults.note_eviction(7);
            evict(&refaults, left);
            refaults.grant(7, RESIDENT, active)
        };
        assert_eq!((back_after(5000, 1280), back_after(5200, 1280)), (3, 0));
        assert_eq!((back_after(1000, 2304), back_after(1100, 2304)), (3, 0));
        assert_eq!((back_after(0, RESIDENT), back_after(0, 2 * RESIDENT)), (0, 0));
    }

    #[test]
    fn forgotten_page_starts_fresh() {
        let refaults = refaults();
        refaults.note_eviction(7);
        assert_eq!(refaults.grant(7, RESIDENT, 0), 3);
        refaults.forget(7);
        refaults.note_eviction(7);
        assert_eq!(refaults.grant(7, RESIDENT, 0), 3);
    }

    #[test]
    fn marks_use_memory_only_for_evicted_pages() {
        let refaults = refaults();
        refaults.forget(9000);
        assert_eq!(refaults.metadata_bytes(), 0);
        (0..MARKS as u64).for_each(|page| refaults.note_eviction(page));
        assert_eq!(refaults.metadata_bytes(), PAGE_SIZE);
        (0..=MARKS as u64).for_each(|page| refaults.note_eviction(page));
        assert_eq!(refaults.metadata_bytes(), 2 * PAGE_SIZE);
    }

    #[test]
    fn sparse_marks_are_bounded() {
        let refaults = Refaults::new(1 << 20, RESIDENT).unwrap();
        let far = |at: u64| at * MARKS as u64;
        (0..500).for_each(|at| refaults.note_eviction(far(at)));
        assert_eq!(refaults.metadata_bytes(), RESIDENT / MARKS_SHARE * PAGE_SIZE);
        assert_eq!(refaults.grant(far(10), RESIDENT, 0), 3);
        assert_eq!(refaults.grant(far(400), RESIDENT, 0), FRESH);
        refaults.forget(far(400));
    }

    #[derive(Default)]
    struct Model {
        left: u64,
        pages: std::collections::BTreeMap<PageNo, (u64, usize)>,
    }

    impl Model {
        fn grant(&mut self, page: PageNo, resident: usize, active: usize) -> u8 {
            let (when, soon) = self.pages.entry(page).or_default();
            let is_soon = self.left - *when < (REACH * resident.saturating_sub(active)) as u64;
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
        fn marks_match_model(steps in prop::collection::vec(steps(), 0..400)) {
            let (refaults, mut model) = (Refaults::new(64, 60).unwrap(), Model::default());
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
    fn resize_keeps_time() {
        let refaults = refaults();
        evict(&refaults, 1000);
        refaults.note_eviction(7);
        for most in [16 * RESIDENT, RESIDENT / 16, RESIDENT] {
            refaults.resize(most);
            assert_eq!(refaults.distance(7), Some(0));
        }
        evict(&refaults, 1000);
        assert_eq!(refaults.distance(7), Some(1000));
        refaults.resize(16 * RESIDENT);
        refaults.note_eviction(7);
        evict(&refaults, 32_000);
        assert_eq!(refaults.distance(7), Some(32_000));
    }

    #[test]
    fn time_wraps_around() {
        let refaults = refaults();
        evict(&refaults, TIMES * 10 - 50);
        refaults.note_eviction(7);
        evict(&refaults, 150);
        assert_eq!(refaults.grant(7, 100, 0), 3);
        refaults.note_eviction(7);
        evict(&refaults, 600);
        assert_eq!(refaults.grant(7, 100, 0), 0, "the time wraps around");
    }
}
