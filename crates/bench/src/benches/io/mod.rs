//! Cost of reading a file or device by wait mode, compared with fio.
//!
//! In each round all variants read the same bytes in turn, each for the same time.

mod meter;
mod fio;

use crate::measure::options::{InRounds, parse_seconds};
use crate::measure::poll_counts::{notes_on, poll_counts};
use crate::measure::report::Log;
use crate::measure::sample::{Cell, Object, median, object, rotated};
use clap::Args;
use fio::{DEPTH, Job, Kind};
use meter::{Meter, Slice, WaitMode};
use softswap_cli::refusal::Refusal;
use softswap_cli::units::parse_size;
use softswap_engine::store::io::Device;
use softswap_engine::store::io::poll::mode::Mode;
use softswap_sys::ring::timer_overshoot_ns;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

const WARM_UP: Duration = Duration::from_millis(250);

/// Measure reads of a file or device, for each way to wait for a read.
///
/// 4 KiB at random places, past the page cache: one at a time, waited for by interrupt, poll,
/// hybrid and auto, then 32 at once. Without FILE, a file of its own is filled and read; it has no
/// name and is removed when the command exits. An existing file is opened for reading only.
#[derive(Args)]
#[command(after_long_help = "\
fio is run in the same rounds on the same file if it is installed (Debian: apt-get install fio; tried
with 3.33). For waiting by interrupt: io_uring and psync. For polling: io_uring with hipri (only on
queues that poll) and io_uring with sqthread_poll. The ratios are to the fastest of each kind.

cpu_us is the user and system time per I/O of the whole process, by fio's own account of its thread
for fio, without the kernel thread that its sqthread_poll keeps busy.

pread is the bare system call in this process: fio is a process of its own, which a machine that
idles between reads may treat better or worse.

softswap waits for 32 reads together, so depth_32 has the latency of all 32; fio keeps 32
requests in flight and reports the latency of each. MB/s and CPU compare as they are.

A ratio a_vs_b is of p50. extra_cpu_hybrid_vs_poll is the CPU that hybrid
adds to interrupt over what poll adds.

Examples:
  softswap bench io --no-fio
  softswap bench io --size 4G /dev/nvme0n1")]
pub(crate) struct IoArgs {
    /// A file or block device to read [default: a file of its own]
    #[arg(value_name = "FILE")]
    target: Option<PathBuf>,

    /// Size of the part to read, from the start [default: all; 1G for a file of its own]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    size: Option<u64>,

    /// How long each variant runs in a round, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "0.5", value_parser = parse_seconds)]
    seconds: Duration,

    /// Omit fio
    #[arg(long)]
    no_fio: bool,

    #[command(flatten)]
    common: InRounds<5>,
}

#[derive(Debug, Clone)]
enum Quantity {
    Read(Mode),
    Pread,
    ReadMany,
    Fio(Job),
}

#[derive(Debug, Clone)]
struct Variant {
    name: &'static str,
    what: Quantity,
}

fn variants(with_fio: bool) -> Vec<Cell<Variant, Slice>> {
    let modes = Mode::ALL.into_iter().map(|mode| (mode.name(), Quantity::Read(mode)));
    let own = [("pread", Quantity::Pread), ("depth_32", Quantity::ReadMany)];
    let fio = fio::JOBS.into_iter().filter(|_| with_fio).map(|job| (job.name, Quantity::Fio(job)));
    let all = modes.chain(own).chain(fio);
    all.map(|(name, what)| Cell::new(Variant { name, what })).collect()
}

fn row_of(cell: &Cell<Variant, Slice>) -> Object {
    let (by, depth) = match &cell.key.what {
        Quantity::Fio(job) => ("fio", job.depth),
        Quantity::ReadMany => ("softswap", DEPTH),
        Quantity::Read(_) | Quantity::Pread => ("softswap", 1),
    };
    object! {
        variant: cell.key.name,
        by,
        depth,
        p50_us: cell.median(p50_us),
        p99_us: cell.median(|slice| slice.round.p99_us),
        mb_per_s: cell.median(|slice| slice.mb_per_s),
        cpu_us: cell.median(|slice| slice.cpu_us),
        cov: cell.cov(p50_us),
        count: cell.rounds.iter().map(|slice| slice.round.count).sum::<usize>(),
    }
}

fn p50_us(slice: &Slice) -> f64 {
    slice.round.p50_us
}

