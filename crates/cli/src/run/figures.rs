//! Figures of a run, for the summary, the report, and `softswap stat`.

use super::supervise::Ending;
use softswap_engine::base::stats::{Counter, RETURN_KINDS, Stats, TIERS, Tier, bucket_floor};
use softswap_engine::base::transfer_size;
use softswap_view::report::{self, Outcome, OutsideBudget, Report, SCHEMA};
use softswap_view::sections::{Areas, Bounce, Mappings, Polling, Pool};
use std::time::Duration;

const PAGE_BYTES: u64 = softswap_sys::PAGE_SIZE as u64;

pub(super) fn outcome_of(ending: Ending) -> Outcome {
    match ending {
        Ending::Exited(status) => {
            Outcome { kind: "exited".into(), status: Some(status), ..Outcome::default() }
        }
        Ending::Killed(signal) => Outcome {
            kind: "killed".into(),
            status: None,
            signal: Some(signal),
            signal_name: Some(signal_name(signal)),
        },
    }
}

/// Fields that are only known at the end are empty.
pub(crate) fn gather(
    program: Vec<String>,
    outcome: Outcome,
    wall: Duration,
    budget_bytes: u64,
    stats: &Stats,
    outside_budget: Option<OutsideBudget>,
) -> Report {
    use Counter as C;
    let get = |counter| stats.get(counter);
    Report {
        schema: SCHEMA,
        softswap_version: env!("CARGO_PKG_VERSION").into(),
        program,
        exit_status: exit_status(&outcome),
        outcome,
        wall_s: wall.as_secs_f64(),
        engine_started: get(C::Version) != 0,
        slept: get(C::Asleep) != 0 && get(C::Version) == 0,
        stop_reason: Some(get(C::StopReason)).filter(|&reason| reason != 0),
        // The budget may have changed.
        budget_bytes: match get(C::BudgetBytes) {
            0 => budget_bytes,
            now => now,
        },
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
        outside_budget,
        ..of_swapping(stats)
    }
}

/// Traffic, errors and mechanisms in use. All other fields are empty.
fn of_swapping(stats: &Stats) -> Report {
    use Counter as C;
    let share = |part: u64, whole: u64| (whole > 0).then(|| part as f64 / whole as f64);
    let get = |counter| stats.get(counter);
    Report {
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
        faults: TIERS.map(|tier| (tier.name().into(), tier_figures(stats, tier))).into(),
        latencies: TIERS.map(|tier| (tier.name().into(), buckets(stats.fault_counts(tier)))).into(),
        returns: RETURN_KINDS.map(|from| (from.name().into(), buckets(stats.returns(from)))).into(),
        bytes_written: get(C::BytesWritten),
        bytes_read: get(C::BytesRead),
        stalled_ns: get(C::StalledNs),
        direct_reclaims: get(C::DirectReclaims),
        reclaimed_ahead: get(C::ReclaimedAhead),
        guarded_calls: get(C::GuardedCalls),
        write_errors: get(C::WriteErrors),
        read_errors: get(C::ReadErrors),
        checksum_errors: get(C::ChecksumErrors),
        unpack_errors: get(C::DecompressErrors),
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
        transfers: (0..transfer_size::BUCKETS).filter_map(|b| transfer_figures(stats, b)).collect(),
        ..Report::default()
    }
}

fn exit_status(outcome: &Outcome) -> Option<u8> {
    outcome.status.or(outcome.signal.map(|signal| 128 + signal as u8))
}

fn transfer_figures(stats: &Stats, bucket: usize) -> Option<(String, report::Tier)> {
    let count = stats.transfers(bucket);
    let (bytes, is_write) = transfer_size::shape_of(bucket);
    let direction = if is_write { "write" } else { "read" };
    let figures = report::Tier {
        count,
        p50_ns: stats.io_quantile_ns(bucket, 0.50),
        p99_ns: stats.io_quantile_ns(bucket, 0.99),
    };
    (count > 0).then(|| (format!("{direction}_{bytes}"), figures))
}

fn tier_figures(stats: &Stats, tier: Tier) -> report::Tier {
    report::Tier {
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
    let name = signal_hook::low_level::signal_name(signal);
    name.map_or_else(|| format!("signal {signal}"), String::from)
}
