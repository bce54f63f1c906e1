//! What a pool tells of itself.

use softswap_engine::base::stats::{Counter, Stats as Counters, TIERS, Tier};
use std::fmt::Write;

macro_rules! stats {
    ($($(#[doc = $doc:literal])+ $name:ident = $value:expr;)+) => {
        /// Figures of one pool, as they are at one moment. Those of events count from its start.
        ///
        /// ```
        /// # fn main() -> softswap::Result<()> {
        /// let pool = softswap::Pool::builder().memory("16M")?.swap("/var/tmp")?.build()?;
        /// let mut region = pool.map(1 << 20)?;
        /// region.fill(7);
        /// let stats = pool.stats();
        /// assert_eq!(stats.budget_bytes, 16 << 20);
        /// assert!(stats.used_bytes <= stats.budget_bytes && stats.mapped_bytes >= 1 << 20);
        /// assert!(stats.faults_zero > 0);
        /// # Ok(())
        /// # }
        /// ```
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        #[non_exhaustive]
        pub struct Stats {
            $($(#[doc = $doc])+ pub $name: u64,)+
        }

        impl Stats {
            pub(crate) fn of(counters: &Counters) -> Stats {
                Stats { $($name: $value(counters),)+ }
            }

            /// One object, with the names of the fields.
            pub(crate) fn json(&self) -> String {
                let mut text = String::from("{");
                $(let _ = write!(text, "{:?}:{},", stringify!($name), self.$name);)+
                text.pop();
                text.push('}');
                text
            }
        }
    };
}

fn counter(counter: Counter) -> impl Fn(&Counters) -> u64 {
    move |counters| counters.get(counter)
}

fn faults(tiers: &'static [Tier]) -> impl Fn(&Counters) -> u64 {
    move |counters| tiers.iter().map(|tier| counters.faults(*tier)).sum()
}

stats! {
    /// The limit on DRAM, in bytes.
    budget_bytes = counter(Counter::BudgetBytes);
    /// DRAM in use: pages, compressed pages and tables, in bytes.
    used_bytes = counter(Counter::UsedBytes);
    /// The most there ever was of that.
    used_peak_bytes = counter(Counter::UsedPeakBytes);
    /// The most memory that was mapped at once, in bytes.
    mapped_bytes = counter(Counter::MappedPeakBytes);
    /// DRAM of compressed pages, in bytes.
    pool_bytes = counter(Counter::PoolUsedBytes);
    /// Compressed pages in DRAM.
    pool_pages = counter(Counter::PoolObjects);
    /// Size of the swap files, in bytes.
    swap_bytes = counter(Counter::SwapFileBytes);
    /// Touches that waited for a page.
    faults = faults(&TIERS);
    /// Of those, first touches: zeroes.
    faults_zero = faults(&[Tier::Zero]);
    /// Of those, pages that were unpacked, or had not quite left DRAM.
    faults_memory = faults(&[Tier::Staged, Tier::Standby, Tier::Filled, Tier::Pool]);
    /// Of those, pages that were read from the disk.
    faults_disk = faults(&[Tier::Disk]);
    /// How long threads waited for pages, in ns.
    stalled_ns = counter(Counter::StalledNs);
    /// Pages that have left DRAM.
    pages_out = counter(Counter::PagesOut);
    /// Pages read ahead of a touch.
    pages_read_ahead = counter(Counter::PagesReadAhead);
    /// Written to the disk, in bytes.
    written_bytes = counter(Counter::BytesWritten);
    /// Read from the disk, in bytes.
    read_bytes = counter(Counter::BytesRead);
    /// Writes that failed: the page stayed in DRAM.
    write_errors = counter(Counter::WriteErrors);
    /// Reads that failed, or brought something else than was written.
    read_errors = |counters: &Counters| {
        counters.get(Counter::ReadErrors) + counters.get(Counter::ChecksumErrors)
    };
}
