//! What the bench of bounce buffers found.

use super::allocators;
use super::cells::{Alone, Cell, ORDERS};
use super::tasks::Ran;
use crate::measure::machine::{Disturbance, Machine};
use crate::measure::report::{Report, SCHEMA, lines, ratios_text};
use crate::measure::sample::{median, variation};
use serde::Serialize;
use serde_json::{Map, Value};

#[derive(Debug, Serialize)]
struct BounceRow {
    workload: &'static str,
    device: &'static str,
    order: &'static str,
    mib_per_s: f64,
    areas_visited: f64,
    contended_per_million: f64,
    cov: f64,
    count: usize,
}

#[derive(Debug, Serialize)]
struct AloneRow {
    variant: &'static str,
    threads: usize,
    ns: f64,
    cov: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct BounceOutcome {
    schema: u32,
    bench: &'static str,
    machine: Machine,
    disturbance: Disturbance,
    ratios: Map<String, Value>,
    rows: Vec<BounceRow>,
    alone: Vec<AloneRow>,
}

/// Puts the figures together.
pub(super) fn outcome(
    machine: Machine,
    disturbance: Disturbance,
    cells: &[Cell],
    alone: &[Alone],
) -> BounceOutcome {
    let mut ratios = Map::new();
    for triple in cells.chunks_exact(ORDERS.len()) {
        let suffix = if triple[0].is_ram { "" } else { "_device" };
        let name = triple[0].workload.name;
        // By rounds: what slows the machine down then slows both.
        let over = |one: &Cell, other: &Cell| {
            let pairs = one.rounds.iter().zip(&other.rounds);
            median(pairs.map(|(one, other)| one.mib_per_s / other.mib_per_s).collect())
        };
        let gain = over(&triple[0], &triple[1]);
        ratios.insert(format!("{name}_area_first_vs_pool_first{suffix}"), gain.into());
        let noise = over(&triple[0], &triple[2]);
        ratios.insert(format!("{name}_area_first_vs_itself{suffix}"), noise.into());
    }
    for triple in alone.chunks_exact(allocators::VARIANTS.len()) {
        let [ours, others @ ..] = triple else { continue };
        let threads = ours.threads;
        for other in others {
            let pairs = other.rounds.iter().zip(&ours.rounds);
            let times = median(pairs.map(|(other, ours)| other / ours).collect());
            ratios.insert(format!("take_{}_vs_softswap_t{threads}", other.variant), times.into());
        }
    }
    BounceOutcome {
        schema: SCHEMA,
        bench: "bounce",
        machine,
        disturbance,
        ratios,
        rows: cells.iter().map(row).collect(),
        alone: alone.iter().map(alone_row).collect(),
    }
}

fn row(cell: &Cell) -> BounceRow {
    let of = |figure: fn(&Ran) -> f64| cell.rounds.iter().map(figure).collect::<Vec<_>>();
    let speeds = of(|ran| ran.mib_per_s);
    BounceRow {
        workload: cell.workload.name,
        device: if cell.is_ram { "ram" } else { "file" },
        order: ORDERS[cell.variant].0,
        cov: variation(&speeds),
        mib_per_s: median(speeds),
        areas_visited: median(of(|ran| ran.areas_visited)),
        contended_per_million: median(of(|ran| ran.contended)),
        count: cell.rounds.len(),
    }
}

fn alone_row(alone: &Alone) -> AloneRow {
    let Alone { variant, threads, rounds } = alone;
    AloneRow { variant, threads: *threads, ns: median(rounds.clone()), cov: variation(rounds) }
}

impl Report for BounceOutcome {
    fn table(&self) -> String {
        let mut text = format!("{}\n\n", self.machine.line());
        text += &format!(
            "{:<10}{:<8}{:<18}{:>10}{:>8}{:>14}{:>9}\n",
            "workload", "device", "order", "MiB/s", "areas", "contended/1e6", "CoV"
        );
        for row in &self.rows {
            text += &format!(
                "{:<10}{:<8}{:<18}{:>10.0}{:>8.2}{:>14.1}{:>7.1} %\n",
                row.workload,
                row.device,
                row.order,
                row.mib_per_s,
                row.areas_visited,
                row.contended_per_million,
                row.cov * 100.0
            );
        }
        text += &format!("\n{:<10}{:>8}{:>10}{:>9}\n", "allocator", "threads", "ns", "CoV");
        for AloneRow { variant, threads, ns, cov } in &self.alone {
            text += &format!("{variant:<10}{threads:>8}{ns:>10.1}{:>7.1} %\n", cov * 100.0);
        }
        text + "\n" + &ratios_text(&self.ratios) + &lines(&[self.disturbance.to_string()])
    }
}
