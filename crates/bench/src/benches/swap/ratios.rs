//! Ratios of `bench swap`: medians over the rounds of what two sides did in the same round.

use super::plan::{How, Side, of_share};
use super::rounds::{Cell, Variant};
use super::runs::Work;
use crate::measure::sample::{median, over};
use serde_json::{Map, Value};

const KERNEL: [Side; 3] = [Side::KernelFile, Side::KernelZram, Side::KernelZswap];

/// The part of a ratio's name that tells the number of threads.
pub(super) fn of_threads(threads: u32) -> String {
    if threads == 1 { String::new() } else { format!("_t{threads}") }
}

/// Of all cells. What did not come through all rounds is compared with nothing.
pub(super) fn of(cells: &[Cell], rounds: usize) -> Map<String, Value> {
    let mut ratios = Map::new();
    for cell in cells {
        let complete = || cell.variants.iter().filter(|variant| variant.runs.len() == rounds);
        let find = |how: How| complete().find(|variant| variant.how == how);
        let is_pattern = matches!(cell.work, Work::Pattern { .. });
        let name = cell.work.name();
        let mut shares: Vec<u32> =
            cell.variants.iter().map(|variant| variant.how.share_percent()).collect();
        shares.sort_unstable();
        shares.dedup();
        for share_percent in shares {
            let on = |side, beside| find(How::Limited { side, share_percent, beside });
            let suffix = of_share(share_percent) + &of_threads(cell.work.threads());
            for rival in KERNEL {
                for beside in [None, Some(rival)] {
                    let (ours, theirs) = (on(Side::Softswap, beside), on(rival, None));
                    let (Some(ours), Some(theirs)) = (ours, theirs) else { continue };
                    // Of patterns the rates are compared.
                    let ratio = if is_pattern { theirs.over(ours) } else { ours.over(theirs) };
                    let key = format!("{name}_{}_vs_{}{suffix}", ours.how.name(), rival.name());
                    ratios.insert(key, ratio.into());
                }
            }
            let theirs = KERNEL.into_iter().filter_map(|rival| on(rival, None));
            let seconds = |variant: &&Variant| median(variant.seconds());
            let best = theirs.min_by(|a, b| seconds(a).total_cmp(&seconds(b)));
            if let (false, Some(ours), Some(best)) = (is_pattern, on(Side::Softswap, None), best) {
                let key = format!("{name}_softswap_vs_best_kernel{suffix}");
                ratios.insert(key, ours.over(best).into());
            }
        }
        let Some(plain) = find(How::Plain) else { continue };
        for variant in complete().filter(|variant| variant.how != How::Plain) {
            let as_side = variant.how.beside().map(|side| format!("_as_{}", side.name()));
            let side = format!("{}{}", variant.how.name(), as_side.unwrap_or_default());
            let share = of_share(variant.how.share_percent());
            let key = |what: &str| format!("{name}_{what}{side}_vs_in_memory{share}");
            let cpu = |variant: &Variant| variant.of(|ran| ran.cpu_seconds);
            ratios.insert(key(""), variant.over(plain).into());
            ratios.insert(key("cpu_"), over(&cpu(variant), &cpu(plain)).into());
        }
    }
    ratios
}
