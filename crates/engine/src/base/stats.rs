//! Counters of one engine, in memory that `softswap run` shares with it.
//!
//! The page of counters outlives the program, so a summary can be printed even
//! after `kill -9`. Counters are plain relaxed adds: they inform, they never
//! decide. Latencies go to log-linear buckets: 4 per octave of nanoseconds.

use crate::base::transfer_size;
use softswap_sys::faults::Faults;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Changes whenever the meaning of an index does.
pub(crate) const STATS_VERSION: u64 = 17;

/// Where a page was when it was touched.
///
/// ```
/// use softswap_engine::base::stats::{TIERS, Tier};
/// assert_eq!(Tier::Pool.name(), "pool");
/// assert_eq!(TIERS[Tier::Disk as usize], Tier::Disk);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Tier {
    /// Never touched before: a page of zeroes was installed.
    Zero = 0,
    /// Taken out, not yet stored: taken straight back.
    Staged = 1,
    /// Stored in the swap area, and still kept in DRAM: taken from there.
    Standby = 2,
    /// A same-filled page: its word was written.
    Filled = 3,
    /// Decompressed from the pool.
    Pool = 4,
    /// Read from the swap area.
    Disk = 5,
}

/// All tiers, in the order of their numbers.
pub const TIERS: [Tier; 6] =
    [Tier::Zero, Tier::Staged, Tier::Standby, Tier::Filled, Tier::Pool, Tier::Disk];

impl Tier {
    /// The tier's name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        ["zero", "staged", "standby", "filled", "pool", "disk"][self as usize]
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// A counter's place in the shared page.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Counter { $($(#[$doc])* $name),* }
        const COUNTERS: usize = [$(Counter::$name),*].len();
    };
}

