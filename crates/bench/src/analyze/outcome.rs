//! The result of `analyze extents`.

use crate::extent_maps::lookups::{LookupRow, lookup_head, lookup_line};
use crate::measure::machine::Machine;
use crate::measure::report::{Report, lines};
use serde::Serialize;
use softswap_cli::units;
use softswap_sys::fiemap::FileExtent;
use std::collections::BTreeMap;

const MIB: u64 = 1 << 20;
const GIB: f64 = (1_u64 << 30) as f64;
/// Columns of the longest bar.
const BAR: u64 = 40;

#[derive(Debug, Serialize)]
pub(super) struct ExtentsOutcome {
    pub(super) schema: u32,
    pub(super) analysis: &'static str,
    pub(super) path: String,
    pub(super) file_system: &'static str,
    pub(super) machine: Machine,
    #[serde(flatten)]
    pub(super) summary: Summary,
    pub(super) lookups: Option<LookupsOutcome>,
    pub(super) notes: Vec<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct LookupsOutcome {
    /// Those that touch on the device count as one.
    pub(super) extents: usize,
    pub(super) rows: Vec<LookupRow>,
}

/// A file's extents in figures.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Summary {
    pub(super) file_bytes: u64,
    pub(crate) mapped_bytes: u64,
    pub(crate) hole_bytes: u64,
    pub(super) holes: usize,
    pub(super) extents: usize,
    pub(super) mean_bytes: Option<f64>,
    pub(super) smallest_bytes: Option<u64>,
    pub(super) largest_bytes: Option<u64>,
    pub(super) extents_per_gib: Option<f64>,
    pub(super) share_under_1mib: Option<f64>,
    pub(super) unwritten_extents: usize,
    pub(super) unwritten_bytes: u64,
    pub(super) shared_extents: usize,
    pub(super) shared_bytes: u64,
    pub(super) unplaced_extents: usize,
    pub(super) unplaced_bytes: u64,
    pub(super) histogram: Vec<Magnitude>,
}

/// Extents from a power of two of bytes to less than twice as much.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct Magnitude {
    pub(super) from_bytes: u64,
    pub(super) extents: usize,
    pub(super) bytes: u64,
}

impl Summary {
    pub(crate) fn of(file_bytes: u64, extents: &[FileExtent]) -> Summary {
        let mapped_bytes: u64 = extents.iter().map(|extent| extent.length).sum();
        let (holes, hole_bytes) = holes(file_bytes, extents);
        let lengths = || extents.iter().map(|extent| extent.length);
        let some = |value: f64| (mapped_bytes > 0).then_some(value);
        let under_1mib: u64 = lengths().filter(|length| *length < MIB).sum();
        let those = |which: fn(&FileExtent) -> bool| {
            let found = extents.iter().filter(|extent| which(extent));
            found.fold((0, 0), |(count, bytes), extent| (count + 1, bytes + extent.length))
        };
        let (unwritten_extents, unwritten_bytes) = those(FileExtent::is_unwritten);
        let (shared_extents, shared_bytes) = those(FileExtent::is_shared);
        let (unplaced_extents, unplaced_bytes) = those(|extent| !extent.is_placed());
        Summary {
            file_bytes,
            mapped_bytes,
            hole_bytes,
            holes,
            extents: extents.len(),
            mean_bytes: some(mapped_bytes as f64 / extents.len() as f64),
            smallest_bytes: lengths().min(),
            largest_bytes: lengths().max(),
            extents_per_gib: some(extents.len() as f64 / (mapped_bytes as f64 / GIB)),
            share_under_1mib: some(under_1mib as f64 / mapped_bytes as f64),
            unwritten_extents,
            unwritten_bytes,
            shared_extents,
            shared_bytes,
            unplaced_extents,
            unplaced_bytes,
            histogram: histogram(extents),
        }
    }
}

