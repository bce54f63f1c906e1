//! Statistics of a pool.

use softswap_engine::base::stats::{Counter, Stats as Counters, TIERS, Tier};
use std::fmt::Write;

macro_rules! stats {
    ($($(#[doc = $doc:literal])+ $name:ident = $value:expr;)+) => {
        /// Statistics of one pool at one moment. Event counters count from the pool's start.
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
    /// Peak of `used_bytes`.
    used_peak_bytes = counter(Counter::UsedPeakBytes);
    /// Peak of the mapped memory, in bytes.
    mapped_bytes = counter(Counter::MappedPeakBytes);
    /// DRAM of compressed pages, in bytes.
    pool_bytes = counter(Counter::PoolUsedBytes);
    /// Number of compressed pages in DRAM.
    pool_pages = counter(Counter::PoolObjects);
    /// Swap slots in use, in bytes. Includes stored copies of pages that are also in DRAM.
    disk_bytes = counter(Counter::DiskBytes);
    /// Size of all swap areas, in bytes, with their free slots. The file in a directory grows as
    /// slots are used, and shrinks if most of them are free. A swap file or device has its whole
    /// size.
    swap_bytes = counter(Counter::SwapFileBytes);
    /// Touches that waited for a page, all kinds.
    faults = faults(&TIERS);
    /// First touches of pages, which are zero-filled.
    faults_zero = faults(&[Tier::Zero]);
    /// Faults on pages that were compressed, or still in DRAM.
    faults_memory = faults(&[Tier::Staged, Tier::Standby, Tier::SameFilled, Tier::Pool]);
    /// Faults on pages that were read from the disk.
    faults_disk = faults(&[Tier::Disk]);
    /// Time that threads waited for pages, in ns.
    stalled_ns = counter(Counter::StalledNs);
    /// Pages evicted from DRAM.
    pages_out = counter(Counter::PagesOut);
    /// Pages read ahead of a touch.
    pages_read_ahead = counter(Counter::PagesReadAhead);
    /// Bytes written to the disk.
    written_bytes = counter(Counter::BytesWritten);
    /// Bytes read from the disk.
    read_bytes = counter(Counter::BytesRead);
    /// Failed writes; their pages stayed in DRAM.
    write_errors = counter(Counter::WriteErrors);
    /// Failed reads, and reads that returned other data than was written.
    read_errors = |counters: &Counters| {
        counters.get(Counter::ReadErrors) + counters.get(Counter::ChecksumErrors)
    };
}