counters! {
    /// [`STATS_VERSION`], written when the engine is ready; 0 before.
    Version,
    /// The budget in bytes, as it is now.
    BudgetBytes,
    /// The largest that it has been.
    BudgetPeakBytes,
    /// Peak of resident pages, in bytes.
    ResidentPeakBytes,
    /// Peak of the compressed pool (whole slabs), in bytes.
    PoolPeakBytes,
    /// Peak of swap slots in use, in bytes.
    DiskPeakBytes,
    /// Peak of everything that counts against the budget, in bytes.
    UsedPeakBytes,
    /// Fixed part of the budget: contexts, staging, bounce, rings, in bytes.
    FixedBytes,
    /// Peak of entry tables and page tables, in bytes.
    MetadataPeakBytes,
    /// Peak of memory mapped in the managed window, in bytes.
    MappedPeakBytes,
    /// Pages that reclaim has found another place for.
    PagesOut,
    /// Of those, recognised as same-filled.
    PagesSameFilled,
    /// Of those, compressed into the pool.
    PagesPooled,
    /// Bytes those took in the pool.
    PooledBytes,
    /// Pages written to the swap area.
    PagesWritten,
    /// Bytes written to the swap area.
    BytesWritten,
    /// Pages read from the swap area.
    PagesRead,
    /// Bytes read from the swap area.
    BytesRead,
    /// Pages brought in ahead of a touch.
    PagesReadAhead,
    /// Time program threads spent waiting for pages, in ns.
    StalledNs,
    /// Times a program thread had to reclaim itself.
    DirectReclaims,
    /// Times a program thread took pages out ahead of demand.
    ReclaimedAhead,
    /// System calls caught by the guard.
    GuardedCalls,
    /// Writes that failed (the page stayed in memory).
    WriteErrors,
    /// Reads that failed (the toucher was stopped).
    ReadErrors,
    /// Pages whose checksum did not match.
    ChecksumErrors,
    /// 1 if io_uring is in use, 0 for pread/pwrite.
    UsesIoUring,
    /// 1 if the swap file is open with O_DIRECT.
    UsesDirectIo,
    /// 1 if pages leave by UFFDIO_MOVE.
    UsesMove,
    /// Swap file size now, in bytes.
    SwapFileBytes,
    /// Why the engine stopped the program ([`StopReason`]), 0 if it did not.
    StopReason,
    /// 1 if the device is asked for completions itself (IOPOLL).
    UsesDevicePolling,
    /// Single-page reads that could have been polled for.
    IoConsidered,
    /// Of those, polled for.
    IoPolled,
    /// Of those, found complete by polling.
    IoPollHit,
    /// Single-page reads slept on before polling.
    IoSlept,
    /// Of those, complete when the sleep was over.
    IoOverslept,
    /// CPU time spent on reads that a thread waits for, in ns; estimated from one in 16.
    IoWaitCpuNs,
    /// Threads that the engine has started.
    EngineThreads,
    /// Slots out of service because writing to them failed.
    SlotsRetired,
    /// Swap areas that are not written to any more.
    AreasFailed,
    /// Pages brought from such an area elsewhere.
    PagesMoved,
    /// Bytes of swap areas discarded.
    DiscardedBytes,
    /// Areas whose storage failed to discard, and is not asked again.
    DiscardErrors,
    /// Bytes that swap files gave back to the file system by shrinking.
    ShrunkBytes,
    /// Swap areas there are.
    Areas,
    /// Stores for which the pool had no place: it was at its limit.
    PoolLimitHits,
    /// Pages that were not offered to the pool, because it was full or the
    /// budget had no room for it.
    PoolRefusals,
    /// Pages that went to the disk without being offered to the pool: of streams, and where
    /// a full pool gains too little.
    PoolPassed,
    /// Pages of the pool that went on to the swap area.
    PagesWrittenBack,
    /// Pages moved from sparse slabs of the pool into gaps.
    PagesCompacted,
    /// Objects in the pool when last looked at.
    PoolObjects,
    /// Their bytes.
    PoolStoredBytes,
    /// Slabs in use, in bytes.
    PoolUsedBytes,
    /// What slabs in use may come to, in bytes.
    PoolLimitBytes,
    /// Pages that were written packed: mostly several share a slot.
    PagesPacked,
    /// Slots that these were written to.
    SlotsPacked,
    /// Pages that no codec packed small enough for the pool.
    PagesIncompressible,
    /// Packed pages that could not be unpacked (the toucher was stopped).
    UnpackErrors,
    /// 1 if the kernel has the pages of most bounce buffers at hand.
    UsesFixedBuffers,
    /// Slots (of a page) of the bounce pools.
    BounceSlots,
    /// Of those, in use when last looked at.
    BounceUsed,
    /// Peak of those in use, area by area.
    BouncePeakSlots,
    /// Slots of bounce buffers made for one use.
    BounceTransient,
    /// Bounce buffers taken from pools.
    BounceTakes,
    /// Bounce buffers made for one use.
    BounceLent,
    /// Times that no pool had a bounce buffer.
    BounceMisses,
    /// Areas that were searched for bounce buffers.
    BounceAreasVisited,
    /// Times that a search had to try again because of another thread's.
    BounceContended,
    /// Bounce pools added.
    BounceGrown,
    /// Bounce pools taken away again.
    BounceReleased,
    /// 1 if what is written to the swap areas is encrypted.
    Encrypts,
    /// 1 if there is a key that the kernel might swap out.
    KeyUnlocked,
    /// Pages that came in from the swap area and left their copy there.
    CopiesKept,
    /// Copies given up because the page was written.
    CopiesWritten,
    /// Copies given up because the swap areas were full.
    CopiesShed,
    /// Pages that left DRAM for their copy: nothing was stored or written.
    PagesUnchanged,
    /// Windows asked for in the background that their stream has reached.
    WindowsReached,
    /// Windows asked for whose stream was lost.
    WindowsLost,
    /// Pages that came in from the pool and left their copy there.
    PoolCopiesKept,
    /// Copies in the pool given up because the page was written.
    PoolCopiesWritten,
    /// Copies in the pool given up because it was nearly full.
    PoolCopiesShed,
    /// Pages that left DRAM for their copy in the pool: nothing was packed.
    PoolPagesUnchanged,
    /// Everything that counts against the budget when last looked at, in bytes.
    UsedBytes,
    /// SIGBUS and SIGSYS that the engine let strike the program.
    SignalsPassedOn,
    /// 1 while the process sleeps: what it has committed fits the budget.
    Asleep,
    /// Resident pages when last looked at, in bytes.
    ResidentBytes,
    /// Swap slots in use when last looked at, in bytes.
    DiskBytes,
    /// Memory mapped in the managed window when last looked at, in bytes.
    MappedBytes,
    /// 1 if all swap areas are in the memory of other machines.
    IsRemote,
    /// The number of the [`Faults`] in use; 0 without an engine.
    FaultMechanism,
    /// Mappings that page protection makes when last looked at; 0 with userfaultfd.
    Mappings,
    /// Their peak.
    MappingsPeak,
    /// Their limit when last looked at.
    MappingsLimit,
}

