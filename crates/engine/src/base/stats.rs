//! Counters of one engine, in memory shared with `softswap run`.
//!
//! The shared page outlives the program, so a summary can be printed even after `kill -9`. Counters
//! are relaxed adds; no decision depends on them.

use crate::base::transfer_size;
use softswap_sys::faults::Faults;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Version of the layout; incremented when the meaning of an index changes.
pub(crate) const STATS_VERSION: u64 = 18;

/// Place of a page when it was touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Tier {
    /// Never touched before: a page of zeroes was installed.
    Zero = 0,
    Staged = 1,
    /// Stored in the swap area with a copy on the standby list: taken from DRAM.
    Standby = 2,
    SameFilled = 3,
    Pool = 4,
    Disk = 5,
}

pub const TIERS: [Tier; 6] =
    [Tier::Zero, Tier::Staged, Tier::Standby, Tier::SameFilled, Tier::Pool, Tier::Disk];

impl Tier {
    pub fn name(self) -> &'static str {
        ["zero", "staged", "standby", "filled", "pool", "disk"][self as usize]
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Counter { $($(#[$doc])* $name),* }
        const COUNTERS: usize = [$(Counter::$name),*].len();
    };
}

counters! {
    /// [`STATS_VERSION`] once the engine is ready, 0 before.
    Version,
    BudgetBytes,
    BudgetPeakBytes,
    ResidentPeakBytes,
    /// In whole slabs.
    PoolPeakBytes,
    DiskPeakBytes,
    /// All memory charged to the budget.
    UsedPeakBytes,
    /// Contexts, staging frames, bounce buffers and rings.
    FixedBytes,
    /// Entry tables and page tables.
    MetadataPeakBytes,
    /// Memory mapped in the managed window.
    MappedPeakBytes,
    /// Pages evicted by reclaim.
    PagesOut,
    PagesSameFilled,
    PagesPooled,
    /// Compressed size of [`Counter::PagesPooled`], in bytes.
    PooledBytes,
    PagesWritten,
    BytesWritten,
    PagesRead,
    BytesRead,
    PagesReadAhead,
    /// Time that program threads waited for pages, in ns.
    StalledNs,
    DirectReclaims,
    /// Reclaim batches that program threads ran ahead of demand.
    ReclaimedAhead,
    GuardedCalls,
    /// Failed writes; the page stayed in memory.
    WriteErrors,
    /// Failed reads; the program was stopped.
    ReadErrors,
    ChecksumErrors,
    /// 1 if io_uring is in use, 0 for pread/pwrite.
    UsesIoUring,
    UsesDirectIo,
    /// 1 if UFFDIO_MOVE is used to unmap pages.
    UsesMove,
    SwapFileBytes,
    /// The [`StopReason`] for which the engine stopped the program, 0 if it did not.
    StopReason,
    /// 1 if completions are polled from the device (IOPOLL).
    UsesDevicePolling,
    /// Single-page reads that could have been polled.
    IoConsidered,
    IoPolled,
    /// Polled reads that completed during the poll.
    IoPollHit,
    /// Single-page reads for which the thread slept before polling.
    IoSlept,
    /// Reads that slept and were already complete after the sleep.
    IoOverslept,
    /// CPU time of synchronous reads, in ns; estimated from one in 16.
    IoWaitCpuNs,
    EngineThreads,
    /// Slots retired after a failed write.
    SlotsRetired,
    /// Swap areas that are no longer written to.
    AreasFailed,
    /// Pages moved away from failed areas.
    PagesMoved,
    DiscardedBytes,
    /// Areas where a discard failed; they get no further discards.
    DiscardErrors,
    /// Bytes returned to the file system by shrinking swap files.
    ShrunkBytes,
    Areas,
    /// Stores refused by the pool at its limit.
    PoolLimitHits,
    /// Pages not offered to the pool because it was full or the budget had no free memory.
    PoolRefusals,
    /// Pages that bypassed the pool: of streams, or because a full pool would save too few reads.
    PoolPassed,
    PagesWrittenBack,
    /// Pages moved from sparse slabs of the pool into gaps of other slabs.
    PagesCompacted,
    PoolObjects,
    /// Size of the pool's objects.
    PoolStoredBytes,
    /// Size of the slabs in use.
    PoolUsedBytes,
    PoolLimitBytes,
    /// Pages written compressed; usually several share a slot.
    PagesPacked,
    SlotsPacked,
    /// Pages that no codec compressed enough for the pool.
    PagesIncompressible,
    /// Compressed pages that failed to decompress; the program was stopped.
    DecompressErrors,
    /// 1 if most bounce buffers are registered with the kernel.
    UsesFixedBuffers,
    /// Capacity of the bounce pools, in slots of one page.
    BounceSlots,
    BounceUsed,
    /// Sum over the areas of the peak of slots in use.
    BouncePeakSlots,
    /// Slots in bounce buffers allocated for a single use, at the last sample.
    BounceTransient,
    BounceTakes,
    /// Bounce buffers allocated for a single use.
    BounceLent,
    BounceMisses,
    BounceAreasVisited,
    /// Searches repeated because of another thread's change.
    BounceContended,
    /// Bounce pools added.
    BounceGrown,
    /// Bounce pools removed.
    BounceReleased,
    Encrypts,
    /// 1 if the kernel might swap out a key.
    KeyUnlocked,
    /// Pages swapped in that kept their copy in the swap area.
    CopiesKept,
    /// Copies freed because the page was written.
    CopiesWritten,
    /// Copies freed because the swap areas were full.
    CopiesShed,
    /// Pages evicted without a store or write because their copy was valid.
    PagesUnchanged,
    /// Background readahead windows that their stream reached.
    WindowsReached,
    /// Background readahead windows whose stream was lost.
    WindowsLost,
    PoolCopiesKept,
    PoolCopiesWritten,
    /// Copies in the pool freed to shrink the pool.
    PoolCopiesShed,
    PoolPagesUnchanged,
    UsedBytes,
    /// SIGBUS and SIGSYS passed on to the program.
    SignalsPassedOn,
    /// 1 while the process has no engine because its committed memory fits the budget.
    Asleep,
    ResidentBytes,
    DiskBytes,
    MappedBytes,
    /// 1 if all swap areas are in the memory of other machines.
    IsRemote,
    /// Number of the [`Faults`] mechanism in use; 0 without an engine.
    FaultMechanism,
    /// Mappings created by page protection at the last sample; 0 with userfaultfd.
    Mappings,
    MappingsPeak,
    MappingsLimit,
    /// Of the blocks and mappings that the program has allocated; reservations do not count.
    LargestBlockBytes,
    /// Time that program threads waited for a turn, in ns; part of [`Counter::StalledNs`].
    TurnWaitNs,
}

/// Reason for which the engine stopped the program, for the summary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum StopReason {
    ReadFailed = 1,
    WrongData = 2,
    PoolDamaged = 3,
    OutOfMemory = 4,
    MapRefused = 5,
    PageLost = 6,
    InternalError = 7,
}

impl StopReason {
    const ALL: [StopReason; 7] = [
        StopReason::ReadFailed,
        StopReason::WrongData,
        StopReason::PoolDamaged,
        StopReason::OutOfMemory,
        StopReason::MapRefused,
        StopReason::PageLost,
        StopReason::InternalError,
    ];