pub(super) fn measure(args: &IoArgs) -> Result<Object, Refusal> {
    let target = meter::open(args.target.as_deref(), args.size, &args.common.swap)?;
    let properties = target.device.describe();
    let fio_version = if args.no_fio { Err("--no-fio".to_string()) } else { fio::version() };
    let mut log = Log::start();
    log.notes.extend(target.notes.clone());
    if let Err(why) = &fio_version {
        log.notes.push(format!("fio is left out: {why}"));
    }
    log.notes.extend(notes_on(properties.direct, properties.io_uring));
    let mut cells = variants(fio_version.is_ok());
    let mut meter = Meter::new(&target)?;
    let mut overshoots_ns = Vec::new();
    for round in 0..=args.common.rounds as usize {
        overshoots_ns.push(timer_overshoot_ns() as f64);
        let time = if round == 0 { args.seconds.min(WARM_UP) } else { args.seconds };
        let failed = run_round(&mut meter, &mut cells, round, time)?;
        // A failed variant lacks this round, and so has no ratios within it.
        for (index, why) in failed.into_iter().rev() {
            log.notes.push(format!("{} was left out: {why}", cells.remove(index).key.name));
        }
    }
    add_ratios(&cells, &mut log);
    let of_mode = |WaitMode { mode, stats, .. }: &WaitMode| {
        let mut row = object! { mode: mode.name() };
        row.extend(poll_counts([stats].into_iter()));
        row
    };
    let overshoot_ns = meter.wait_modes[Mode::Hybrid as usize].polling.overshoot_ns() as f64;
    let figures = object! {
        target: target.name,
        bytes: target.bytes,
        rounds: args.common.rounds,
        seconds: args.seconds.as_secs_f64(),
        // `null` if fio was not run.
        fio: fio_version.ok(),
        io_uring: properties.io_uring,
        direct: properties.direct,
        // True if polled reads poll the device itself (IOPOLL).
        device_polling: properties.device_polling,
        timer_overshoot_us: median(overshoots_ns) / 1000.0,
        hybrid_overshoot_us: overshoot_ns / 1000.0,
        rows: cells.iter().map(row_of).collect::<Vec<_>>(),
        modes: meter.wait_modes.iter().map(of_mode).collect::<Vec<_>>(),
    };
    Ok(log.findings("io", target.machine.clone(), figures))
}

/// Runs all variants; round 0 warms up. Returns the indices of those that failed, with the reasons.
fn run_round(
    meter: &mut Meter<'_>,
    cells: &mut [Cell<Variant, Slice>],
    round: usize,
    time: Duration,
) -> Result<BTreeMap<usize, String>, Refusal> {
    let mut failed = BTreeMap::new();
    for index in rotated(cells.len(), round) {
        let seed = (round * 1000 + index) as u64;
        let ran = match &cells[index].key.what {
            Quantity::Read(mode) => Ok(meter.read(*mode, time, seed)?),
            Quantity::Pread => Ok(meter.pread(time, seed)?),
            Quantity::ReadMany => Ok(meter.read_many(DEPTH, time, seed)?),
            Quantity::Fio(job) => job.run(meter.target, time, seed),
        };
        match ran {
            Ok(slice) => cells[index].rounds.extend((round > 0).then_some(slice)),
            Err(why) => drop(failed.insert(index, why)),
        }
    }
    Ok(failed)
}

fn add_ratios(cells: &[Cell<Variant, Slice>], log: &mut Log) {
    let find = |name: &str| cells.iter().find(|cell| cell.key.name == name);
    let best_fio = |kind: Kind| {
        let of_kind = |cell: &&Cell<Variant, Slice>| matches!(&cell.key.what, Quantity::Fio(job) if job.kind == kind);
        let p50 = |cell: &Cell<Variant, Slice>| cell.median(p50_us);
        cells.iter().filter(of_kind).min_by(|one, other| p50(one).total_cmp(&p50(other)))
    };
    let (fio_interrupt, fio_poll) = (best_fio(Kind::Interrupt), best_fio(Kind::Poll));
    for (kind, best) in [("interrupt", fio_interrupt), ("poll", fio_poll)] {
        log.notes.extend(best.map(|best| format!("fio's fastest for {kind}: {}", best.key.name)));
    }
    let (interrupt, poll, hybrid) = (find("interrupt"), find("poll"), find("hybrid"));
    for (key, one, other) in [
        ("latency_interrupt_vs_poll", interrupt, poll),
        ("latency_hybrid_vs_poll", hybrid, poll),
        ("latency_auto_vs_poll", find("auto"), poll),
        ("latency_interrupt_vs_pread", interrupt, find("pread")),
        ("latency_softswap_vs_fio_interrupt", interrupt, fio_interrupt),
        ("latency_softswap_vs_fio_poll", poll, fio_poll),
    ] {
        log.ratio(key, one.zip(other).map(|(one, other)| one.ratio_to(other, p50_us)));
    }
    let cpu_us = |cell: Option<&Cell<Variant, Slice>>| {
        cell.map_or(f64::NAN, |cell| cell.median(|slice| slice.cpu_us))
    };
    let extra = |of| cpu_us(of) - cpu_us(interrupt);
    // If one of them uses no extra CPU time, as in short runs, there is no ratio.
    let share = Some(extra(hybrid) / extra(poll)).filter(|_| extra(hybrid).min(extra(poll)) > 0.0);
    log.ratio("extra_cpu_hybrid_vs_poll", share);
}