/// Why the engine stopped the program, for the summary; the message on
/// standard error has the details.
///
/// ```
/// use softswap_engine::base::stats::StopReason;
/// let reason = StopReason::from_code(4).unwrap();
/// assert_eq!(reason.text(), "no memory could be freed within the budget");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum StopReason {
    /// The swap area could not be read.
    ReadFailed = 1,
    /// The swap area returned wrong data.
    WrongData = 2,
    /// A compressed page could not be unpacked.
    PoolDamaged = 3,
    /// No memory could be freed within the budget.
    OutOfMemory = 4,
    /// The kernel refused to map a page.
    MapRefused = 5,
    /// A page was dropped behind the engine's back.
    PageLost = 6,
    /// The engine found itself in a state that cannot be.
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

    /// The reason recorded in [`Counter::StopReason`].
    #[must_use]
    pub fn from_code(code: u64) -> Option<StopReason> {
        Self::ALL.into_iter().find(|reason| *reason as u64 == code)
    }

    /// The reason in words.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            StopReason::ReadFailed => "the swap area could not be read",
            StopReason::WrongData => "the swap area returned wrong data",
            StopReason::PoolDamaged => "a compressed page could not be unpacked",
            StopReason::OutOfMemory => "no memory could be freed within the budget",
            StopReason::MapRefused => "the kernel refused to map a page",
            StopReason::PageLost => "a page was dropped behind softswap's back",
            StopReason::InternalError => "an error of its own; please report its message",
        }
    }
}

/// From where a page comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Return {
    /// The pool, or it is a same-filled page.
    Pool = 0,
    /// The disk, and it would pack.
    Disk = 1,
    /// The disk, and it does not pack.
    Incompressible = 2,
}

/// All kinds of returns, in the order of their numbers.
pub const RETURN_KINDS: [Return; 3] = [Return::Pool, Return::Disk, Return::Incompressible];

impl Return {
    /// Its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        ["pool", "disk", "incompressible"][self as usize]
    }
}

/// Latency buckets: 4 per power of two from 1 ns.
pub const BUCKETS: usize = 4 * 40;
const HISTOGRAMS_AT: usize = 96;
/// Behind those of latencies: how many pages had left since one that came back did.
const RETURNS: usize = TIERS.len() + transfer_size::BUCKETS;
/// Words in the shared statistics area.
pub const STATS_WORDS: usize = HISTOGRAMS_AT + BUCKETS * (RETURNS + RETURN_KINDS.len());
const _: () = assert!(COUNTERS <= HISTOGRAMS_AT);

/// Counters and latency histograms of one engine.
///
/// ```
/// use softswap_engine::base::stats::*;
/// use std::sync::atomic::AtomicU64;
/// let words: Vec<AtomicU64> = (0..STATS_WORDS).map(|_| AtomicU64::new(0)).collect();
/// let stats = Stats::new(words.leak());
/// stats.record_fault(Tier::Pool, 3_000);
/// assert_eq!(stats.faults(Tier::Pool), 1);
/// assert_eq!(stats.get(Counter::StalledNs), 3_000);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Stats {
    words: &'static [AtomicU64],
}

