//! What was found, as tables and as JSON.

use super::super::swap::library::task::{STEPS, Told};
use super::programs::Area;
use super::step::Step;
use super::store::Endured;
use crate::measure::machine::{Disturbance, Machine};
use crate::measure::report::{Report, SCHEMA, lines, ratios_text};
use crate::measure::sample::{median, variation};
use serde::Serialize;
use serde_json::{Map, Value};

/// Who moves pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Side {
    Store,
    Client,
    RedisBenchmark,
}

impl Side {
    pub(super) const ALL: [Side; 3] = [Side::Store, Side::Client, Side::RedisBenchmark];

    fn name(self) -> &'static str {
        match self {
            Side::Store => "store",
            Side::Client => "client",
            Side::RedisBenchmark => "redis_benchmark",
        }
    }
}

/// What one side took for one step, by rounds.
pub(super) struct Cell {
    pub(super) side: Side,
    pub(super) step: Step,
    pub(super) figures: Vec<f64>,
}

/// A program's steps with one area, by rounds.
pub(super) struct ProgramCell {
    pub(super) area: Area,
    pub(super) rounds: Vec<Told>,
}

#[derive(Debug, Serialize)]
struct Row {
    side: &'static str,
    step: &'static str,
    pages_per_s: Option<f64>,
    us: Option<f64>,
    cov: f64,
    count: usize,
}

#[derive(Debug, Serialize)]
struct ProgramRow {
    area: &'static str,
    step: &'static str,
    ns: f64,
    cov: f64,
    count: usize,
}

/// All that was measured.
pub(super) struct Found {
    pub(super) cells: Vec<Cell>,
    pub(super) programs: Vec<ProgramCell>,
    /// Of the servers' memory for each byte that is stored, copies counted.
    pub(super) server_bytes: Option<f64>,
    pub(super) loss: Option<Endured>,
    pub(super) servers: String,
    pub(super) notes: Vec<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct RemoteOutcome {
    schema: u32,
    bench: &'static str,
    machine: Machine,
    #[serde(flatten)]
    disturbance: Disturbance,
    servers: String,
    server_bytes_for_each_byte_stored: Option<f64>,
    loss_of_a_primary: Option<Endured>,
    ratios: Map<String, Value>,
    rows: Vec<Row>,
    program_rows: Vec<ProgramRow>,
    notes: Vec<String>,
}

impl RemoteOutcome {
    pub(super) fn new(found: Found, machine: Machine, disturbance: Disturbance) -> RemoteOutcome {
        let mut ratios = Map::new();
        for side in &Side::ALL[1..] {
            ratios.extend(store_over(&found.cells, *side));
        }
        ratios.extend(over_disk(&found.programs));
        RemoteOutcome {
            schema: SCHEMA,
            bench: "remote",
            machine,
            disturbance,
            servers: found.servers,
            server_bytes_for_each_byte_stored: found.server_bytes,
            loss_of_a_primary: found.loss,
            ratios,
            rows: found.cells.iter().map(row).collect(),
            program_rows: found.programs.iter().flat_map(program_rows).collect(),
            notes: found.notes,
        }
    }
}

fn row(cell: &Cell) -> Row {
    let middle = median(cell.figures.clone());
    let is_latency = cell.step.is_latency();
    Row {
        side: cell.side.name(),
        step: cell.step.name(),
        pages_per_s: (!is_latency).then_some(middle),
        us: is_latency.then_some(middle),
        cov: variation(&cell.figures),
        count: cell.figures.len(),
    }
}

/// The store's figures over another side's, round by round.
fn store_over(cells: &[Cell], side: Side) -> impl Iterator<Item = (String, Value)> {
    let find = |side: Side, step: Step| {
        cells.iter().find(move |cell| cell.side == side && cell.step == step)
    };
    Step::ALL.into_iter().filter_map(move |step| {
        let (store, other) = (find(Side::Store, step)?, find(side, step)?);
        let pairs = store.figures.iter().zip(&other.figures);
        let ratio = median(pairs.map(|(store, other)| store / other).collect());
        Some((format!("{}_store_vs_{}", step.name(), side.name()), ratio.into()))
    })
}

fn series(cell: &ProgramCell, step: usize) -> Vec<f64> {
    cell.rounds.iter().filter_map(|told| told[step]).collect()
}

fn program_rows(cell: &ProgramCell) -> impl Iterator<Item = ProgramRow> {
    STEPS.iter().enumerate().map(|(at, step)| {
        let ns = series(cell, at);
        let (cov, count) = (variation(&ns), ns.len());
        ProgramRow { area: cell.area.name(), step, ns: median(ns), cov, count }
    })
}

/// The time with each other area over that with the disk.
fn over_disk(programs: &[ProgramCell]) -> Vec<(String, Value)> {
    let Some(disk) = programs.iter().find(|cell| cell.area == Area::Disk) else {
        return Vec::new();
    };
    let others = programs.iter().filter(|cell| cell.area != Area::Disk);
    let ratio = |cell: &ProgramCell, (at, step): (usize, &str)| {
        let (ns, on_disk) = (series(cell, at), series(disk, at));
        let ratio = median(ns.iter().zip(&on_disk).map(|(ns, disk)| ns / disk).collect());
        (format!("{step}_{}_vs_disk", cell.area.name()), ratio.into())
    };
    let steps = || STEPS.iter().copied().enumerate();
    others.flat_map(|cell| steps().map(move |step| ratio(cell, step))).collect()
}

impl Report for RemoteOutcome {
    fn table(&self) -> String {
        let mut text = format!("{}\n{}\n\n", self.machine.line(), self.servers);
        text += &format!("{:<17}{:<17}{:>14}{:>9}\n", "side", "step", "", "CoV");
        for row in &self.rows {
            let figure = match (row.pages_per_s, row.us) {
                (Some(rate), _) => format!("{rate:.0} pages/s"),
                (None, us) => format!("{:.0} us", us.unwrap_or(f64::NAN)),
            };
            let cov = row.cov * 100.0;
            text += &format!("{:<17}{:<17}{figure:>14}{cov:>7.1} %\n", row.side, row.step);
        }
        if !self.program_rows.is_empty() {
            text += &format!("\n{:<18}{:<18}{:>12}{:>9}\n", "area", "step", "us", "CoV");
        }
        for row in &self.program_rows {
            let (us, cov) = (row.ns / 1000.0, row.cov * 100.0);
            text += &format!("{:<18}{:<18}{us:>12.2}{cov:>7.1} %\n", row.area, row.step);
        }
        text += "\n";
        if let Some(bytes) = self.server_bytes_for_each_byte_stored {
            text += &format!("bytes of server memory for each byte stored: {bytes:.3}\n");
        }
        if let Some(loss) = &self.loss_of_a_primary {
            text += &format!(
                "a primary killed: {} operations, {} failed; longest read {:.0} ms, write {:.0} \
                 ms\n",
                loss.operations, loss.failed, loss.longest_read_ms, loss.longest_write_ms
            );
        }
        let notes = ratios_text(&self.ratios) + &lines(&self.notes);
        format!("{text}{}\n\n{notes}", self.disturbance)
    }
}
