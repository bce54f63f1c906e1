//! What the policies' benchmark found, as a table and as JSON.

use super::engine_policy::Found;
use super::simulated::SimulatedRow;
use super::trace::Trace;
use crate::measure::machine::Machine;
use crate::measure::report::{Report, SCHEMA, ratios_text};
use crate::measure::sample::geometric_mean;
use serde::Serialize;
use serde_json::{Map, Value};
use softswap_cli::units;

/// The others that softswap's misses are compared with.
const RIVALS: [(&str, &str); 5] = [
    ("fifo", "fifo"),
    ("clock", "clock"),
    ("lru", "lru"),
    ("s3_fifo", "s3_fifo"),
    ("optimum", "opt"),
];

/// One policy over one trace with one size of memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cell {
    pub(super) memory_percent: f64,
    pub(super) memory_pages: usize,
    pub(super) variant: &'static str,
    pub(super) sees_hits: bool,
    pub(super) found: Found,
}

#[derive(Debug, Serialize)]
struct TraceRow {
    trace: String,
    pages: usize,
    touches: usize,
}

#[derive(Debug, Serialize)]
struct Row {
    trace: String,
    memory_percent: f64,
    memory_pages: usize,
    variant: &'static str,
    sees_hits: bool,
    misses: u64,
    pages_in: u64,
}

/// All that was counted.
#[derive(Debug, Serialize)]
pub(super) struct PolicyOutcome {
    schema: u32,
    bench: &'static str,
    machine: Machine,
    seed: u32,
    traces: Vec<TraceRow>,
    rows: Vec<Row>,
    simulated: Vec<SimulatedRow>,
    ratios: Map<String, Value>,
    /// What the ratios' means are made of: softswap's misses over a rival's.
    #[serde(skip)]
    over_rivals: [Vec<f64>; RIVALS.len()],
    #[serde(skip)]
    ahead_over_clock: Vec<f64>,
    #[serde(skip)]
    lines: Vec<String>,
}

impl PolicyOutcome {
    pub(super) fn new(seed: u32) -> PolicyOutcome {
        PolicyOutcome {
            schema: SCHEMA,
            bench: "policy",
            machine: Machine::without_device(),
            seed,
            traces: Vec::new(),
            rows: Vec::new(),
            simulated: Vec::new(),
            ratios: Map::new(),
            over_rivals: Default::default(),
            ahead_over_clock: Vec::new(),
            lines: Vec::new(),
        }
    }

    /// Adds what all policies found with one size of memory.
    pub(super) fn add(&mut self, trace: &Trace, cells: Vec<Cell>) {
        if self.traces.last().is_none_or(|last| last.trace != trace.name) {
            let (pages, touches) = (trace.pages, trace.touches.len());
            self.traces.push(TraceRow { trace: trace.name.clone(), pages, touches });
        }
        let of = |variant: &str| cells.iter().find(|cell| cell.variant == variant);
        let (Some(own), Some(first)) = (of("softswap"), cells.first()) else { return };
        for ((rival, short), over) in RIVALS.into_iter().zip(&mut self.over_rivals) {
            let Some(rival) = of(rival) else { continue };
            let ratio = own.found.misses as f64 / rival.found.misses as f64;
            let percent = first.memory_percent as u32;
            let name = format!("misses_softswap_vs_{short}_{}_{percent}", trace.name);
            self.ratios.insert(name, ratio.into());
            over.push(ratio);
        }
        if let (Some(own), Some(clock)) = (of("softswap_ahead"), of("clock_ahead")) {
            let ratio = own.found.pages_in as f64 / clock.found.pages_in as f64;
            self.ahead_over_clock.push(ratio);
        }
        self.lines.push(line(trace, &cells));
        self.rows.extend(cells.into_iter().map(|cell| Row {
            trace: trace.name.clone(),
            memory_percent: cell.memory_percent,
            memory_pages: cell.memory_pages,
            variant: cell.variant,
            sees_hits: cell.sees_hits,
            misses: cell.found.misses,
            pages_in: cell.found.pages_in,
        }));
    }

    /// Adds what all policies together came to over a recorded trace.
    pub(super) fn add_simulated(&mut self, rows: Vec<SimulatedRow>) {
        self.simulated.extend(rows);
    }

    /// Adds, for each memory, what the same trace stalls for with all mechanisms on.
    pub(super) fn add_stall_ratio(&mut self, (without, with): (&[SimulatedRow], &[SimulatedRow])) {
        for (without, with) in without.iter().zip(with) {
            let SimulatedRow { trace, memory_percent, .. } = without;
            let name = format!("stalled_without_vs_with_{trace}_{memory_percent}");
            let ratio = without.stalled_ms / with.stalled_ms;
            self.ratios.insert(name, Value::from(ratio));
        }
    }