impl Stats {
    /// Statistics in `words`, which must hold at least [`STATS_WORDS`].
    ///
    /// # Panics
    /// When `words` is too short.
    #[must_use]
    pub fn new(words: &'static [AtomicU64]) -> Stats {
        assert!(words.len() >= STATS_WORDS);
        Stats { words }
    }

    /// The words themselves.
    #[must_use]
    pub fn words(&self) -> &'static [AtomicU64] {
        self.words
    }

    /// The counter's value.
    #[must_use]
    pub fn get(&self, counter: Counter) -> u64 {
        self.words[counter as usize].load(Relaxed)
    }

    /// Returns the way in which faults are taken; `None` without an engine.
    #[must_use]
    pub fn fault_mechanism(&self) -> Option<Faults> {
        let code = self.get(Counter::FaultMechanism);
        [Faults::Userfaultfd, Faults::Protection].into_iter().find(|it| *it as u64 == code)
    }

    /// Adds to a counter.
    pub fn add(&self, counter: Counter, n: u64) {
        self.words[counter as usize].fetch_add(n, Relaxed);
    }

    /// Sets a gauge.
    pub fn set(&self, counter: Counter, value: u64) {
        self.words[counter as usize].store(value, Relaxed);
    }

    /// In a forked child: it has had no faults, and no traffic.
    pub(crate) fn begin_anew(&self) {
        let of_tiers = TIERS.into_iter().flat_map(|tier| self.histogram(tier as usize));
        of_tiers.for_each(|word| word.store(0, Relaxed));
        let counters = [Counter::StalledNs, Counter::BytesRead, Counter::BytesWritten];
        counters.into_iter().for_each(|counter| self.set(counter, 0));
    }

    /// Raises a peak.
    pub(crate) fn peak(&self, counter: Counter, value: u64) {
        let word = &self.words[counter as usize];
        if word.load(Relaxed) < value {
            word.fetch_max(value, Relaxed);
        }
    }

    /// Records a fault served from `tier` in `ns` nanoseconds.
    pub fn record_fault(&self, tier: Tier, ns: u64) {
        self.histogram(tier as usize)[bucket_of(ns)].fetch_add(1, Relaxed);
        self.add(Counter::StalledNs, ns);
    }

    /// Faults served from `tier`.
    #[must_use]
    pub fn faults(&self, tier: Tier) -> u64 {
        self.histogram(tier as usize).iter().map(|word| word.load(Relaxed)).sum()
    }

    /// How long threads have waited for faults served from `tier`, in ns: by the middle of
    /// each bucket.
    #[must_use]
    pub fn waited_ns(&self, tier: Tier) -> u64 {
        let buckets = self.histogram(tier as usize).iter().enumerate();
        buckets.map(|(bucket, count)| count.load(Relaxed).saturating_mul(middle_of(bucket))).sum()
    }

    /// The latency below which a share `quantile` (0..=1) of the tier's faults
    /// lies, in ns (the middle of its bucket); `None` without faults.
    #[must_use]
    pub fn fault_quantile_ns(&self, tier: Tier, quantile: f64) -> Option<u64> {
        quantile_ns(self.histogram(tier as usize), quantile)
    }

    /// How many of the tier's faults fell into each bucket.
    #[must_use]
    pub fn fault_counts(&self, tier: Tier) -> Vec<u64> {
        self.histogram(tier as usize).iter().map(|word| word.load(Relaxed)).collect()
    }

    /// Records a transfer of an I/O bucket ([`transfer_size::bucket_of`]).
    pub(crate) fn record_io(&self, bucket: usize, ns: u64) {
        self.histogram(TIERS.len() + bucket)[bucket_of(ns)].fetch_add(1, Relaxed);
    }

    /// Transfers of an I/O bucket.
    #[must_use]
    pub fn transfers(&self, bucket: usize) -> u64 {
        self.histogram(TIERS.len() + bucket).iter().map(|word| word.load(Relaxed)).sum()
    }

    /// As [`Stats::fault_quantile_ns`], of an I/O bucket's transfers.
    #[must_use]
    pub fn io_quantile_ns(&self, bucket: usize, quantile: f64) -> Option<u64> {
        quantile_ns(self.histogram(TIERS.len() + bucket), quantile)
    }

    /// Records that a page comes back, and how many had left since it did.
    pub(crate) fn record_return(&self, from: Return, left: u64) {
        self.histogram(RETURNS + from as usize)[bucket_of(left)].fetch_add(1, Relaxed);
    }

    /// How many pages came back, by how many had left since they did: in the same buckets as
    /// latencies ([`bucket_floor`]).
    #[must_use]
    pub fn returns(&self, from: Return) -> Vec<u64> {
        let words = self.histogram(RETURNS + from as usize);
        words.iter().map(|word| word.load(Relaxed)).collect()
    }

    /// The faults' histograms by tier, then those of the I/O buckets, then of returns.
    fn histogram(&self, number: usize) -> &'static [AtomicU64] {
        let start = HISTOGRAMS_AT + number * BUCKETS;
        &self.words[start..start + BUCKETS]
    }
}

