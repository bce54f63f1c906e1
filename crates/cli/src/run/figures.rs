//! Figures of a run, collected once for the summary and the report, or for `softswap stat` while
//! the program runs.

use super::outside_budget::OutsideBudget;
use super::supervise::Ending;
use super::unmanaged::UnmanagedPeaks;
use crate::tree_peaks::TreePeaks;
use serde::Serialize;
use softswap_engine::base::stats::{Counter, RETURN_KINDS, Stats, TIERS, Tier, bucket_floor};
use softswap_engine::base::transfer_size;
use softswap_view::sections::{Areas, Bounce, Mappings, Polling, Pool};
use std::collections::BTreeMap;
use std::time::Duration;

/// Version of the report. Incremented whenever a key changes its meaning or is removed.
const SCHEMA: u32 = 1;
const PAGE_BYTES: u64 = softswap_sys::PAGE_SIZE as u64;

/// All figures of a run: the report's keys.
///
/// Each peak is of one figure; peaks need not coincide.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Figures {
    pub(super) schema: u32,
    pub(super) softswap_version: &'static str,
    /// The program and its arguments.
    pub(super) program: Vec<String>,
    pub(super) outcome: Outcome,
    /// As in a shell: the exit status, or 128 plus the signal; `null` while the program runs.
    pub(super) exit_status: Option<u8>,
    pub(super) wall_s: f64,
    /// CPU time of the program and all that it started; `null` while it runs.
    pub(super) cpu_s: Option<f64>,
    /// Most threads of the program at a time, without the engine's; `null` if it exited before the
    /// first sample.
    pub(super) threads_peak: Option<u32>,
    /// True if an engine was started in the program. Otherwise the rest is 0.
    pub(super) engine_started: bool,
    /// True if the program slept to its end: its committed memory fitted the budget.
    pub(super) slept: bool,
    /// Figures of all processes of the tree, if they shared one budget.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tree: Option<TreePeaks>,
    /// Processes that ran without the runtime, if any did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) unmanaged: Option<UnmanagedPeaks>,
    /// Reason for which the engine stopped the program; `null` otherwise.
    pub(super) stop_reason: Option<u64>,

    pub(super) budget_bytes: u64,
    /// Memory that the program saw by `--tell`; 0: the machine's; `null` while it runs.
    pub(super) advertised_bytes: Option<u64>,
    /// Budget and swap areas together; `null` while it runs.
    pub(super) usable_bytes: Option<u64>,
    /// Peak of the budget.
    pub(super) budget_peak_bytes: u64,
    /// Memory charged to the budget at the last sample, and its peak.
    pub(super) used_bytes: u64,
    pub(super) used_peak_bytes: u64,
    pub(super) fixed_bytes: u64,
    pub(super) metadata_peak_bytes: u64,
    /// Peak of the program's mapped memory in the managed window.
    pub(super) mapped_peak_bytes: u64,
    pub(super) resident_peak_bytes: u64,
    pub(super) pool_peak_bytes: u64,
    /// Swap slots in use at the last sample, and their peak.
    pub(super) disk_bytes: u64,
    pub(super) disk_peak_bytes: u64,
    pub(super) swap_file_bytes: u64,
    /// Memory of the process outside the budget; `null` if it exited before the first sample.
    pub(super) beside: Option<OutsideBudget>,
    /// SIGBUS and SIGSYS delivered to the program.
    pub(super) signals_passed_on: u64,

    pub(super) pages_out: u64,
    pub(super) pages_same_filled: u64,
    pub(super) pages_pooled: u64,
    /// Pages that compress too little for the pool.
    pub(super) pages_incompressible: u64,
    pub(super) pages_written: u64,
    pub(super) pages_read: u64,
    pub(super) pages_read_ahead: u64,
    /// Windows of pages read ahead that their stream has reached.
    pub(super) windows_reached: u64,
    /// Windows that their stream did not reach.
    pub(super) windows_lost: u64,
    /// Same-filled pages over evicted pages; `null` if none was evicted.
    pub(super) same_filled_share: Option<f64>,
    /// Bytes before over bytes after compression; `null` without compression.
    pub(super) compression_ratio: Option<f64>,

    /// By the tier of the page at the fault.
    pub(super) faults: BTreeMap<&'static str, TierFigures>,
    /// For each tier, pairs of a latency bucket's lower bound in ns and its count; empty buckets
    /// are omitted.
    pub(super) latencies: BTreeMap<&'static str, Vec<(u64, u64)>>,
    /// Refaults from the pool (including same-filled pages), from the disk, and of incompressible
    /// pages: pairs of a refault distance bucket's lower bound and its count.
    pub(super) returns: BTreeMap<&'static str, Vec<(u64, u64)>>,
    pub(super) bytes_written: u64,
    pub(super) bytes_read: u64,
    /// Sum over all threads of the program.
    pub(super) stalled_ns: u64,
    pub(super) direct_reclaims: u64,
    /// Batches that the program's threads evicted ahead of demand.
    pub(super) reclaimed_ahead: u64,
    pub(super) guarded_calls: u64,
    pub(super) write_errors: u64,
    pub(super) read_errors: u64,
    pub(super) checksum_errors: u64,
    /// Compressed pages in memory that could not be decompressed.
    pub(super) unpack_errors: u64,
    pub(super) uses_io_uring: bool,
    pub(super) uses_direct_io: bool,
    /// True if all areas are in the memory of other machines.
    pub(super) is_remote: bool,
    pub(super) uses_move: bool,
    /// "userfaultfd" or "protection"; `null` without an engine.
    pub(super) fault_mechanism: Option<String>,
    /// `null` with userfaultfd.
    pub(super) mappings: Option<Mappings>,
    /// True if the kernel has registered the pages of most bounce buffers.
    pub(super) uses_fixed_buffers: bool,
    pub(super) bounce: Bounce,
    /// True if pages on the disk are encrypted.
    pub(super) encrypts: bool,
    /// True if the key could not be locked in memory, so that the kernel may swap it out.
    pub(super) key_unlocked: bool,
    pub(super) pool: Pool,
    pub(super) areas: Areas,
    pub(super) polling: Polling,
    /// By direction and size: `read_4096` for reads from 4 KiB to below 8 KiB.
    pub(super) transfers: BTreeMap<String, TierFigures>,
}

