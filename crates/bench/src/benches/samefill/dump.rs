//! A program's pages, and what each check took over them.

use crate::measure::sample::rotated;
use crate::pages::Page;
use crate::pages::checks::{Check, Verdicts};
use softswap_cli::refusal::Refusal;

/// Pages that any second cache holds, with room to spare.
const IN_CACHE_PAGES: usize = 128;
const CACHE_LINE_BYTES: usize = 64;
/// The dump that is no program's.
pub(super) const MIX: &str = "mix";

/// Pages of one program, or made by a rule, and what the rounds took.
pub(super) struct Dump {
    pub(super) name: &'static str,
    pub(super) collected: usize,
    pub(super) pages: Vec<Page>,
    pub(super) verdicts: Verdicts,
    /// Over all pages in one go.
    pub(super) cold: Rounds,
    /// Over pages that are in the cache.
    pub(super) in_cache: Rounds,
}

/// Time for all pages by check and round, in ns.
pub(super) type Rounds = [Vec<u64>; Check::ALL.len()];

impl Dump {
    /// Repeats what was collected until there are `pages` pages.
    pub(super) fn new(
        name: &'static str,
        collected: &[Page],
        pages: usize,
    ) -> Result<Dump, Refusal> {
        let pages: Vec<Page> = collected.iter().cycle().take(pages).cloned().collect();
        let verdicts = Verdicts::of(&pages)?;
        let (cold, in_cache) = Default::default();
        Ok(Dump { name, collected: collected.len(), pages, verdicts, cold, in_cache })
    }

    pub(super) fn measure_cold(&self, round: usize) -> [u64; Check::ALL.len()] {
        let mut took = [0; Check::ALL.len()];
        for index in rotated(Check::ALL.len(), round) {
            took[index] = Check::ALL[index].time_ns(&self.pages);
        }
        took
    }

    pub(super) fn measure_in_cache(&self, round: usize) -> [u64; Check::ALL.len()] {
        let mut took = [0; Check::ALL.len()];
        for (at, pages) in self.pages.chunks(IN_CACHE_PAGES).enumerate() {
            let bytes = pages.iter().flat_map(|page| page.0.iter().step_by(CACHE_LINE_BYTES));
            std::hint::black_box(bytes.fold(0, |sum: u8, byte| sum ^ byte));
            for index in rotated(Check::ALL.len(), round + at) {
                took[index] += Check::ALL[index].time_ns(pages);
            }
        }
        took
    }
}