    pub fn from_code(code: u64) -> Option<StopReason> {
        Self::ALL.into_iter().find(|it| *it as u64 == code)
    }

    pub fn text(self) -> &'static str {
        match self {
            StopReason::ReadFailed => "the swap area could not be read",
            StopReason::WrongData => "the swap area returned wrong data",
            StopReason::PoolDamaged => "a compressed page could not be decompressed",
            StopReason::OutOfMemory => "no memory could be freed within the budget",
            StopReason::MapRefused => "the kernel refused to map a page",
            StopReason::PageLost => "a resident page of managed memory vanished",
            StopReason::InternalError => "an internal error of softswap; please report its message",
        }
    }
}

/// Place of a refaulting page before the fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Return {
    /// In the pool, or as a same-filled page.
    Pool = 0,
    /// On the disk, compressible.
    Disk = 1,
    Incompressible = 2,
}

pub const RETURN_KINDS: [Return; 3] = [Return::Pool, Return::Disk, Return::Incompressible];

impl Return {
    pub fn name(self) -> &'static str {
        ["pool", "disk", "incompressible"][self as usize]
    }
}

/// Latency buckets: 4 per power of two, from 1 ns.
pub const BUCKETS: usize = 4 * 40;
const HISTOGRAMS_AT: usize = 96;
/// First histogram of refault distances (pages evicted between eviction and refault).
const RETURNS: usize = TIERS.len() + transfer_size::BUCKETS;
pub const STATS_WORDS: usize = HISTOGRAMS_AT + BUCKETS * (RETURNS + RETURN_KINDS.len());
const _: () = assert!(COUNTERS <= HISTOGRAMS_AT);

