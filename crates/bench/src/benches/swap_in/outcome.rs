//! The result of `bench swap-in`.

use super::args::SwapInArgs;
use super::task_run::TaskRun;
use crate::measure::machine::{Disturbance, Machine};
use crate::measure::poll_counts::PollCounts;
use crate::measure::report::{Report, SCHEMA, lines, ratios_text};
use crate::measure::sample::{median, variation};
use serde::Serialize;
use serde_json::{Map, Value};
use softswap_cli::units;
use softswap_engine::base::stats::{Counter, Tier};
use softswap_engine::store::io::poll::mode::Mode;

/// One way of waiting with one number of threads, over all rounds.
pub(super) struct Cell {
    pub(super) mode: Mode,
    pub(super) threads: u32,
    pub(super) runs: Vec<TaskRun>,
}

#[derive(Debug, Serialize)]
pub(super) struct SwapInOutcome {
    schema: u32,
    bench: &'static str,
    memory_bytes: u64,
    region_bytes: u64,
    touches: u32,
    rounds: u32,
    machine: Machine,
    io_uring: bool,
    direct: bool,
    /// Polled reads asked the device itself (IOPOLL).
    device_polling: bool,
    #[serde(flatten)]
    disturbance: Disturbance,
    ratios: Map<String, Value>,
    rows: Vec<SwapInRow>,
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct SwapInRow {
    variant: String,
    mode: &'static str,
    threads: u32,
    seconds: f64,
    cpu_seconds: f64,
    fault_p50_us: f64,
    fault_p99_us: f64,
    /// Touches that found their page on disk.
    faults: u64,
    #[serde(flatten)]
    counts: PollCounts,
    /// Of the reads of single pages.
    polled_share: Option<f64>,
    /// Of those that were polled for.
    hit_share: Option<f64>,
    direct_reclaims: u64,
    pages_written: u64,
    /// Of the seconds.
    cov: f64,
    count: usize,
}

impl SwapInOutcome {
    pub(super) fn new(
        cells: &[Cell],
        args: &SwapInArgs,
        region_bytes: u64,
        machine: Machine,
        disturbance: Disturbance,
    ) -> SwapInOutcome {
        let runs = || cells.iter().flat_map(|cell| &cell.runs);
        let all = |fact: fn(&TaskRun) -> bool| runs().all(fact);
        let mut notes = Vec::new();
        if !all(|ran| ran.facts.direct) {
            notes.push("no O_DIRECT here: reads come from the page cache".into());
        }
        if !all(|ran| ran.facts.io_uring) {
            notes.push("no io_uring here: every read waits by interrupt".into());
        }
        SwapInOutcome {
            schema: SCHEMA,
            bench: "swap-in",
            memory_bytes: args.memory,
            region_bytes,
            touches: args.touches,
            rounds: args.rounds,
            machine,
            io_uring: all(|ran| ran.facts.io_uring),
            direct: all(|ran| ran.facts.direct),
            device_polling: all(|ran| ran.facts.device_polling),
            disturbance,
            ratios: ratios(cells),
            rows: cells.iter().map(row).collect(),
            notes,
        }
    }
}

fn row(cell: &Cell) -> SwapInRow {
    let of = |figure: &dyn Fn(&TaskRun) -> f64| cell.runs.iter().map(figure).collect::<Vec<_>>();
    let quantile_us = |quantile: f64| {
        let us = |ran: &TaskRun| {
            let ns = ran.stats.fault_quantile_ns(Tier::Disk, quantile);
            ns.map_or(f64::NAN, |ns| ns as f64 / 1000.0)
        };
        median(of(&us))
    };
    let sum = |counter| cell.runs.iter().map(|ran| ran.stats.get(counter)).sum();
    let counts: PollCounts = cell.runs.iter().map(|ran| PollCounts::of(&ran.stats)).sum();
    let seconds = of(&|ran| ran.took.seconds);
    let share = |part: u64, whole: u64| (whole > 0).then(|| part as f64 / whole as f64);
    SwapInRow {
        variant: format!("{}_t{}", cell.mode, cell.threads),
        mode: cell.mode.name(),
        threads: cell.threads,
        cov: variation(&seconds),
        seconds: median(seconds),
        cpu_seconds: median(of(&|ran| ran.took.cpu_seconds)),
        fault_p50_us: quantile_us(0.5),
        fault_p99_us: quantile_us(0.99),
        faults: cell.runs.iter().map(|ran| ran.stats.faults(Tier::Disk)).sum(),
        polled_share: share(counts.polled, counts.considered),
        hit_share: share(counts.hit, counts.polled),
        counts,
        direct_reclaims: sum(Counter::DirectReclaims),
        pages_written: sum(Counter::PagesWritten),
        count: cell.runs.len(),
    }
}

fn ratios(cells: &[Cell]) -> Map<String, Value> {
    let mut ratios = Map::new();
    for cell in cells.iter().filter(|cell| cell.mode != Mode::Interrupt) {
        let threads = cell.threads;
        let interrupt =
            cells.iter().find(|other| other.mode == Mode::Interrupt && other.threads == threads);
        let Some(interrupt) = interrupt else { continue };
        // By rounds: what slows the machine down then slows both.
        let over = |figure: fn(&TaskRun) -> f64| {
            let pairs = interrupt.runs.iter().zip(&cell.runs);
            median(pairs.map(|(by, ran)| figure(by) / figure(ran)).collect())
        };
        let mode = cell.mode;
        let time = over(|ran| ran.took.seconds);
        ratios.insert(format!("swapin_interrupt_vs_{mode}_t{threads}"), time.into());
        let cpu = 1.0 / over(|ran| ran.took.cpu_seconds);
        ratios.insert(format!("swapin_cpu_{mode}_vs_interrupt_t{threads}"), cpu.into());
    }
    ratios
}

impl Report for SwapInOutcome {
    fn table(&self) -> String {
        let mut text = format!(
            "{}\n{} within {}, {} touches, {} rounds\n\n",
            self.machine.line(),
            units::bytes(self.region_bytes),
            units::bytes(self.memory_bytes),
            units::count(self.touches.into()),
            self.rounds
        );
        text += &format!(
            "{:<14}{:>8}{:>8}{:>8}{:>10}{:>10}{:>10}{:>9}{:>9}\n",
            "variant", "s", "CoV", "CPU s", "p50 us", "p99 us", "faults", "polled", "found"
        );
        let percent = |share: Option<f64>| {
            share.map_or("-".into(), |share| format!("{:.1} %", share * 100.0))
        };
        for row in &self.rows {
            text += &format!(
                "{:<14}{:>8.2}{:>6.1} %{:>8.2}{:>10.1}{:>10.1}{:>10}{:>9}{:>9}\n",
                row.variant,
                row.seconds,
                row.cov * 100.0,
                row.cpu_seconds,
                row.fault_p50_us,
                row.fault_p99_us,
                row.faults,
                percent(row.polled_share),
                percent(row.hit_share)
            );
        }
        text += &format!("\n{}\n\n", self.disturbance);
        text + &ratios_text(&self.ratios) + &lines(&self.notes)
    }
}
