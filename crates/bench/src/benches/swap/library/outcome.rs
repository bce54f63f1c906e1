//! What was found, as a table and as JSON.

use super::place::{Needs, OVER_LIMIT, Place};
use super::ready::Ready;
use super::task::{STEPS, Told};
use crate::measure::machine::{Disturbance, Machine};
use crate::measure::report::{Report, SCHEMA, lines, ratios_text};
use crate::measure::sample::{median, variation};
use serde::Serialize;
use serde_json::{Map, Value};

/// What one place took, by rounds.
pub(super) struct Cell {
    pub(super) ready: Ready,
    pub(super) rounds: Vec<Told>,
}

impl Cell {
    fn name(&self) -> &'static str {
        self.ready.place.name()
    }

    /// The ns for a page of each step that the place has, by rounds.
    fn series(&self) -> impl Iterator<Item = (&'static str, Vec<f64>)> {
        let of = |step: usize| self.rounds.iter().filter_map(move |told| told[step]).collect();
        let all = STEPS.iter().enumerate().map(move |(step, name)| (*name, of(step)));
        all.filter(|(_, ns): &(_, Vec<f64>)| !ns.is_empty())
    }

    /// Those of one step, none where the place does not have it.
    fn of(&self, step: &str) -> Vec<f64> {
        self.series().find(|(name, _)| *name == step).map_or(Vec::new(), |(_, ns)| ns)
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
                place: cell.name(),
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

/// Each place's times over the pool's, by rounds, as what slows the machine down slows both; and
/// those of arrays over the array of a pool.
fn ratios(cells: &[Cell]) -> Map<String, Value> {
    let find = |place| cells.iter().find(|cell| cell.ready.place == place);
    let mut ratios = Map::new();
    for other in cells {
        let ours = match other.ready.place.needs() {
            Needs::Python => Place::NumpyPool,
            _ => Place::Pool,
        };
        let Some(pool) = find(ours).filter(|pool| pool.name() != other.name()) else { continue };
        for (step, theirs) in other.series() {
            let pairs = theirs.iter().zip(pool.of(step)).map(|(theirs, ours)| theirs / ours);
            let name = format!("{step}_{}_vs_{}", other.name(), pool.name());
            ratios.insert(name, median(pairs.collect()).into());
        }
    }
    ratios
}

impl Report for LibraryOutcome {
    fn table(&self) -> String {
        let mut text = format!("{}\n\n", self.machine.line());
        text += &format!("{:<18}{:<14}{:>12}{:>9}\n", "step", "place", "ns a page", "CoV");
        for step in STEPS {
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
