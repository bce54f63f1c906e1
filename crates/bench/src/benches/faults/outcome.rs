//! The result of `bench faults`.

use crate::measure::machine::Machine;
use crate::measure::report::{Report, lines, ratios_text};
use crate::measure::sample::Figures;
use serde::Serialize;
use serde_json::{Map, Value};

/// One line of a table of latencies.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Row {
    pub(super) variant: &'static str,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    pub(super) cov: f64,
    pub(super) count: usize,
}

impl Row {
    pub(super) fn new(variant: &'static str, figures: Figures) -> Row {
        let Figures { p50_us, p99_us, cov, count, .. } = figures;
        Row { variant, p50_us, p99_us, cov, count }
    }
}

/// Everything that was found.
#[derive(Debug, Serialize)]
pub(super) struct FaultsOutcome {
    pub(super) schema: u32,
    pub(super) bench: &'static str,
    pub(super) machine: Machine,
    pub(super) rows: Vec<Row>,
    /// In us, p50.
    pub(super) differences: Map<String, Value>,
    pub(super) ratios: Map<String, Value>,
    /// What the variants are, for people.
    #[serde(skip)]
    pub(super) notes: Vec<String>,
}

impl Report for FaultsOutcome {
    fn table(&self) -> String {
        let mut text = format!("{}\n\n", self.machine.line());
        let head = ("variant", "p50 us", "p99 us", "CoV", "count");
        text += &format!("{:<18}{:>10}{:>10}{:>8}{:>9}\n", head.0, head.1, head.2, head.3, head.4);
        for row in &self.rows {
            text += &format!(
                "{:<18}{:>10.2}{:>10.2}{:>6.1} %{:>9}\n",
                row.variant,
                row.p50_us,
                row.p99_us,
                row.cov * 100.0,
                row.count
            );
        }
        text + "\n"
            + &ratios_text(&self.differences)
            + &ratios_text(&self.ratios)
            + &lines(&self.notes)
    }
}