    fn simulated_table(&self) -> String {
        if self.simulated.is_empty() {
            return String::new();
        }
        let mut text = format!(
            "\n{:<17}{:>8}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}{:>12}{:>10}  {}\n",
            "all policies",
            "memory",
            "zero",
            "filled",
            "pool",
            "disk",
            "writes",
            "ahead",
            "written",
            "stalled ms",
            "pool KiB",
            "without"
        );
        for row in &self.simulated {
            let counts = [row.zero_faults, row.filled_faults, row.pool_faults, row.disk_faults];
            let others = [row.write_faults, row.pages_ahead, row.pages_written];
            text += &format!("{:<17}{:>6} %", row.trace, row.memory_percent);
            for count in counts.into_iter().chain(others) {
                text += &format!("{:>10}", units::count(count));
            }
            text += &format!(
                "{:>12.0}{:>10}  {}\n",
                row.stalled_ms,
                units::count(row.pool_bytes >> 10),
                row.without
            );
        }
        text
    }

    /// Adds the means over all traces.
    pub(super) fn finish(&mut self) {
        for ((_, short), over) in RIVALS.into_iter().zip(&self.over_rivals) {
            self.ratios.insert(
                format!("misses_softswap_vs_{short}"),
                geometric_mean(over.iter().copied()).into(),
            );
        }
        let name = "pages_in_softswap_ahead_vs_clock_ahead";
        self.ratios
            .insert(name.into(), geometric_mean(self.ahead_over_clock.iter().copied()).into());
    }
}

fn line(trace: &Trace, cells: &[Cell]) -> String {
    let found = |variant: &str| {
        let cell = cells.iter().find(|cell| cell.variant == variant);
        cell.map_or(Found::default(), |cell| cell.found)
    };
    let percent = cells.first().map_or(0.0, |cell| cell.memory_percent);
    let mut text = format!("{:<17}{percent:>6.1} %", trace.name);
    for variant in ["fifo", "clock", "softswap", "lru", "s3_fifo", "optimum"] {
        text += &format!("{:>11}", units::count(found(variant).misses));
    }
    for variant in ["clock_ahead", "softswap_ahead"] {
        let Found { misses, pages_in } = found(variant);
        text += &format!("{:>10}{:>11}", units::count(misses), units::count(pages_in));
    }
    text + "\n"
}

impl Report for PolicyOutcome {
    fn table(&self) -> String {
        let mut text = format!("{}\n\n", self.machine.line());
        text += &format!("{:<17}{:>8}{:>13}\n", "trace", "pages", "touches");
        for TraceRow { trace, pages, touches } in &self.traces {
            let (pages, touches) = (units::count(*pages as u64), units::count(*touches as u64));
            text += &format!("{trace:<17}{pages:>8}{touches:>13}\n");
        }
        text += &format!(
            "\n{:<25}{:>33}{:>33}{:>21}{:>21}\n",
            "misses", "told of misses", "told of every touch", "clock, ahead", "softswap, ahead"
        );
        text += &format!("{:<17}{:>8}", "trace", "memory");
        for name in ["fifo", "clock", "softswap", "lru", "s3_fifo", "optimum"] {
            text += &format!("{name:>11}");
        }
        text += &format!("{:>10}{:>11}{:>10}{:>11}\n", "reads", "pages", "reads", "pages");
        text += &self.lines.concat();
        text += &self.simulated_table();
        // The means; all the others are in the JSON.
        let is_mean = |name: &str| {
            let rivals = RIVALS.iter().map(|(_, short)| format!("misses_softswap_vs_{short}"));
            rivals.into_iter().any(|mean| mean == name) || name.starts_with("pages_in_")
        };
        let means = self.ratios.iter().filter(|(name, _)| is_mean(name));
        let means = means.map(|(name, value)| (name.clone(), value.clone())).collect();
        text + "\n" + &ratios_text(&means)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_softswap_over_the_others_and_their_means_geometric() {
        let mut outcome = PolicyOutcome::new(1);
        let trace = Trace::new("some", vec![1, 2, 3]);
        for (memory_percent, misses) in [(12.5, 100), (50.0, 400)] {
            let cell = |variant: &'static str, misses| Cell {
                memory_percent,
                memory_pages: 1,
                variant,
                sees_hits: false,
                found: Found { misses, pages_in: misses },
            };
            outcome.add(&trace, vec![cell("fifo", 200), cell("softswap", misses)]);
        }
        outcome.finish();
        let ratio = |name: &str| outcome.ratios.get(name).and_then(Value::as_f64);
        assert_eq!(ratio("misses_softswap_vs_fifo_some_12"), Some(0.5));
        assert_eq!(ratio("misses_softswap_vs_fifo_some_50"), Some(2.0));
        assert!((ratio("misses_softswap_vs_fifo").unwrap() - 1.0).abs() < 1e-9);
        assert_eq!((ratio("misses_softswap_vs_opt"), outcome.traces.len()), (None, 1));
    }
}
