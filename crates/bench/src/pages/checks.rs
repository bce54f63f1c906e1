//! The same-filled checks side by side: what each compares, and how fast it
//! goes over the same pages.

use super::Page;
use crate::rivals::samefill::{self, WordOrder};
use serde::Serialize;
use softswap_cli::refusal::Refusal;
use softswap_engine::codec::same_filled::same_filled_word;
use softswap_sys::PAGE_SIZE;
use softswap_sys::raw::now_ns;

/// A way to tell same-filled pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Check {
    Forward,
    Backward,
    LastFirst,
    Softswap,
}

impl Check {
    pub(crate) const ALL: [Check; 4] =
        [Check::Forward, Check::Backward, Check::LastFirst, Check::Softswap];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Check::Forward => "forward",
            Check::Backward => "backward",
            Check::LastFirst => "last_first",
            Check::Softswap => "softswap",
        }
    }

    /// softswap's own compares many words at a time, so it has no such order.
    fn order(self) -> Option<WordOrder> {
        match self {
            Check::Forward => Some(WordOrder::Forward),
            Check::Backward => Some(WordOrder::Backward),
            Check::LastFirst => Some(WordOrder::LastFirst),
            Check::Softswap => None,
        }
    }

    fn word_of(self, page: &Page) -> Option<u64> {
        match self {
            Check::Forward => samefill::forward(&page.0),
            Check::Backward => samefill::backward(&page.0),
            Check::LastFirst => samefill::last_first(&page.0),
            Check::Softswap => same_filled_word(&page.0),
        }
    }

    /// Time that the check takes for all of `pages`, in ns.
    pub(crate) fn time_ns(self, pages: &[Page]) -> u64 {
        match self {
            Check::Forward => timed(pages, samefill::forward),
            Check::Backward => timed(pages, samefill::backward),
            Check::LastFirst => timed(pages, samefill::last_first),
            Check::Softswap => timed(pages, same_filled_word),
        }
    }
}

/// One loop for each check, so that none is called through a pointer.
fn timed(pages: &[Page], check: impl Fn(&[u8; PAGE_SIZE]) -> Option<u64>) -> u64 {
    let start = now_ns();
    let same_filled = pages.iter().filter(|page| check(&page.0).is_some()).count();
    std::hint::black_box(same_filled);
    now_ns() - start
}

/// Throughput over `pages` pages, in MB (a million bytes) a second.
pub(crate) fn mbps(pages: u64, ns: u64) -> f64 {
    (pages * PAGE_SIZE as u64) as f64 * 1e3 / ns.max(1) as f64
}

/// What the checks say of pages, and what it takes them to say so.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Verdicts {
    pub(crate) pages: u64,
    pub(crate) zero: u64,
    /// Same-filled with another word.
    pub(crate) other: u64,
    /// Words compared by each check that counts them.
    words: [u64; Check::ALL.len()],
}

impl Verdicts {
    /// Asks every check about every page. A figure for wrong answers would be
    /// worse than none.
    pub(crate) fn of(pages: &[Page]) -> Result<Verdicts, Refusal> {
        let mut found = Verdicts { pages: pages.len() as u64, ..Verdicts::default() };
        for page in pages {
            let words = Check::ALL.map(|check| check.word_of(page));
            if words.iter().any(|word| *word != words[0]) {
                return Err(Refusal::own(format!(
                    "the checks disagree about a page: {words:x?}; please report this"
                )));
            }
            match words[0] {
                Some(0) => found.zero += 1,
                Some(_) => found.other += 1,
                None => {}
            }
            for (sum, check) in found.words.iter_mut().zip(Check::ALL) {
                let order = check.order();
                *sum += order.map_or(0, |order| samefill::words_compared(&page.0, order).into());
            }
        }
        Ok(found)
    }

    pub(crate) fn add(&mut self, more: &Verdicts) {
        self.pages += more.pages;
        self.zero += more.zero;
        self.other += more.other;
        for (sum, words) in self.words.iter_mut().zip(more.words) {
            *sum += words;
        }
    }

    pub(crate) fn same_filled(&self) -> u64 {
        self.zero + self.other
    }

    pub(crate) fn share(&self, pages: u64) -> f64 {
        pages as f64 / self.pages.max(1) as f64
    }

    /// Words that `check` compares of a page on average.
    pub(crate) fn iterations(&self, check: Check) -> Option<f64> {
        check.order().map(|_| self.share(self.words[check as usize]))
    }
}

/// One line of a table of checks.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct CheckRow {
    pub(crate) variant: &'static str,
    pub(crate) iterations: Option<f64>,
    pub(crate) mbps: f64,
    pub(crate) cov: f64,
}

pub(crate) fn check_head() -> String {
    format!("{:<12}{:>11}{:>10}{:>8}\n", "check", "iterations", "MB/s", "CoV")
}

/// Without the end of the line: there may be more to say.
pub(crate) fn check_line(row: &CheckRow) -> String {
    let iterations = row.iterations.map_or("-".to_string(), |mean| format!("{mean:.1}"));
    let CheckRow { variant, mbps, cov, .. } = row;
    format!("{variant:<12}{iterations:>11}{mbps:>10.0}{:>6.1} %", cov * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::noise::fill_with_noise;
    use proptest::prelude::*;

    fn page_of(word: u64) -> Page {
        let mut page = Page::ZERO;
        softswap_engine::codec::same_filled::fill(&mut page.0, word);
        page
    }

    #[test]
    fn pages_are_counted_by_what_fills_them() {
        let mut noisy = Page::ZERO;
        fill_with_noise(&mut noisy.0, 1);
        let mut late = page_of(7);
        late.0[4095] = 1;
        let pages = vec![Page::ZERO, page_of(9), noisy, late, Page::ZERO];
        let mut found = Verdicts::of(&pages).unwrap();
        assert_eq!((found.pages, found.zero, found.other), (5, 2, 1));
        let iterations = Check::ALL.map(|check| found.iterations(check));
        let mean = |words: u64| Some(words as f64 / 5.0);
        assert_eq!(
            iterations,
            [mean(3 * 511 + 1 + 511), mean(3 * 511 + 1 + 1), mean(3 * 511 + 1 + 1), None]
        );
        found.add(&Verdicts::of(&pages[..2]).unwrap());
        assert_eq!((found.pages, found.same_filled()), (7, 5));
    }

    #[test]
    fn every_check_can_be_timed() {
        let pages = vec![Page::ZERO; 10];
        for check in Check::ALL {
            assert!(mbps(10, check.time_ns(&pages)) > 0.0, "{check:?}");
        }
        assert_eq!(mbps(1000, 4096), 1e6);
    }

    proptest! {
        #[test]
        fn all_checks_say_the_same(
            word in any::<u64>(),
            flips in prop::collection::vec((0..PAGE_SIZE, any::<u8>()), 0..3),
        ) {
            let mut page = page_of(word);
            for (at, mask) in flips {
                page.0[at] ^= mask;
            }
            let words = Check::ALL.map(|check| check.word_of(&page));
            prop_assert!(words.iter().all(|found| *found == words[0]), "{:x?}", words);
        }
    }
}