#[derive(Clone, Copy, Debug)]
pub struct Stats {
    words: &'static [AtomicU64],
}

impl Stats {
    /// Returns statistics in `words`. Panics with fewer words than [`STATS_WORDS`].
    pub fn new(words: &'static [AtomicU64]) -> Stats {
        assert!(words.len() >= STATS_WORDS);
        Stats { words }
    }

    #[cfg(test)]
    pub(crate) fn for_tests() -> Stats {
        Stats::new((0..STATS_WORDS).map(|_| AtomicU64::new(0)).collect::<Vec<_>>().leak())
    }

    pub fn words(&self) -> &'static [AtomicU64] {
        self.words
    }

    pub fn get(&self, counter: Counter) -> u64 {
        self.words[counter as usize].load(Relaxed)
    }

    /// Returns the fault mechanism in use; `None` without an engine.
    pub fn fault_mechanism(&self) -> Option<Faults> {
        let code = self.get(Counter::FaultMechanism);
        [Faults::Userfaultfd, Faults::Protection].into_iter().find(|it| *it as u64 == code)
    }

    pub fn add(&self, counter: Counter, n: u64) {
        self.words[counter as usize].fetch_add(n, Relaxed);
    }

    pub fn set(&self, counter: Counter, value: u64) {
        self.words[counter as usize].store(value, Relaxed);
    }

    /// Resets faults, stall time and traffic, in a forked child.
    pub(crate) fn reset(&self) {
        let of_tiers = TIERS.into_iter().flat_map(|tier| self.histogram(tier as usize));
        of_tiers.for_each(|word| word.store(0, Relaxed));
        let counters = [Counter::StalledNs, Counter::BytesRead, Counter::BytesWritten];
        counters.into_iter().for_each(|counter| self.set(counter, 0));
    }

    pub fn peak(&self, counter: Counter, value: u64) {
        let word = &self.words[counter as usize];
        if word.load(Relaxed) < value {
            word.fetch_max(value, Relaxed);
        }
    }

    pub fn record_fault(&self, tier: Tier, ns: u64) {
        self.histogram(tier as usize)[bucket_of(ns)].fetch_add(1, Relaxed);
        self.add(Counter::StalledNs, ns);
    }

    pub fn faults(&self, tier: Tier) -> u64 {
        self.counts(tier as usize).sum()
    }

    /// Estimates the time that threads waited for a tier's faults by the middle of each bucket.
    pub fn waited_ns(&self, tier: Tier) -> u64 {
        let buckets = self.counts(tier as usize).enumerate();
        buckets.map(|(bucket, count)| count.saturating_mul(middle_of(bucket))).sum()
    }

    /// Returns a latency quantile (0..=1) of the tier's faults; `None` without faults.
    pub fn fault_quantile_ns(&self, tier: Tier, quantile: f64) -> Option<u64> {
        quantile_ns(self.counts(tier as usize), quantile)
    }

    pub fn fault_counts(&self, tier: Tier) -> Vec<u64> {
        self.counts(tier as usize).collect()
    }

    /// Records a transfer in an I/O bucket ([`transfer_size::bucket_of`]).
    pub(crate) fn record_io(&self, bucket: usize, ns: u64) {
        self.histogram(TIERS.len() + bucket)[bucket_of(ns)].fetch_add(1, Relaxed);
    }

    pub fn transfers(&self, bucket: usize) -> u64 {
        self.counts(TIERS.len() + bucket).sum()
    }

    /// As [`Stats::fault_quantile_ns`], for the transfers of an I/O bucket.
    pub fn io_quantile_ns(&self, bucket: usize, quantile: f64) -> Option<u64> {
        quantile_ns(self.counts(TIERS.len() + bucket), quantile)
    }

    pub(crate) fn record_return(&self, from: Return, left: u64) {
        self.histogram(RETURNS + from as usize)[bucket_of(left)].fetch_add(1, Relaxed);
    }

    /// Returns the refaults by distance, in the same buckets as latencies ([`bucket_floor`]).
    pub fn returns(&self, from: Return) -> Vec<u64> {
        self.counts(RETURNS + from as usize).collect()
    }

    /// Returns a histogram by number: tiers, then I/O buckets, then returns.
    fn histogram(&self, number: usize) -> &'static [AtomicU64] {
        let start = HISTOGRAMS_AT + number * BUCKETS;
        &self.words[start..start + BUCKETS]
    }

    fn counts(&self, number: usize) -> impl Iterator<Item = u64> + Clone {
        self.histogram(number).iter().map(|word| word.load(Relaxed))
    }
}

