//! The result of `bench pool`.

use super::args::PoolArgs;
use super::found::{Cell, Found, SOFTSWAP, ZRAM};
use super::operations::{OPS, Op};
use super::waste::WasteRow;
use crate::measure::machine::{Disturbance, Machine};
use crate::measure::report::{Report, SCHEMA, lines, ratios_text};
use crate::measure::sample::{median, variation};
use serde::Serialize;
use serde_json::{Map, Value};

#[derive(Debug, Serialize)]
pub(super) struct PoolOutcome {
    schema: u32,
    bench: &'static str,
    pages: u32,
    objects: u32,
    rounds: u32,
    machine: Machine,
    #[serde(flatten)]
    disturbance: Disturbance,
    #[serde(flatten)]
    waste_percents: Map<String, Value>,
    ratios: Map<String, Value>,
    kinds: Vec<KindRow>,
    rows: Vec<OpRow>,
    waste: Vec<WasteRow>,
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct KindRow {
    kind: &'static str,
    packed_bytes: f64,
}

#[derive(Debug, Serialize)]
struct OpRow {
    variant: &'static str,
    kind: &'static str,
    threads: usize,
    op: &'static str,
    ops_per_s: f64,
    cov: f64,
    count: usize,
}

impl PoolOutcome {
    pub(super) fn new(found: Found, args: &PoolArgs) -> PoolOutcome {
        let Found { contents, cells, waste, disturbance, notes } = found;
        let ratios = ratios(&cells, &args.threads);
        let rows = cells.iter().flat_map(|cell| {
            let content = &contents[cell.content];
            OPS.map(|op| op_row(cell, op, content.name, content.pages.len()))
        });
        PoolOutcome {
            schema: SCHEMA,
            bench: "pool",
            pages: args.pages,
            objects: args.objects,
            rounds: args.rounds,
            machine: Machine::without_device(),
            disturbance,
            waste_percents: waste_percents(&waste),
            ratios,
            rows: rows.collect(),
            kinds: contents
                .iter()
                .map(|of| KindRow { kind: of.name, packed_bytes: of.mean_packed_bytes })
                .collect(),
            waste,
            notes,
        }
    }
}

fn op_row(cell: &Cell, op: Op, kind: &'static str, pages: usize) -> OpRow {
    let rates: Vec<f64> =
        cell.rounds.iter().map(|took| pages as f64 * 1e9 / took[op as usize] as f64).collect();
    OpRow {
        variant: cell.variant,
        kind,
        threads: cell.threads,
        op: op.name(),
        cov: variation(&rates),
        count: rates.len(),
        ops_per_s: median(rates),
    }
}

fn ratios(cells: &[Cell], threads: &[u32]) -> Map<String, Value> {
    let mut ratios = Map::new();
    for op in [Op::Load, Op::Store, Op::Invalidate] {
        let name = format!("{}_softswap_vs_zram", op.name());
        ratios.insert(name.clone(), over_all_kinds(cells, op, 1).into());
        for threads in threads {
            let ratio = over_all_kinds(cells, op, *threads as usize);
            ratios.insert(format!("{name}_t{threads}"), ratio.into());
        }
    }
    ratios
}

/// How many times as fast softswap was, by rounds: what slows the machine down
/// then slows both. None without both.
fn over_all_kinds(cells: &[Cell], op: Op, threads: usize) -> Option<f64> {
    let times = |variant: &str| {
        let mut sums: Vec<f64> = Vec::new();
        for cell in cells.iter().filter(|cell| cell.variant == variant && cell.threads == threads) {
            sums.resize(cell.rounds.len(), 0.0);
            for (sum, took) in sums.iter_mut().zip(&cell.rounds) {
                *sum += took[op as usize] as f64;
            }
        }
        sums
    };
    let (ours, theirs) = (times(SOFTSWAP), times(ZRAM));
    let rounds: Vec<f64> = theirs.iter().zip(&ours).map(|(theirs, ours)| theirs / ours).collect();
    (!rounds.is_empty()).then(|| median(rounds))
}

fn waste_percents(rows: &[WasteRow]) -> Map<String, Value> {
    let mut percents = Map::new();
    let states = || rows.iter().filter(|row| row.variant == SOFTSWAP).flat_map(WasteRow::full);
    let most = |percents: &mut dyn Iterator<Item = f64>| percents.reduce(f64::max);
    percents.insert("waste_percent".into(), most(&mut states().map(|(_, of)| of)).into());
    for state in ["filled", "refilled", "churned"] {
        let mut of_state = states().filter(|(name, _)| *name == state).map(|(_, of)| of);
        percents.insert(format!("waste_percent_{state}"), most(&mut of_state).into());
    }
    percents
}

impl Report for PoolOutcome {
    fn table(&self) -> String {
        let mut text = format!("{}\n{} rounds\n\n", self.machine.line(), self.rounds);
        let head = ["kind", "threads", "variant", "store/s", "load/s", "invalidate/s", "CoV"];
        text += &format!(
            "{:<13}{:<9}{:<10}{:>11}{:>9}{:>13}{:>9}{:>15}{:>9}\n",
            head[0], head[1], head[2], head[3], head[6], head[4], head[6], head[5], head[6]
        );
        for rows in self.rows.chunks(OPS.len()) {
            let of = &rows[0];
            text += &format!("{:<13}{:<9}{:<10}", of.kind, of.threads, of.variant);
            for (row, width) in rows.iter().zip([11, 13, 15]) {
                text += &format!("{:>width$.0}{:>7.1} %", row.ops_per_s, row.cov * 100.0);
            }
            text.push('\n');
        }
        text += &format!(
            "\n{:<13}{:<10}{:>10}{:>10}{:>11}{:>10}\n",
            "waste in %", "variant", "filled", "halved", "refilled", "churned"
        );
        for row in &self.waste {
            text += &format!(
                "{:<13}{:<10}{:>10.1}{:>10.1}{:>11.1}{:>10.1}\n",
                row.content,
                row.variant,
                row.filled_percent,
                row.halved_percent,
                row.refilled_percent,
                row.churned_percent
            );
        }
        text.push('\n');
        for KindRow { kind, packed_bytes } in &self.kinds {
            text += &format!("{kind}: packed to {packed_bytes:.0} bytes on average\n");
        }
        text += &format!("{}\n\n", self.disturbance);
        text + &ratios_text(&self.waste_percents) + &ratios_text(&self.ratios) + &lines(&self.notes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(variant: &'static str, content: usize, threads: usize, load_ns: &[u64]) -> Cell {
        let rounds = load_ns.iter().map(|ns| [1, *ns, 1]).collect();
        Cell { variant, content, threads, rounds }
    }

    #[test]
    fn ratios_are_of_all_kinds_together_and_by_rounds() {
        let cells = [
            cell(SOFTSWAP, 0, 1, &[100, 1000, 100]),
            cell(SOFTSWAP, 1, 1, &[300, 3000, 300]),
            cell(ZRAM, 0, 1, &[400, 4000, 200]),
            cell(ZRAM, 1, 1, &[400, 4000, 200]),
            cell(SOFTSWAP, 0, 2, &[100]),
        ];
        let ratios = ratios(&cells, &[1, 2]);
        assert_eq!(ratios["load_softswap_vs_zram"], 2.0);
        assert_eq!(ratios["load_softswap_vs_zram_t1"], 2.0);
        assert!(ratios["load_softswap_vs_zram_t2"].is_null(), "zram was not measured");
        assert!(ratios.contains_key("store_softswap_vs_zram_t2"));
    }

    #[test]
    fn waste_is_the_largest_of_softswaps_own_with_as_much_stored_as_at_first() {
        let row = |variant, filled_percent, churned_percent| WasteRow {
            variant,
            content: "text".into(),
            filled_percent,
            halved_percent: 50.0,
            refilled_percent: 3.0,
            churned_percent,
        };
        let rows = [row(SOFTSWAP, 5.0, 4.0), row(SOFTSWAP, 1.0, 6.0), row(ZRAM, 9.0, 9.0)];
        let percents = waste_percents(&rows);
        let get = |key: &str| percents[key].as_f64().unwrap();
        assert_eq!((get("waste_percent"), get("waste_percent_filled")), (6.0, 5.0));
        assert_eq!((get("waste_percent_refilled"), get("waste_percent_churned")), (3.0, 6.0));
    }
}
