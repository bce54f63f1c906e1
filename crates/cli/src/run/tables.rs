//! A note, printed once, if page tables take much of a program's budget. They stay in DRAM, so they
//! limit the memory that a budget can hold.

use softswap_engine::base::stats::{Counter, Stats};
use softswap_view::units::bytes;

/// Part of the budget from which the note is printed.
const NOTABLE_PART: u64 = 4;
/// Program memory that a budget holds if its pages compress well, in budgets. A page outside DRAM
/// takes 16 bytes of the page table, and a part of its slot's 20 to 28 bytes.
const MOST_BUDGETS: u64 = 200;

/// Watches the tables of the program that was started.
#[derive(Debug)]
pub(super) struct Tables {
    stats: Stats,
    is_noted: bool,
}

impl Tables {
    pub(super) fn new(stats: Stats) -> Tables {
        Tables { stats, is_noted: false }
    }

    /// Returns the note if it is due. `budget_bytes` is the tree's budget, if the program shares
    /// one.
    pub(super) fn look(&mut self, budget_bytes: Option<u64>) -> Option<String> {
        let tables_bytes = self.stats.get(Counter::MetadataPeakBytes);
        let budget_bytes = budget_bytes.unwrap_or_else(|| self.stats.get(Counter::BudgetBytes));
        if self.is_noted || budget_bytes == 0 || tables_bytes < budget_bytes / NOTABLE_PART {
            return None;
        }
        self.is_noted = true;
        Some(format!(
            "softswap's page tables use {} of the budget of {}: with this budget a program can \
             touch about {}, or half of that if its pages do not compress; if it needs more, \
             raise --memory",
            bytes(tables_bytes),
            bytes(budget_bytes),
            bytes(MOST_BUDGETS * budget_bytes),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use softswap_engine::base::stats::STATS_WORDS;
    use softswap_sys::memory::reserve_u64;

    #[test]
    fn the_note_comes_once_when_tables_take_a_quarter_of_the_budget() {
        let stats = Stats::new(reserve_u64(STATS_WORDS).unwrap());
        let mut tables = Tables::new(stats);
        stats.set(Counter::MetadataPeakBytes, (4 << 20) - 1);
        assert_eq!(tables.look(Some(0)), None);
        assert_eq!(tables.look(Some(16 << 20)), None);
        stats.set(Counter::MetadataPeakBytes, 4 << 20);
        let note = tables.look(Some(16 << 20)).unwrap();
        assert!(note.contains("use 4.0 MiB of the budget of 16.0 MiB"), "{note}");
        assert!(note.contains("about 3.1 GiB"), "{note}");
        assert_eq!(tables.look(Some(16 << 20)), None);
    }
}