/// Returns a quantile (0..=1) of a histogram of latencies; `None` if it is empty.
pub fn quantile_ns(counts: impl Iterator<Item = u64> + Clone, quantile: f64) -> Option<u64> {
    let total: u64 = counts.clone().sum();
    if total == 0 {
        return None;
    }
    let rank = ((total as f64 * quantile).ceil() as u64).clamp(1, total);
    let mut seen = 0;
    for (index, count) in counts.enumerate() {
        seen += count;
        if seen >= rank {
            return Some(middle_of(index));
        }
    }
    None
}

pub fn bucket_of(ns: u64) -> usize {
    let ns = ns.max(4);
    let octave = 63 - ns.leading_zeros() as usize;
    let quarter = (ns >> (octave - 2)) as usize & 3;
    (octave * 4 + quarter).min(BUCKETS - 1)
}

pub fn bucket_floor(index: usize) -> u64 {
    let (octave, quarter) = (index / 4, index as u64 % 4);
    if octave < 2 {
        return octave as u64;
    }
    (4 + quarter) << (octave - 2)
}

fn middle_of(index: usize) -> u64 {
    (bucket_floor(index) + bucket_floor(index + 1)) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_are_counted_in_their_bucket() {
        for ns in (4..4000).chain([65_535, 65_536, 1 << 30]) {
            let bucket = bucket_of(ns);
            assert!(bucket_floor(bucket) <= ns && ns < bucket_floor(bucket + 1), "{ns}");
        }
    }

    #[test]
    fn quantiles_are_per_tier() {
        let stats = Stats::for_tests();
        for _ in 0..99 {
            stats.record_fault(Tier::Pool, 8_000);
        }
        stats.record_fault(Tier::Pool, 1_000_000);
        assert_eq!(stats.fault_quantile_ns(Tier::Disk, 0.5), None);
        let p50 = stats.fault_quantile_ns(Tier::Pool, 0.5).unwrap();
        assert!((7_000..9_500).contains(&p50), "{p50}");
        let p100 = stats.fault_quantile_ns(Tier::Pool, 1.0).unwrap();
        assert!((900_000..1_200_000).contains(&p100), "{p100}");
        assert_eq!(stats.faults(Tier::Pool), 100);
        assert_eq!(stats.get(Counter::StalledNs), 99 * 8_000 + 1_000_000);
        assert!(TIERS.iter().enumerate().all(|(number, tier)| *tier as usize == number));
    }

    #[test]
    fn child_counts_own_faults_and_inherits_gauges() {
        let stats = Stats::for_tests();
        stats.record_fault(Tier::Disk, 8_000);
        stats.add(Counter::BytesRead, 4096);
        stats.set(Counter::DiskBytes, 4096);
        stats.reset();
        assert_eq!(stats.faults(Tier::Disk) + stats.get(Counter::StalledNs), 0);
        assert_eq!((stats.get(Counter::BytesRead), stats.get(Counter::DiskBytes)), (0, 4096));
        stats.record_fault(Tier::Disk, 8_000);
        assert_eq!(stats.faults(Tier::Disk), 1);
    }

    #[test]
    fn peak_never_falls() {
        let stats = Stats::for_tests();
        stats.peak(Counter::PoolPeakBytes, 10);
        stats.peak(Counter::PoolPeakBytes, 5);
        assert_eq!(stats.get(Counter::PoolPeakBytes), 10);
    }
}
