//! The result of `bench swap`.

use super::args::SwapArgs;
use super::conditions::Conditions;
use super::latency::Latencies;
use super::pattern_run::{MemoryUse, PatternRun};
use super::plan::{Case, Side, who};
use super::program_run::ProgramRun;
use super::ratios;
use super::rounds::{Cell, How, ProgramCell, Workload, workloads};
use super::task::Took;
use crate::measure::machine::{Disturbance, Machine};
use crate::measure::report::{Report, lines, ratios_text};
use crate::measure::sample::{median, variation};
use serde::Serialize;
use serde_json::{Map, Value};
use softswap_cli::units;
use softswap_engine::base::stats::TIERS;
use softswap_sys::PAGE_SIZE;

/// Instead of figures.
const KILLED: &str = "no result";

/// Everything that was found.
pub(super) struct Found {
    pub(super) cells: Vec<Cell>,
    pub(super) programs: Vec<ProgramCell>,
    pub(super) disturbance: Disturbance,
    /// As they were meanwhile.
    pub(super) settings: Map<String, Value>,
    pub(super) notes: Vec<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct SwapOutcome {
    #[serde(flatten)]
    pub(super) conditions: Conditions,
    pub(super) settings: Map<String, Value>,
    /// Of softswap, with a budget that was learnt; with the first one there is no result.
    oom_kills: u64,
    /// Of the kernel's sides, in runs that were repeated or left out.
    kernel_oom_kills: u64,
    within_limits: bool,
    pub(super) ratios: Map<String, Value>,
    pub(super) rows: Vec<PatternRow>,
    pub(super) sessions: Vec<SessionRow>,
    pub(super) programs: Vec<ProgramRow>,
    /// softswap's faults, by where the page was.
    pub(super) faults: Vec<Distribution>,
    /// All touches of one thread at random places.
    pub(super) touches: Vec<Distribution>,
    pub(super) notes: Vec<String>,
}

/// One pattern on one side.
#[derive(Debug, Serialize)]
pub(super) struct PatternRow {
    pub(super) side: &'static str,
    pub(super) data: &'static str,
    pub(super) share_percent: u32,
    pub(super) pattern: &'static str,
    pub(super) threads: u32,
    pub(super) touches_per_s: f64,
    pub(super) cov: f64,
    cpu_us: f64,
    p50_us: f64,
    p99_us: f64,
    count: usize,
}

/// What the kernel said of one side's groups.
#[derive(Debug, Serialize)]
pub(super) struct SessionRow {
    pub(super) side: &'static str,
    pub(super) data: &'static str,
    pub(super) share_percent: u32,
    pub(super) limit_bytes: u64,
    /// softswap's budget within it.
    pub(super) memory_bytes: Option<u64>,
    pub(super) fill_mb_per_s: f64,
    pub(super) peak_bytes: Option<u64>,
    pub(super) oom_kills: u64,
    pub(super) outside_bytes: u64,
    /// In all: in the group and outside.
    pub(super) dram_bytes: Option<u64>,
    pub(super) swapped_bytes: u64,
    count: usize,
    /// In every round; the kernel may kill its own sides time and again.
    pub(super) came_through: bool,
}

#[derive(Debug, Serialize)]
pub(super) struct ProgramRow {
    pub(super) program: &'static str,
    /// `in_memory`: as it is.
    pub(super) side: &'static str,
    /// Whose DRAM softswap was given.
    pub(super) beside: Option<&'static str>,
    pub(super) share_percent: u32,
    pub(super) seconds: f64,
    pub(super) cpu_seconds: f64,
    pub(super) cov: f64,
    /// Over the program as it is; among the ratios in JSON.
    #[serde(skip)]
    pub(super) slowdown: f64,
    limit_bytes: Option<u64>,
    peak_bytes: Option<u64>,
    oom_kills: u64,
    pub(super) outside_bytes: u64,
    /// In all: in the group and outside; without a group, of the process.
    dram_bytes: Option<u64>,
    count: usize,
    pub(super) came_through: bool,
}

impl ProgramRow {
    /// The side, and whose DRAM it had if not its own.
    pub(super) fn label(&self) -> String {
        match self.beside {
            None => self.side.into(),
            Some(beside) => format!("{} ({beside})", self.side),
        }
    }
}

/// Latencies: the share that is over by each time.
#[derive(Debug, Serialize)]
pub(super) struct Distribution {
    pub(super) name: String,
    pub(super) share_percent: u32,
    pub(super) us: Vec<f64>,
    pub(super) share: Vec<f64>,
}

impl Distribution {
    fn new(name: String, share_percent: u32, latencies: &Latencies) -> Distribution {
        let (us, share) = latencies.distribution().into_iter().unzip();
        Distribution { name, share_percent, us, share }
    }
}

impl SwapOutcome {
    pub(super) fn new(found: Found, args: &SwapArgs, machine: Machine) -> SwapOutcome {
        let Found { cells, programs, disturbance, settings, notes } = found;
        let workloads = workloads(args);
        let killed = |ours: bool| {
            let is_ours = |how: How| matches!(how, How::Limited { side: Side::Softswap, .. });
            let of_cells = cells.iter().map(|cell| (cell.case.side == Side::Softswap, cell.kills));
            let all = of_cells.chain(programs.iter().map(|cell| (is_ours(cell.how), cell.kills)));
            all.filter(|(is, _)| *is == ours).map(|(_, kills)| kills).sum()
        };
        let (oom_kills, kernel_oom_kills) = (killed(true), killed(false));
        // What did not come through is told of, and compared with nothing.
        let rounds = args.rounds() as usize;
        let sessions: Vec<_> = cells.iter().map(|cell| session_row(cell, args)).collect();
        let rows_of = |cell| program_row(cell, &programs, rounds);
        let program_rows: Vec<_> = programs.iter().map(rows_of).collect();
        let cells: Vec<_> = cells.into_iter().filter(|cell| cell.runs.len() == rounds).collect();
        let programs: Vec<_> = programs.iter().filter(|cell| cell.runs.len() == rounds).collect();
        let mut ratios = ratios::of_patterns(&cells, &workloads);
        ratios.extend(ratios::of_programs(&programs));
        let notes = notes.into_iter().chain(short_warm_ups(&cells, &workloads)).collect();
        let within = |peak: Option<u64>, limit: u64| peak.is_none_or(|peak| peak <= limit);
        SwapOutcome {
            conditions: Conditions::of(args, machine, disturbance),
            settings,
            oom_kills,
            kernel_oom_kills,
            within_limits: sessions.iter().all(|row| within(row.peak_bytes, row.limit_bytes))
                && program_rows
                    .iter()
                    .all(|row| within(row.peak_bytes, row.limit_bytes.unwrap_or(u64::MAX))),
            ratios,
            rows: cells.iter().flat_map(|cell| pattern_rows(cell, &workloads)).collect(),
            sessions,
            programs: program_rows,
            faults: cells.iter().flat_map(faults_of).collect(),
            touches: cells.iter().filter_map(|cell| touches_of(cell, &workloads)).collect(),
            notes,
        }
    }
}

fn pattern_rows(cell: &Cell, workloads: &[Workload]) -> Vec<PatternRow> {
    let row = |(at, workload): (usize, &Workload)| {
        let of = |figure: &dyn Fn(&Took) -> f64| {
            cell.runs.iter().map(|ran| figure(&ran.took[at])).collect::<Vec<_>>()
        };
        let rates = of(&Took::touches_per_s);
        PatternRow {
            side: cell.case.who(),
            data: cell.case.data.name(),
            share_percent: cell.case.share_percent,
            pattern: workload.pattern.name(),
            threads: workload.threads,
            cov: variation(&rates),
            touches_per_s: median(rates),
            cpu_us: median(of(&|took| took.cpu_seconds * 1e6 / took.touches as f64)),
            p50_us: median(of(&|took| took.latencies.quantile_us(0.5))),
            p99_us: median(of(&|took| took.latencies.quantile_us(0.99))),
            count: cell.runs.len(),
        }
    };
    workloads.iter().enumerate().map(row).collect()
}

/// Phases that were measured before as many pages had been touched as fit.
fn short_warm_ups(cells: &[Cell], workloads: &[Workload]) -> Option<String> {
    let short_of = |cell: &Cell| {
        let short = |ran: &PatternRun| {
            let each = (ran.took.len() / ran.memory_uses.len().max(1)).max(1);
            let in_process = |(took, room): (&[Took], &MemoryUse)| {
                let wanted = room.limits.limit_bytes / PAGE_SIZE as u64;
                took.iter().filter(|took| took.warm_touches < wanted).count()
            };
            ran.took.chunks(each).zip(&ran.memory_uses).map(in_process).sum::<usize>()
        };
        cell.runs.iter().map(short).sum::<usize>()
    };
    let short: usize = cells.iter().map(short_of).sum();
    let all = cells.iter().map(|cell| cell.runs.len()).sum::<usize>() * workloads.len();
    (short > 0).then(|| {
        format!(
            "{short} of {all} phases were measured before as many pages had been touched as fit; \
             longer --seconds let them"
        )
    })
}

fn session_row(cell: &Cell, args: &SwapArgs) -> SessionRow {
    let Case { side, data, share_percent, .. } = cell.case;
    let asked_bytes = args.working_set() * u64::from(share_percent) / 100;
    let mb = args.working_set() as f64 / 1e6;
    let memory_uses = || cell.runs.iter().flat_map(|ran| &ran.memory_uses);
    let most = |figure: fn(&MemoryUse) -> u64| memory_uses().map(figure).max();
    let limit_bytes = most(|room| room.limits.limit_bytes).unwrap_or(asked_bytes);
    SessionRow {
        side: cell.case.who(),
        data: data.name(),
        share_percent,
        limit_bytes,
        memory_bytes: most(|room| room.limits.memory_bytes).filter(|_| side == Side::Softswap),
        fill_mb_per_s: median(cell.runs.iter().map(|ran| mb / ran.fill_seconds()).collect()),
        peak_bytes: memory_uses().filter_map(|room| room.bounds.peak_bytes).max(),
        oom_kills: cell.kills,
        outside_bytes: most(|room| room.bounds.outside_bytes).unwrap_or(0),
        dram_bytes: memory_uses().filter_map(MemoryUse::dram_bytes).max(),
        swapped_bytes: most(|room| room.bounds.swapped_bytes).unwrap_or(0),
        count: cell.runs.len(),
        came_through: cell.runs.len() == args.rounds() as usize,
    }
}

fn program_row(cell: &ProgramCell, all: &[ProgramCell], rounds: usize) -> ProgramRow {
    let plain = all.iter().find(|other| other.name == cell.name && other.how == How::Plain);
    let (side, share_percent, beside) = match cell.how {
        How::Plain => ("in_memory", 100, None),
        How::Roomy => (Side::Softswap.name(), 100, None),
        How::Limited { side, share_percent, beside } => (who(side, beside), share_percent, beside),
    };
    let seconds: Vec<f64> = cell.runs.iter().map(|ran| ran.seconds).collect();
    let dram = |ran: &ProgramRun| {
        let in_group = ran.bounds.peak_bytes.unwrap_or(ran.peak_bytes);
        in_group + ran.bounds.outside_bytes
    };
    ProgramRow {
        program: cell.name,
        side,
        beside: beside.map(Side::name),
        share_percent,
        cov: variation(&seconds),
        seconds: median(seconds),
        cpu_seconds: median(cell.runs.iter().map(|ran| ran.cpu_seconds).collect()),
        slowdown: plain.map_or(f64::NAN, |plain| ratios::over(cell, plain)),
        limit_bytes: cell
            .runs
            .iter()
            .filter_map(|ran| Some(ran.limits?.limit_bytes))
            .max()
            .or(cell.limit_bytes),
        peak_bytes: cell.runs.iter().filter_map(|ran| ran.bounds.peak_bytes).max(),
        oom_kills: cell.kills,
        outside_bytes: cell.runs.iter().map(|ran| ran.bounds.outside_bytes).max().unwrap_or(0),
        dram_bytes: cell.runs.iter().map(dram).max(),
        count: cell.runs.len(),
        came_through: cell.runs.len() == rounds,
    }
}

fn faults_of(cell: &Cell) -> Vec<Distribution> {
    let of_tier = |tier| {
        let mut all = Latencies::new();
        let of_tier = cell.runs.iter().flat_map(|ran| &ran.tiers).filter(|(of, _)| *of == tier);
        of_tier.for_each(|(_, latencies)| all.add_all(latencies));
        all
    };
    let (data, share_percent) = (cell.case.data.name(), cell.case.share_percent);
    let more = if cell.case.beside.is_some() { ", same DRAM" } else { "" };
    let tiers = TIERS.into_iter().map(|tier| (tier, of_tier(tier)));
    tiers
        .filter(|(_, latencies)| latencies.count() > 0)
        .map(|(tier, latencies)| {
            Distribution::new(format!("{} ({data}{more})", tier.name()), share_percent, &latencies)
        })
        .collect()
}

/// Of the first pattern with the fewest threads.
fn touches_of(cell: &Cell, workloads: &[Workload]) -> Option<Distribution> {
    workloads.first()?;
    let mut all = Latencies::new();
    cell.runs.iter().for_each(|ran| all.add_all(&ran.took[0].latencies));
    let Case { data, share_percent, .. } = cell.case;
    let name = format!("{} ({})", cell.case.who(), data.name());
    Some(Distribution::new(name, share_percent, &all))
}

impl Report for SwapOutcome {
    fn table(&self) -> String {
        let mut text = self.conditions.heading("rounds");
        text += &(pattern_table(&self.rows) + &session_table(&self.sessions));
        text += &program_table(&self.programs);
        text += &format!("\n{}\n", self.conditions.disturbance);
        text += &format!(
            "killed for outgrowing a control group: softswap {} times, the kernel's sides {} times\n\n",
            self.oom_kills, self.kernel_oom_kills
        );
        text + &ratios_text(&self.ratios) + &lines(&self.notes)
    }
}

fn pattern_table(rows: &[PatternRow]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut text = format!(
        "\n{:<20}{:<15}{:>6} {:<17}{:>3}{:>12}{:>8}{:>9}{:>9}{:>10}\n",
        "side", "data", "fits", "pattern", "t", "touches/s", "CoV", "CPU us", "p50 us", "p99 us"
    );
    for row in rows {
        text += &format!(
            "{:<20}{:<15}{:>4} % {:<17}{:>3}{:>12}{:>6.1} %{:>9.2}{:>9.2}{:>10.1}\n",
            row.side,
            row.data,
            row.share_percent,
            row.pattern,
            row.threads,
            units::count(row.touches_per_s as u64),
            row.cov * 100.0,
            row.cpu_us,
            row.p50_us,
            row.p99_us
        );
    }
    text
}

/// Bytes, or `-` where nobody counted.
pub(super) fn shown(bytes: Option<u64>) -> String {
    bytes.map_or("-".into(), units::bytes)
}

fn session_table(rows: &[SessionRow]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut text = format!(
        "\n{:<20}{:<15}{:>6}{:>11}{:>11}{:>11}{:>7}{:>11}{:>13}{:>11}\n",
        "side",
        "data",
        "fits",
        "limit",
        "peak",
        "budget",
        "kills",
        "outside",
        "DRAM in all",
        "fill MB/s"
    );
    for row in rows {
        text += &format!(
            "{:<20}{:<15}{:>4} %{:>11}{:>11}{:>11}{:>7}{:>11}{:>13}{:>11}\n",
            row.side,
            row.data,
            row.share_percent,
            units::bytes(row.limit_bytes),
            shown(row.peak_bytes),
            shown(row.memory_bytes),
            row.oom_kills,
            units::bytes(row.outside_bytes),
            shown(row.dram_bytes),
            if row.came_through { format!("{:.0}", row.fill_mb_per_s) } else { KILLED.into() }
        );
    }
    text
}

fn program_table(rows: &[ProgramRow]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut text = format!(
        "\n{:<14}{:<34}{:>6}{:>9}{:>8}{:>9}{:>10}{:>11}{:>11}{:>11}{:>13}\n",
        "program",
        "side",
        "fits",
        "s",
        "CoV",
        "CPU s",
        "slowdown",
        "limit",
        "peak",
        "outside",
        "DRAM in all"
    );
    for row in rows {
        let times = if row.came_through {
            format!(
                "{:>9.2}{:>6.1} %{:>9.2}{:>10.2}",
                row.seconds,
                row.cov * 100.0,
                row.cpu_seconds,
                row.slowdown
            )
        } else {
            format!("{:>9}{:27}", KILLED, "")
        };
        text += &format!(
            "{:<14}{:<34}{:>4} %{times}{:>11}{:>11}{:>11}{:>13}\n",
            row.program,
            row.label(),
            row.share_percent,
            shown(row.limit_bytes),
            shown(row.peak_bytes),
            units::bytes(row.outside_bytes),
            shown(row.dram_bytes)
        );
    }
    text
}