fn quantile_ns(histogram: &[AtomicU64], quantile: f64) -> Option<u64> {
    let total: u64 = histogram.iter().map(|word| word.load(Relaxed)).sum();
    if total == 0 {
        return None;
    }
    let rank = ((total as f64 * quantile).ceil() as u64).clamp(1, total);
    let mut seen = 0;
    for (index, word) in histogram.iter().enumerate() {
        seen += word.load(Relaxed);
        if seen >= rank {
            return Some(middle_of(index));
        }
    }
    None
}

/// The bucket of a latency: four to the octave.
#[must_use]
pub fn bucket_of(ns: u64) -> usize {
    let ns = ns.max(4);
    let octave = 63 - ns.leading_zeros() as usize;
    let quarter = (ns >> (octave - 2)) as usize & 3;
    (octave * 4 + quarter).min(BUCKETS - 1)
}

/// The smallest latency of a bucket, in ns.
#[must_use]
pub fn bucket_floor(index: usize) -> u64 {
    let (octave, quarter) = (index / 4, index as u64 % 4);
    if octave < 2 {
        return octave as u64;
    }
    (4 + quarter) << (octave - 2)
}

/// The middle of a bucket, in ns.
fn middle_of(index: usize) -> u64 {
    (bucket_floor(index) + bucket_floor(index + 1)) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats() -> Stats {
        Stats::new(Box::leak((0..STATS_WORDS).map(|_| AtomicU64::new(0)).collect::<Box<[_]>>()))
    }

    #[test]
    fn every_latency_falls_in_the_bucket_that_contains_it() {
        for ns in (4..4000).chain([65_535, 65_536, 1 << 30]) {
            let bucket = bucket_of(ns);
            assert!(bucket_floor(bucket) <= ns && ns < bucket_floor(bucket + 1), "{ns}");
        }
    }

    #[test]
    fn quantiles_come_from_the_right_tier() {
        let stats = stats();
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
    }

    #[test]
    fn a_child_counts_its_own_faults_and_has_what_it_inherits() {
        let stats = stats();
        stats.record_fault(Tier::Disk, 8_000);
        stats.add(Counter::BytesRead, 4096);
        stats.set(Counter::DiskBytes, 4096);
        stats.begin_anew();
        assert_eq!(stats.faults(Tier::Disk) + stats.get(Counter::StalledNs), 0);
        assert_eq!((stats.get(Counter::BytesRead), stats.get(Counter::DiskBytes)), (0, 4096));
        stats.record_fault(Tier::Disk, 8_000);
        assert_eq!(stats.faults(Tier::Disk), 1);
    }

    #[test]
    fn a_peak_only_rises() {
        let stats = stats();
        stats.peak(Counter::PoolPeakBytes, 10);
        stats.peak(Counter::PoolPeakBytes, 5);
        assert_eq!(stats.get(Counter::PoolPeakBytes), 10);
    }
}
