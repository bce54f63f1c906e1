//! Figures that compare: medians over the rounds of what both did in a round.

use super::measure::{Cell, How, Kind, ProgramCell};
use super::plan::{Matter, PATTERN_SHARES, PROGRAM_SHARES, Side, who};
use super::session::Ran;
use crate::measure::sample::median;
use serde_json::{Map, Value};

/// The share that figures without a suffix are for.
const USUAL_SHARE: u32 = 25;
const KERNEL: [Side; 3] = [Side::KernelFile, Side::KernelZram, Side::KernelZswap];

fn of_share(share_percent: u32) -> String {
    if share_percent == USUAL_SHARE { String::new() } else { format!("_{share_percent}") }
}

fn of_threads(threads: u32) -> String {
    if threads == 1 { String::new() } else { format!("_t{threads}") }
}

/// `PATTERN_softswap_vs_SIDE` and `PATTERN_softswap_same_dram_vs_SIDE`: of
/// touches a second.
pub(super) fn of_patterns(cells: &[Cell], kinds: &[Kind]) -> Map<String, Value> {
    let mut figures = Map::new();
    for share_percent in PATTERN_SHARES {
        for (at, kind) in kinds.iter().enumerate() {
            for rival in KERNEL {
                let find = |side: Side, beside: Option<Side>| {
                    cells.iter().find(|cell| {
                        let Matter { data, .. } = cell.matter;
                        let wanted = Matter { side, data, share_percent, beside };
                        cell.matter == wanted && Some(data) == rival.data()
                    })
                };
                for beside in [None, Some(rival)] {
                    let ours = find(Side::Softswap, beside);
                    let (Some(ours), Some(theirs)) = (ours, find(rival, None)) else { continue };
                    let (pattern, who) = (kind.pattern.name(), ours.matter.who());
                    let (share, threads) = (of_share(share_percent), of_threads(kind.threads));
                    let key = format!("{pattern}_{who}_vs_{}{share}{threads}", rival.name());
                    figures.insert(key, faster(ours, theirs, at).into());
                }
            }
        }
    }
    figures
}

/// How many times as many touches a second, by rounds.
fn faster(ours: &Cell, theirs: &Cell, at: usize) -> f64 {
    let pairs = ours.runs.iter().zip(&theirs.runs);
    let rate = |ran: &Ran| ran.took[at].touches_per_s();
    median(pairs.map(|(ours, theirs)| rate(ours) / rate(theirs)).collect())
}

/// `PROGRAM_softswap_vs_SIDE`, `PROGRAM_softswap_same_dram_vs_SIDE`,
/// `PROGRAM_softswap_vs_best_kernel` and `PROGRAM_at_100`: of times.
pub(super) fn of_programs(cells: &[&ProgramCell]) -> Map<String, Value> {
    let mut figures = Map::new();
    let mut names: Vec<&str> = cells.iter().map(|cell| cell.name).collect();
    names.dedup();
    for name in names {
        let find = |how| cells.iter().copied().find(|cell| cell.name == name && cell.how == how);
        let mut add = |key: String, ours: Option<&ProgramCell>, theirs: Option<&ProgramCell>| {
            if let (Some(ours), Some(theirs)) = (ours, theirs) {
                figures.insert(key, over(ours, theirs).into());
            }
        };
        for share_percent in PROGRAM_SHARES {
            let on = |side, beside| find(How::Limited { side, share_percent, beside });
            let (ours, share) = (Side::Softswap, of_share(share_percent));
            let theirs = KERNEL.into_iter().filter_map(|rival| on(rival, None));
            let best = theirs.min_by(|a, b| seconds(a).total_cmp(&seconds(b)));
            add(format!("{name}_softswap_vs_best_kernel{share}"), on(ours, None), best);
            for rival in KERNEL {
                for beside in [None, Some(rival)] {
                    let key = format!("{name}_{}_vs_{}{share}", who(ours, beside), rival.name());
                    add(key, on(ours, beside), on(rival, None));
                }
            }
        }
        add(format!("{name}_at_100"), find(How::Roomy), find(How::Plain));
    }
    figures
}

pub(super) fn seconds(cell: &ProgramCell) -> f64 {
    median(cell.runs.iter().map(|ran| ran.seconds).collect())
}

/// How many times as long it took, by rounds.
pub(super) fn over(one: &ProgramCell, other: &ProgramCell) -> f64 {
    let pairs = one.runs.iter().zip(&other.runs);
    median(pairs.map(|(one, other)| one.seconds / other.seconds).collect())
}

#[cfg(test)]
mod tests {
    use super::super::whole::WholeRan;
    use super::*;

    fn cell(how: How, seconds: &[f64]) -> ProgramCell {
        let run = |seconds: &f64| WholeRan {
            seconds: *seconds,
            cpu_seconds: 1.0,
            digest: 0,
            peak_bytes: 0,
            limits: None,
            bounds: Default::default(),
        };
        ProgramCell {
            name: "x",
            how,
            limit_bytes: None,
            kills: 0,
            runs: seconds.iter().map(run).collect(),
        }
    }

    #[test]
    fn a_program_is_compared_with_each_side_of_the_kernels_and_with_the_fastest() {
        let limited = |side, beside, times: &[f64]| {
            cell(How::Limited { side, share_percent: 50, beside }, times)
        };
        let on = |side, times: &[f64]| limited(side, None, times);
        let cells = [
            cell(How::Plain, &[1.0, 1.0]),
            cell(How::Roomy, &[1.1, 1.2]),
            on(Side::Softswap, &[4.0, 6.0]),
            on(Side::KernelFile, &[9.0, 9.0]),
            on(Side::KernelZram, &[2.0, 3.0]),
            limited(Side::Softswap, Some(Side::KernelZram), &[1.0, 1.5]),
        ];
        let figures = of_programs(&cells.iter().collect::<Vec<_>>());
        assert_eq!(figures["x_softswap_vs_best_kernel_50"], 2.0);
        assert!((figures["x_at_100"].as_f64().unwrap() - 1.15).abs() < 1e-9);
        assert_eq!(figures["x_softswap_vs_kernel_file_50"], median(vec![4.0 / 9.0, 6.0 / 9.0]));
        assert_eq!(figures["x_softswap_vs_kernel_zram_50"], 2.0);
        assert_eq!(figures["x_softswap_same_dram_vs_kernel_zram_50"], 0.5);
        assert_eq!(figures.len(), 5);
    }
}
