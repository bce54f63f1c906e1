//! The result of `bench extents`.

use super::args::ExtentsArgs;
use super::measured::{Cell, Measured, OfFile, OfLayout};
use super::tasks::{Direction, SWAPPERS, Swapper};
use crate::extent_maps::layout::Lengths;
use crate::extent_maps::lookups::{LookupRow, QueryOrder, lookup_head, lookup_line};
use crate::extent_maps::maps::MapKind;
use crate::measure::machine::{Disturbance, Machine};
use crate::measure::report::{Report, SCHEMA, lines, ratios_text};
use serde::Serialize;
use serde_json::{Map, Value};
use softswap_cli::units;

#[derive(Debug, Serialize)]
pub(super) struct ExtentsOutcome {
    schema: u32,
    bench: &'static str,
    seconds: f64,
    rounds: u32,
    machine: Machine,
    #[serde(flatten)]
    disturbance: Disturbance,
    #[serde(flatten)]
    bytes_per_extent: Map<String, Value>,
    ratios: Map<String, Value>,
    tasks: Vec<TaskRow>,
    sweep: Vec<TaskRow>,
    lookups: Vec<LayoutRow>,
    file: Option<FileOutcome>,
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct TaskRow {
    variant: &'static str,
    tasks: usize,
    extents: usize,
    lengths: &'static str,
    swapout_kbps: f64,
    swapout_lookup_share: f64,
    swapout_cov: f64,
    swapin_kbps: f64,
    swapin_lookup_share: f64,
    swapin_cov: f64,
}

#[derive(Debug, Serialize)]
struct LayoutRow {
    extents: usize,
    lengths: &'static str,
    #[serde(flatten)]
    row: LookupRow,
}

#[derive(Debug, Serialize)]
struct FileOutcome {
    extents: usize,
    bytes: u64,
    lookups: Vec<LookupRow>,
}

const NONE: Swapper = None;
const LIST: Swapper = Some(MapKind::List);
const RBTREE: Swapper = Some(MapKind::RbTree);
const SOFTSWAP: Swapper = Some(MapKind::Softswap);

impl ExtentsOutcome {
    pub(super) fn new(
        args: &ExtentsArgs,
        measured: Measured,
        machine: Machine,
        disturbance: Disturbance,
    ) -> ExtentsOutcome {
        let (ratios, bytes_per_extent) = (ratios(&measured), bytes_per_extent(&measured));
        let rows = |cells: &[Cell]| cells.iter().flat_map(task_rows).collect();
        let (tasks, sweep) = (rows(&measured.table), rows(&measured.sweep));
        let (file, notes) = match measured.file {
            Ok(OfFile { extents, bytes, rows, .. }) => {
                (Some(FileOutcome { extents, bytes, lookups: rows }), Vec::new())
            }
            Err(why) => (None, vec![why]),
        };
        ExtentsOutcome {
            schema: SCHEMA,
            bench: "extents",
            seconds: args.seconds.as_secs_f64(),
            rounds: args.rounds,
            machine,
            disturbance,
            bytes_per_extent,
            ratios,
            tasks,
            sweep,
            lookups: measured.layouts.into_iter().flat_map(layout_rows).collect(),
            file,
            notes,
        }
    }
}

fn task_rows(cell: &Cell) -> Vec<TaskRow> {
    let of = &cell.throughputs;
    let row = |swapper: Swapper| TaskRow {
        variant: swapper.map_or("none", MapKind::name),
        tasks: cell.tasks,
        extents: cell.extents,
        lengths: cell.lengths.name(),
        swapout_kbps: of.kbps(swapper, Direction::Out),
        swapout_lookup_share: of.lookup_share(swapper, Direction::Out),
        swapout_cov: of.cov(swapper, Direction::Out),
        swapin_kbps: of.kbps(swapper, Direction::In),
        swapin_lookup_share: of.lookup_share(swapper, Direction::In),
        swapin_cov: of.cov(swapper, Direction::In),
    };
    SWAPPERS.into_iter().map(row).collect()
}

fn layout_rows(layout: OfLayout) -> Vec<LayoutRow> {
    let (extents, lengths) = (layout.extents, layout.lengths.name());
    layout.rows.into_iter().map(|row| LayoutRow { extents, lengths, row }).collect()
}

/// What a ratio's name says of the lengths, where they are not equal.
fn suffix(lengths: Lengths) -> String {
    match lengths {
        Lengths::Equal => String::new(),
        other => format!("_{}", other.name()),
    }
}

const DIRECTIONS: [(&str, Direction); 2] = [("swapout", Direction::Out), ("swapin", Direction::In)];

fn ratios(measured: &Measured) -> Map<String, Value> {
    let mut ratios = Map::new();
    for cell in &measured.table {
        for (name, direction) in DIRECTIONS {
            for (rival, swapper) in [("list", LIST), ("rbtree", RBTREE), ("none", NONE)] {
                let of = &cell.throughputs;
                let ratio = of.over(SOFTSWAP, of, swapper, direction);
                ratios.insert(format!("{name}_softswap_vs_{rival}_{}", cell.tasks), ratio.into());
            }
        }
    }
    sweep_ratios(&measured.sweep, &mut ratios);
    for layout in &measured.layouts {
        let (count, suffix) = (layout.extents, suffix(layout.lengths));
        for rival in [MapKind::List, MapKind::RbTree] {
            for (order, by) in [(QueryOrder::Random, ""), (QueryOrder::RandomExtent, "_by_extent")]
            {
                let ratio = layout.lookups.over(rival, MapKind::Softswap, order);
                let name = format!("lookup_{}_vs_softswap_{count}{suffix}{by}", rival.name());
                ratios.insert(name, ratio.into());
            }
        }
    }
    if let Ok(file) = &measured.file {
        for rival in [MapKind::List, MapKind::RbTree] {
            let ratio = file.lookups.over(rival, MapKind::Softswap, QueryOrder::Random);
            ratios.insert(format!("lookup_{}_vs_softswap_file", rival.name()), ratio.into());
        }
    }
    ratios
}

/// The most of all layouts.
fn bytes_per_extent(measured: &Measured) -> Map<String, Value> {
    let mut all = Map::new();
    for variant in MapKind::ALL {
        let rows = measured.layouts.iter().flat_map(|layout| &layout.rows);
        let most = rows
            .filter(|row| row.variant == variant.name())
            .fold(0.0, |most, row| row.bytes_per_extent.max(most));
        let name = match variant {
            MapKind::Softswap => "bytes_per_extent".to_string(),
            rival => format!("bytes_per_extent_{}", rival.name()),
        };
        all.insert(name, most.into());
    }
    all
}

/// Throughput with the most extents over that with the fewest.
fn sweep_ratios(sweep: &[Cell], ratios: &mut Map<String, Value>) {
    for lengths in Lengths::ALL {
        let cells = || sweep.iter().filter(|cell| cell.lengths == lengths);
        let fewest = cells().min_by_key(|cell| cell.extents);
        let most = cells().max_by_key(|cell| cell.extents);
        let (Some(fewest), Some(most)) = (fewest, most) else { continue };
        for (name, direction) in DIRECTIONS {
            let ratio = most.throughputs.over(SOFTSWAP, &fewest.throughputs, SOFTSWAP, direction);
            let (from, to, suffix) = (fewest.extents, most.extents, suffix(lengths));
            ratios.insert(format!("{name}_softswap_{to}_vs_{from}{suffix}"), ratio.into());
        }
    }
}

impl Report for ExtentsOutcome {
    fn table(&self) -> String {
        let mut text = format!("{}\n{} rounds\n\n", self.machine.line(), self.rounds);
        text += &task_table(&self.tasks);
        text += "\n";
        text += &task_table(&self.sweep);
        text += &format!("\n{:<9}{:<10}{}", "extents", "lengths", lookup_head());
        for LayoutRow { extents, lengths, row } in &self.lookups {
            text += &format!("{extents:<9}{lengths:<10}{}", lookup_line(row));
        }
        if let Some(file) = &self.file {
            text += &format!(
                "\nA file of {} in {} extents\n\n{}",
                units::bytes(file.bytes),
                units::count(file.extents as u64),
                lookup_head()
            );
            text += &file.lookups.iter().map(lookup_line).collect::<String>();
        }
        text += &format!("\n{}\n\n", self.disturbance);
        text + &ratios_text(&self.ratios) + &lines(&self.notes)
    }
}

fn task_table(rows: &[TaskRow]) -> String {
    let mut text = format!(
        "{:<9}{:<10}{:<7}{:<10}{:>12}{:>9}{:>8}{:>12}{:>9}{:>8}\n",
        "extents",
        "lengths",
        "tasks",
        "variant",
        "out KB/s",
        "look-up",
        "CoV",
        "in KB/s",
        "look-up",
        "CoV"
    );
    for row in rows {
        text += &format!(
            "{:<9}{:<10}{:<7}{:<10}{:>12.0}{:>7.1} %{:>6.1} %{:>12.0}{:>7.1} %{:>6.1} %\n",
            row.extents,
            row.lengths,
            row.tasks,
            row.variant,
            row.swapout_kbps,
            row.swapout_lookup_share * 100.0,
            row.swapout_cov * 100.0,
            row.swapin_kbps,
            row.swapin_lookup_share * 100.0,
            row.swapin_cov * 100.0
        );
    }
    text
}