/// How many holes there are before the end of the file, and their bytes.
fn holes(file_bytes: u64, extents: &[FileExtent]) -> (usize, u64) {
    let mut end = 0;
    let (mut count, mut bytes) = (0, 0);
    let starts = extents.iter().map(|extent| (extent.logical, extent.end()));
    for (start, next_end) in starts.chain([(file_bytes, file_bytes)]) {
        if start > end {
            count += 1;
            bytes += start - end;
        }
        end = next_end.max(end);
    }
    (count, bytes)
}

/// Magnitudes between the smallest and the largest, those with none as well.
fn histogram(extents: &[FileExtent]) -> Vec<Magnitude> {
    let mut found: BTreeMap<u32, (usize, u64)> = BTreeMap::new();
    for length in extents.iter().map(|extent| extent.length).filter(|length| *length > 0) {
        let (count, bytes) = found.entry(length.ilog2()).or_default();
        *count += 1;
        *bytes += length;
    }
    let ends = found.keys().next().zip(found.keys().next_back());
    let powers = ends.map(|(first, last)| *first..=*last);
    powers
        .into_iter()
        .flatten()
        .map(|power| {
            let (extents, bytes) = found.get(&power).copied().unwrap_or_default();
            Magnitude { from_bytes: 1 << power, extents, bytes }
        })
        .collect()
}

impl Report for ExtentsOutcome {
    fn table(&self) -> String {
        let mut text = format!("{} ({})\n", self.path, self.file_system);
        text += &summary_text(&self.summary);
        if !self.summary.histogram.is_empty() {
            text += &histogram_text(&self.summary.histogram);
        }
        if let Some(lookups) = &self.lookups {
            let extents = units::count(lookups.extents as u64);
            text += &format!("\nlook-ups over {extents} extents, {}\n", self.machine.line());
            text += &lookup_head();
            text += &lookups.rows.iter().map(lookup_line).collect::<String>();
        }
        text + &lines(&self.notes)
    }
}

fn summary_text(summary: &Summary) -> String {
    let bytes = units::bytes;
    let count = |n: usize| units::count(n as u64);
    let mut text = format!(
        "  size       {}, {} mapped, {} in {} holes\n",
        bytes(summary.file_bytes),
        bytes(summary.mapped_bytes),
        bytes(summary.hole_bytes),
        count(summary.holes)
    );
    text += &format!("  extents    {}", count(summary.extents));
    if let (Some(mean), Some(smallest), Some(largest), Some(per_gib), Some(share)) = (
        summary.mean_bytes,
        summary.smallest_bytes,
        summary.largest_bytes,
        summary.extents_per_gib,
        summary.share_under_1mib,
    ) {
        text += &format!(
            ", {} on average, {} to {}\n  fragments  {per_gib:.1} extents per GiB, {:.1} % of it in \
             extents under 1 MiB",
            bytes(mean as u64),
            bytes(smallest),
            bytes(largest),
            share * 100.0
        );
    }
    let kinds = [
        ("unwritten", summary.unwritten_extents, summary.unwritten_bytes),
        ("shared", summary.shared_extents, summary.shared_bytes),
        ("unplaced", summary.unplaced_extents, summary.unplaced_bytes),
    ];
    for (name, extents, of_bytes) in kinds.into_iter().filter(|(_, extents, _)| *extents > 0) {
        text += &format!("\n  {name:<11}{} extents, {}", count(extents), bytes(of_bytes));
    }
    text + "\n"
}

fn histogram_text(histogram: &[Magnitude]) -> String {
    let most = histogram.iter().map(|line| line.extents as u64).max().unwrap_or(1).max(1);
    let mut text = format!("\n{:>12}{:>10}{:>12}\n", "from", "extents", "bytes");
    for Magnitude { from_bytes, extents, bytes } in histogram {
        let bar = "#".repeat((*extents as u64 * BAR).div_ceil(most) as usize);
        let line = format!(
            "{:>12}{:>10}{:>12}  {bar}",
            units::bytes(*from_bytes),
            units::count(*extents as u64),
            units::bytes(*bytes)
        );
        text += line.trim_end();
        text += "\n";
    }
    text
}
