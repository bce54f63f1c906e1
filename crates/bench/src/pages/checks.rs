//! Same-filled checks: forward, backward, last word first as in zswap, and softswap's.

use super::Page;
use crate::measure::options::Named;
use crate::measure::region::WORDS;
use crate::measure::sample::{Object, median, object, variation};
use clap::ValueEnum;
use softswap_cli::refusal::Refusal;
use softswap_engine::codec::same_filled::same_filled_word;
use softswap_sys::PAGE_SIZE;
use softswap_sys::raw::now_ns;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Check {
    Forward,
    Backward,
    LastFirst,
    /// Compares several words at a time, so it counts no iterations.
    Softswap,
}

fn word(page: &[u8; PAGE_SIZE], at: usize) -> u64 {
    u64::from_ne_bytes(page.as_chunks().0[at])
}

/// Compares words with the one at `first`. Timing and counting use the same code.
#[inline(always)]
fn repeated(
    page: &[u8; PAGE_SIZE],
    first: usize,
    order: impl Iterator<Item = usize>,
    mut each: impl FnMut(),
) -> Option<u64> {
    let first = word(page, first);
    for at in order {
        each();
        if word(page, at) != first {
            return None;
        }
    }
    Some(first)
}

#[inline(always)]
fn forward(page: &[u8; PAGE_SIZE], each: impl FnMut()) -> Option<u64> {
    repeated(page, 0, 1..WORDS, each)
}

#[inline(always)]
fn backward(page: &[u8; PAGE_SIZE], each: impl FnMut()) -> Option<u64> {
    repeated(page, WORDS - 1, (0..WORDS - 1).rev(), each)
}

#[inline(always)]
fn last_first(page: &[u8; PAGE_SIZE], mut each: impl FnMut()) -> Option<u64> {
    each();
    if word(page, WORDS - 1) != word(page, 0) {
        return None;
    }
    repeated(page, 0, 1..WORDS - 1, each)
}

/// Not inlined, so that each check costs one call per page.
#[inline(never)]
fn called<T>(check: impl FnOnce() -> T) -> T {
    check()
}

impl Check {
    pub(crate) const ALL: [Check; 4] =
        [Check::Forward, Check::Backward, Check::LastFirst, Check::Softswap];

    /// Also returns the number of words compared.
    fn verdict(self, page: &Page) -> (Option<u64>, u64) {
        let mut count = 0;
        let each = || count += 1;
        let verdict = match self {
            Check::Forward => forward(&page.0, each),
            Check::Backward => backward(&page.0, each),
            Check::LastFirst => last_first(&page.0, each),
            Check::Softswap => same_filled_word(&page.0),
        };
        (verdict, count)
    }

    pub(crate) fn time_ns(self, pages: &[Page]) -> u64 {
        match self {
            Check::Forward => timed(pages, |page| called(|| forward(page, || ()))),
            Check::Backward => timed(pages, |page| called(|| backward(page, || ()))),
            Check::LastFirst => timed(pages, |page| called(|| last_first(page, || ()))),
            Check::Softswap => timed(pages, same_filled_word),
        }
    }
}

/// Generic, so that the check is called directly.
fn timed(pages: &[Page], check: impl Fn(&[u8; PAGE_SIZE]) -> Option<u64>) -> u64 {
    let start = now_ns();
    let same_filled = pages.iter().filter(|page| check(&page.0).is_some()).count();
    std::hint::black_box(same_filled);
    now_ns() - start
}

/// MB of a million bytes.
pub(crate) fn mbps(pages: u64, ns: u64) -> f64 {
    (pages * PAGE_SIZE as u64) as f64 * 1e3 / ns.max(1) as f64
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Verdicts {
    pub(crate) pages: u64,
    pub(crate) zero: u64,
    pub(crate) other: u64,
    words: [u64; Check::ALL.len()],
}

impl Verdicts {
    /// Fails if two checks disagree.
    pub(crate) fn of(pages: &[Page]) -> Result<Verdicts, Refusal> {
        let mut found = Verdicts { pages: pages.len() as u64, ..Verdicts::default() };
        for page in pages {
            let verdicts = Check::ALL.map(|check| check.verdict(page));
            if verdicts.iter().any(|(word, _)| *word != verdicts[0].0) {
                let what = "the checks disagree about a page";
                return Err(Refusal::own(format!("{what}: {verdicts:x?}; please report this")));
            }
            match verdicts[0].0 {
                Some(0) => found.zero += 1,
                Some(_) => found.other += 1,
                None => {}
            }
            found.words.iter_mut().zip(verdicts).for_each(|(sum, (_, count))| *sum += count);
        }
        Ok(found)
    }

    pub(crate) fn add(&mut self, more: &Verdicts) {
        self.pages += more.pages;
        self.zero += more.zero;
        self.other += more.other;
        self.words.iter_mut().zip(more.words).for_each(|(sum, words)| *sum += words);
    }

    pub(crate) fn shares(&self) -> Object {
        let share = |pages: u64| pages as f64 / self.pages.max(1) as f64;
        let (zero, other) = (self.zero, self.other);
        object! {
            same_filled_share: share(zero + other),
            zero_share: share(zero),
            other_share: share(other),
        }
    }

    pub(crate) fn iterations(&self, check: Check) -> Option<f64> {
        let mean = self.words[check as usize] as f64 / self.pages.max(1) as f64;
        (check != Check::Softswap).then_some(mean)
    }

    pub(crate) fn row(&self, check: Check, mbps: &[f64]) -> Object {
        object! {
            variant: check.name(),
            iterations: self.iterations(check),
            mbps: median(mbps.to_vec()),
            cov: variation(mbps),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Equal words, with or without one changed bit.
        #[test]
        fn all_checks_agree(word: u64, changed in 0..2 * PAGE_SIZE, bit in 0..8) {
            let mut page = Page::ZERO;
            page.0.as_chunks_mut().0.fill(word.to_ne_bytes());
            if let Some(byte) = page.0.get_mut(changed) {
                *byte ^= 1_u8 << bit;
            }
            let expected = (changed >= PAGE_SIZE).then_some(word);
            for check in Check::ALL {
                prop_assert_eq!(check.verdict(&page).0, expected, "{:?}", check);
            }
            prop_assert!(Verdicts::of(&[page]).is_ok());
        }
    }

    #[test]
    fn page_differing_at_end_is_detected_by_last_word() {
        let mut page = Page::ZERO;
        page.0[PAGE_SIZE - 1] = 1;
        let words = Check::ALL.map(|check| check.verdict(&page).1);
        assert_eq!(words, [511, 1, 1, 0]);
    }
}
