//! Ratios of `bench swap`.

use super::plan::{RunKind, Side, suffix};
use super::rounds::{Cell, Variant};
use super::runs::{Run, Work};
use crate::measure::options::Named;
use crate::measure::report::Log;
use std::collections::BTreeSet;

fn seconds(ran: &Run) -> f64 {
    ran.seconds
}

/// Adds the ratios of all cells. Variants that failed in a round are not compared.
pub(super) fn add(cells: &[Cell], rounds: usize, log: &mut Log) {
    for cell in cells {
        let complete = || cell.variants.iter().filter(|variant| variant.runs.len() == rounds);
        let find = |run_kind: RunKind| complete().find(|variant| variant.run_kind == run_kind);
        let shares = cell.variants.iter().map(|variant| variant.run_kind.share_percent());
        for share_percent in shares.collect::<BTreeSet<_>>() {
            let on = |side, beside| find(RunKind::Limited { side, share_percent, beside });
            between_sides(cell, share_percent, on, log);
        }
        let Some(plain) = find(RunKind::Plain) else { continue };
        for variant in complete().filter(|variant| variant.run_kind != RunKind::Plain) {
            let as_side = variant.run_kind.beside().map(|side| format!("_as_{}", side.name()));
            let side = variant.run_kind.name() + &as_side.unwrap_or_default();
            let end = format!("{side}_vs_in_memory{}", suffix(variant.run_kind.share_percent(), 1));
            let name = cell.work.name();
            log.ratio(format!("{name}_{end}"), variant.ratio_to(plain, seconds));
            let cpu = variant.ratio_to(plain, |ran| ran.cpu_seconds);
            log.ratio(format!("{name}_cpu_{end}"), cpu);
        }
    }
}

/// Adds the ratios between softswap and the other sides at one share of memory.
fn between_sides<'c>(
    cell: &Cell,
    share_percent: u32,
    on: impl Fn(Side, Option<Side>) -> Option<&'c Variant>,
    log: &mut Log,
) {
    let (name, suffix) = (cell.work.name(), suffix(share_percent, cell.work.threads()));
    let is_pattern = matches!(cell.work, Work::Pattern { .. });
    for rival in Side::RIVALS {
        for beside in [None, Some(rival)] {
            let (ours, theirs) = (on(Side::Softswap, beside), on(rival, None));
            let (Some(ours), Some(theirs)) = (ours, theirs) else { continue };
            // Patterns are compared by rate, programs by time.
            let (one, other) = if is_pattern { (theirs, ours) } else { (ours, theirs) };
            let key = format!("{name}_{}_vs_{}{suffix}", ours.run_kind.name(), rival.name());
            log.ratio(key, one.ratio_to(other, seconds));
        }
    }
    let theirs = Side::KERNEL.into_iter().filter_map(|rival| on(rival, None));
    let best = theirs.min_by(|a, b| a.median(seconds).total_cmp(&b.median(seconds)));
    if let (false, Some(ours), Some(best)) = (is_pattern, on(Side::Softswap, None), best) {
        log.ratio(format!("{name}_softswap_vs_best_kernel{suffix}"), ours.ratio_to(best, seconds));
    }
}
