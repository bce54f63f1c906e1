//! What was found, as a table and as JSON.

use super::task::{OVER_LIMIT, Place, STEPS, Told};
use crate::measure::machine::{Disturbance, Machine};
use crate::measure::report::{Report, SCHEMA, lines, ratios_text};
use crate::measure::sample::{median, variation};
use serde::Serialize;
use serde_json::{Map, Value};

/// What one place took, by rounds.
pub(super) struct Cell {
    pub(super) place: Place,
    pub(super) rounds: Vec<Told>,
}

impl Cell {
    /// The ns for a page, by rounds: of filling, then of each step.
    fn series(&self) -> impl Iterator<Item = (&'static str, Vec<f64>)> {
        let of = |step: usize| self.rounds.iter().map(|told| told.steps_ns[step]).collect();
        let fill = self.rounds.iter().map(|told| told.fill_ns).collect();
        let steps = STEPS.iter().enumerate().map(move |(step, name)| (*name, of(step)));
        std::iter::once(("fill", fill)).chain(steps.collect::<Vec<_>>())
    }
}

#[derive(Debug, Serialize)]
struct Row {
    place: &'static str,
    step: &'static str,
    ns: f64,
    cov: f64,
    count: usize,
}

#[derive(Debug, Serialize)]
pub(super) struct LibraryOutcome {
    schema: u32,
    bench: &'static str,
    machine: Machine,
    limit_bytes: u64,
    region_bytes: u64,
    #[serde(flatten)]
    disturbance: Disturbance,
    ratios: Map<String, Value>,
    rows: Vec<Row>,
    notes: Vec<String>,
}

impl LibraryOutcome {
    pub(super) fn new(
        cells: &[Cell],
        limit_bytes: u64,
        machine: Machine,
        disturbance: Disturbance,
        notes: Vec<String>,
    ) -> LibraryOutcome {
        let rows = cells.iter().flat_map(|cell| {
            cell.series().map(|(step, ns)| Row {
                place: cell.place.name(),
                step,
                cov: variation(&ns),
                count: ns.len(),
                ns: median(ns),
            })
        });
        LibraryOutcome {
            schema: SCHEMA,
            bench: "library",
            machine,
            limit_bytes,
            region_bytes: limit_bytes * OVER_LIMIT,
            disturbance,
            ratios: ratios(cells),
            rows: rows.collect(),
            notes,
        }
    }
}

/// Each place's times over the pool's: by rounds, as what slows the machine down slows both.
fn ratios(cells: &[Cell]) -> Map<String, Value> {
    let mut ratios = Map::new();
    let Some(pool) = cells.iter().find(|cell| cell.place == Place::Pool) else { return ratios };
    for other in cells.iter().filter(|cell| cell.place != Place::Pool) {
        for ((step, ours), (_, theirs)) in pool.series().zip(other.series()) {
            let pairs = theirs.iter().zip(&ours).map(|(theirs, ours)| theirs / ours);
            let name = format!("{step}_pool_ahead_of_{}", other.place.name());
            ratios.insert(name, median(pairs.collect()).into());
        }
    }
    ratios
}

impl Report for LibraryOutcome {
    fn table(&self) -> String {
        let mut text = format!("{}\n\n", self.machine.line());
        text += &format!("{:<18}{:<14}{:>12}{:>9}\n", "step", "place", "ns a page", "CoV");
        for step in std::iter::once("fill").chain(STEPS) {
            for row in self.rows.iter().filter(|row| row.step == step) {
                let (ns, cov) = (row.ns, row.cov * 100.0);
                text += &format!("{step:<18}{:<14}{ns:>12.0}{cov:>7.1} %\n", row.place);
            }
        }
        format!(
            "{text}\n{}\n\n{}",
            self.disturbance,
            ratios_text(&self.ratios) + &lines(&self.notes)
        )
    }
}
