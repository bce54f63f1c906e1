//! Notes about a program that needs more memory than its budget can hold; each is printed once.
//! softswap's page tables remain in DRAM, so the budget limits the size of the program's memory.

use softswap_engine::base::stats::{Counter, Stats};
use softswap_shared::ledger::Sizes;
use softswap_view::estimate::too_large;
use softswap_view::units::bytes;

/// Divisor of the budget: tables of this size are noted.
const NOTABLE_PART: u64 = 4;
/// Largest ratio of program memory to budget, if pages compress well. A page outside DRAM takes 16
/// bytes of the page table, and a part of its slot's 20 to 28 bytes.
const MAX_BUDGETS: u64 = 200;
/// [`MAX_BUDGETS`] for pages that do not compress.
pub(super) const MAX_BUDGETS_INCOMPRESSIBLE: u64 = MAX_BUDGETS / 2;
const MIB: u64 = 1 << 20;

#[derive(Debug)]
pub(super) struct Tables {
    stats: Stats,
    /// Largest budget that fitted the available memory at the start.
    largest_bytes: u64,
    has_noted_block: bool,
    has_noted_tables: bool,
}

impl Tables {
    pub(super) fn new(stats: Stats, largest_bytes: u64) -> Tables {
        Tables { stats, largest_bytes, has_noted_block: false, has_noted_tables: false }
    }

    pub(super) fn poll(
        &mut self,
        budget_bytes: Option<u64>,
        others: impl Iterator<Item = Sizes>,
    ) -> Option<String> {
        let of = |counter| self.stats.get(counter);
        let own = (of(Counter::MetadataPeakBytes), of(Counter::LargestBlockBytes));
        let (tables_bytes, block_bytes) = others.fold(own, |(tables, block), sizes| {
            (tables.max(sizes.tables_bytes), block.max(sizes.largest_block_bytes))
        });
        let budget_bytes = budget_bytes.unwrap_or_else(|| of(Counter::BudgetBytes));
        if budget_bytes == 0 {
            return None;
        }
        let most_bytes = MAX_BUDGETS * budget_bytes;
        if !self.has_noted_block && block_bytes > most_bytes {
            self.has_noted_block = true;
            let budget_mib = |budgets| block_bytes.div_ceil(budgets * MIB);
            let mib = [MAX_BUDGETS, MAX_BUDGETS_INCOMPRESSIBLE].map(budget_mib);
            let too_large = mib.map(|mib| too_large(Some(self.largest_bytes), mib * MIB));
            let remedy = match too_large {
                [Some(why), _] => format!("it needs --memory {}M, but {why}", mib[0]),
                [None, Some(_)] => format!("use --memory {}M", mib[0]),
                [None, None] => format!(
                    "use --memory {}M, or --memory {}M if its pages do not compress",
                    mib[0], mib[1]
                ),
            };
            return Some(format!(
                "the program allocated {} in one call, but a budget of {} holds at most {}: \
                 softswap stops the program when it touches more than that; {remedy}",
                bytes(block_bytes),
                bytes(budget_bytes),
                bytes(most_bytes),
            ));
        }
        if !self.has_noted_tables && tables_bytes >= budget_bytes / NOTABLE_PART {
            self.has_noted_tables = true;
            return Some(format!(
                "softswap's own tables use {} of the budget of {}: with this budget a program can \
                 touch about {}, or half of that if its pages do not compress; if it needs more, \
                 raise --memory",
                bytes(tables_bytes),
                bytes(budget_bytes),
                bytes(most_bytes),
            ));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use softswap_engine::base::stats::STATS_WORDS;
    use softswap_sys::memory::reserve_u64;

    const BUDGET: u64 = 16 << 20;

    fn poll(tables: &mut Tables, others: &[Sizes]) -> Option<String> {
        tables.poll(Some(BUDGET), others.iter().copied())
    }

    #[test]
    fn large_tables_are_reported_once() {
        let stats = Stats::new(reserve_u64(STATS_WORDS).unwrap());
        let mut tables = Tables::new(stats, u64::MAX);
        stats.set(Counter::MetadataPeakBytes, (4 << 20) - 1);
        assert_eq!(tables.poll(Some(0), std::iter::empty()), None);
        assert_eq!(poll(&mut tables, &[]), None);
        stats.set(Counter::MetadataPeakBytes, 4 << 20);
        let note = poll(&mut tables, &[]).unwrap();
        assert!(note.contains("use 4.0 MiB of the budget of 16.0 MiB"), "{note}");
        assert!(note.contains("about 3.1 GiB"), "{note}");
        assert_eq!(poll(&mut tables, &[]), None);
    }

    #[test]
    fn a_block_beyond_what_the_budget_holds_is_noted_with_a_budget_that_holds_it() {
        let stats = Stats::new(reserve_u64(STATS_WORDS).unwrap());
        let mut tables = Tables::new(stats, u64::MAX);
        stats.set(Counter::LargestBlockBytes, 200 * BUDGET);
        assert_eq!(poll(&mut tables, &[]), None);
        let other = Sizes { largest_block_bytes: 4 << 30, ..Sizes::default() };
        let note = poll(&mut tables, &[other]).unwrap();
        assert!(note.contains("4.0 GiB in one call"), "{note}");
        assert!(note.contains("--memory 21M") && note.contains("--memory 41M"), "{note}");
        assert_eq!(poll(&mut tables, &[other]), None);
        let mut tables = Tables::new(stats, BUDGET);
        let note = poll(&mut tables, &[other]).unwrap();
        assert!(note.contains("it needs --memory 21M, but at most --memory 16M fits"), "{note}");
    }
}