/// How the program ended, if it has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum Outcome {
    Exited {
        status: u8,
    },
    Killed {
        signal: i32,
        signal_name: String,
    },
    Running {
        #[serde(skip)]
        pid: u32,
    },
}

impl Outcome {
    pub(super) fn of(ending: Ending) -> Outcome {
        match ending {
            Ending::Exited(status) => Outcome::Exited { status },
            Ending::Killed(signal) => Outcome::Killed { signal, signal_name: signal_name(signal) },
        }
    }

    fn exit_status(&self) -> Option<u8> {
        match *self {
            Outcome::Exited { status } => Some(status),
            Outcome::Killed { signal, .. } => Some(128 + signal as u8),
            Outcome::Running { .. } => None,
        }
    }
}

/// Faults served from one tier.
#[derive(Debug, Clone, Serialize)]
pub(super) struct TierFigures {
    pub(super) count: u64,
    /// `null` without faults.
    pub(super) p50_ns: Option<u64>,
    pub(super) p99_ns: Option<u64>,
}

impl Figures {
    /// Sets the budget of the tree. The tree itself is only reported if it had other processes than
    /// the program.
    pub(super) fn set_tree(&mut self, tree: TreePeaks) {
        self.budget_bytes = tree.budget_bytes;
        self.budget_peak_bytes = tree.budget_peak_bytes;
        self.tree = Some(tree).filter(|tree| !tree.is_of_one());
    }

    pub(crate) fn gather(
        program: Vec<String>,
        outcome: Outcome,
        wall: Duration,
        budget_bytes: u64,
        stats: &Stats,
        beside: Option<OutsideBudget>,
    ) -> Figures {
        use Counter as C;
        let share = |part: u64, whole: u64| (whole > 0).then(|| part as f64 / whole as f64);
        let get = |counter| stats.get(counter);
        Figures {
            schema: SCHEMA,
            softswap_version: env!("CARGO_PKG_VERSION"),
            program,
            exit_status: outcome.exit_status(),
            outcome,
            wall_s: wall.as_secs_f64(),
            cpu_s: None,
            threads_peak: None,
            engine_started: get(C::Version) != 0,
            slept: get(C::Asleep) != 0 && get(C::Version) == 0,
            tree: None,
            unmanaged: None,
            stop_reason: Some(get(C::StopReason)).filter(|&reason| reason != 0),
            // Current or final budget: it may have changed.
            budget_bytes: match get(C::BudgetBytes) {
                0 => budget_bytes,
                now => now,
            },
            advertised_bytes: None,
            usable_bytes: None,
            budget_peak_bytes: budget_bytes.max(get(C::BudgetPeakBytes)),
            used_bytes: get(C::UsedBytes),
            used_peak_bytes: get(C::UsedPeakBytes),
            fixed_bytes: get(C::FixedBytes),
            metadata_peak_bytes: get(C::MetadataPeakBytes),
            mapped_peak_bytes: get(C::MappedPeakBytes),
            resident_peak_bytes: get(C::ResidentPeakBytes),
            pool_peak_bytes: get(C::PoolPeakBytes),
            disk_bytes: get(C::DiskBytes),
            disk_peak_bytes: get(C::DiskPeakBytes),
            swap_file_bytes: get(C::SwapFileBytes),
            beside,
            signals_passed_on: get(C::SignalsPassedOn),
            pages_out: get(C::PagesOut),
            pages_same_filled: get(C::PagesSameFilled),
            pages_pooled: get(C::PagesPooled),
            pages_incompressible: get(C::PagesIncompressible),
            pages_written: get(C::PagesWritten),
            pages_read: get(C::PagesRead),
            pages_read_ahead: get(C::PagesReadAhead),
            windows_reached: get(C::WindowsReached),
            windows_lost: get(C::WindowsLost),
            same_filled_share: share(get(C::PagesSameFilled), get(C::PagesOut)),
            compression_ratio: share(get(C::PagesPooled) * PAGE_BYTES, get(C::PooledBytes)),
            faults: TIERS.iter().map(|&tier| (tier.name(), tier_figures(stats, tier))).collect(),
            latencies: TIERS
                .iter()
                .map(|&tier| (tier.name(), buckets(stats.fault_counts(tier))))
                .collect(),
            returns: RETURN_KINDS
                .iter()
                .map(|&from| (from.name(), buckets(stats.returns(from))))
                .collect(),
            bytes_written: get(C::BytesWritten),
            bytes_read: get(C::BytesRead),
            stalled_ns: get(C::StalledNs),
            direct_reclaims: get(C::DirectReclaims),
            reclaimed_ahead: get(C::ReclaimedAhead),
            guarded_calls: get(C::GuardedCalls),
            write_errors: get(C::WriteErrors),
            read_errors: get(C::ReadErrors),
            checksum_errors: get(C::ChecksumErrors),
            unpack_errors: get(C::UnpackErrors),
            uses_io_uring: get(C::UsesIoUring) != 0,
            uses_direct_io: get(C::UsesDirectIo) != 0,
            is_remote: get(C::IsRemote) != 0,
            uses_move: get(C::UsesMove) != 0,
            fault_mechanism: stats.fault_mechanism().map(|it| it.to_string()),
            mappings: Mappings::of(stats),
            uses_fixed_buffers: get(C::UsesFixedBuffers) != 0,
            bounce: Bounce::of(stats),
            encrypts: get(C::Encrypts) != 0,
            key_unlocked: get(C::KeyUnlocked) != 0,
            pool: Pool::of(stats),
            areas: Areas::of(stats),
            polling: Polling::of(stats),
            transfers: (0..transfer_size::BUCKETS)
                .filter_map(|b| transfer_figures(stats, b))
                .collect(),
        }
    }
}

/// Returns the name and the figures of an I/O bucket, if it is not empty.
fn transfer_figures(stats: &Stats, bucket: usize) -> Option<(String, TierFigures)> {
    let count = stats.transfers(bucket);
    let (bytes, is_write) = transfer_size::shape_of(bucket);
    let direction = if is_write { "write" } else { "read" };
    let figures = TierFigures {
        count,
        p50_ns: stats.io_quantile_ns(bucket, 0.50),
        p99_ns: stats.io_quantile_ns(bucket, 0.99),
    };
    (count > 0).then(|| (format!("{direction}_{bytes}"), figures))
}

fn tier_figures(stats: &Stats, tier: Tier) -> TierFigures {
    TierFigures {
        count: stats.faults(tier),
        p50_ns: stats.fault_quantile_ns(tier, 0.50),
        p99_ns: stats.fault_quantile_ns(tier, 0.99),
    }
}

/// Returns the lower bound and the count of each bucket that is not empty.
fn buckets(counts: Vec<u64>) -> Vec<(u64, u64)> {
    let some = counts.into_iter().enumerate().filter(|(_, count)| *count > 0);
    some.map(|(bucket, count)| (bucket_floor(bucket), count)).collect()
}

fn signal_name(signal: i32) -> String {
    let name = match signal {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGILL => "SIGILL",
        libc::SIGTRAP => "SIGTRAP",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGKILL => "SIGKILL",
        libc::SIGUSR1 => "SIGUSR1",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGUSR2 => "SIGUSR2",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGALRM => "SIGALRM",
        libc::SIGTERM => "SIGTERM",
        libc::SIGXCPU => "SIGXCPU",
        libc::SIGXFSZ => "SIGXFSZ",
        libc::SIGSYS => "SIGSYS",
        other => return format!("signal {other}"),
    };
    name.to_string()
}
