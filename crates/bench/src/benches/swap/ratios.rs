//! Figures that compare: medians over the rounds of what both did in a round.

use super::pattern_run::PatternRun;
use super::plan::{Case, PATTERN_SHARES, PROGRAM_SHARES, Side, who};
use super::program_run::ProgramRun;
use super::rounds::{Cell, How, ProgramCell, Workload};
use crate::measure::sample::median;
use serde_json::{Map, Value};

/// The share that figures without a suffix are for.
const USUAL_SHARE: u32 = 25;
const KERNEL: [Side; 3] = [Side::KernelFile, Side::KernelZram, Side::KernelZswap];

pub(super) fn of_share(share_percent: u32) -> String {
    if share_percent == USUAL_SHARE { String::new() } else { format!("_{share_percent}") }
}

pub(super) fn of_threads(threads: u32) -> String {
    if threads == 1 { String::new() } else { format!("_t{threads}") }
}

/// `PATTERN_softswap_vs_SIDE` and `PATTERN_softswap_same_dram_vs_SIDE`: of
/// touches a second.
pub(super) fn of_patterns(cells: &[Cell], workloads: &[Workload]) -> Map<String, Value> {
    let mut figures = Map::new();
    for share_percent in PATTERN_SHARES {
        for (at, workload) in workloads.iter().enumerate() {
            for rival in KERNEL {
                let find = |side: Side, beside: Option<Side>| {
                    cells.iter().find(|cell| {
                        let Case { data, .. } = cell.case;
                        let wanted = Case { side, data, share_percent, beside };
                        cell.case == wanted && Some(data) == rival.data()
                    })
                };
                for beside in [None, Some(rival)] {
                    let ours = find(Side::Softswap, beside);
                    let (Some(ours), Some(theirs)) = (ours, find(rival, None)) else { continue };
                    let (pattern, who) = (workload.pattern.name(), ours.case.who());
                    let (share, threads) = (of_share(share_percent), of_threads(workload.threads));
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
    let rate = |ran: &PatternRun| ran.took[at].touches_per_s();
    median(pairs.map(|(ours, theirs)| rate(ours) / rate(theirs)).collect())
}

/// `PROGRAM_softswap_vs_SIDE`, `PROGRAM_softswap_same_dram_vs_SIDE`,
/// `PROGRAM_softswap_vs_best_kernel` and `PROGRAM_SIDE_vs_in_memory`: of times; of the
/// last also of CPU times, `PROGRAM_cpu_SIDE_vs_in_memory`.
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
    }
    figures.extend(of_programs_in_memory(cells));
    figures
}

/// Every way to run a program over the program as it is.
fn of_programs_in_memory(cells: &[&ProgramCell]) -> Map<String, Value> {
    let mut figures = Map::new();
    let plain = |name| cells.iter().find(|cell| cell.name == name && cell.how == How::Plain);
    for cell in cells {
        let (side, share) = match cell.how {
            How::Plain => continue,
            How::Roomy => (Side::Softswap.name().to_string(), 100),
            How::Limited { side, share_percent, beside: None } => {
                (side.name().to_string(), share_percent)
            }
            How::Limited { side, share_percent, beside: Some(rival) } => {
                (format!("{}_as_{}", who(side, Some(rival)), rival.name()), share_percent)
            }
        };
        let (Some(plain), share) = (plain(cell.name), of_share(share)) else { continue };
        let key = |what: &str| format!("{}_{what}{side}_vs_in_memory{share}", cell.name);
        figures.insert(key(""), over(cell, plain).into());
        figures.insert(key("cpu_"), by_rounds(cell, plain, |ran| ran.cpu_seconds).into());
    }
    figures
}

pub(super) fn seconds(cell: &ProgramCell) -> f64 {
    median(cell.runs.iter().map(|ran| ran.seconds).collect())
}

/// How many times as long it took, by rounds.
pub(super) fn over(one: &ProgramCell, other: &ProgramCell) -> f64 {
    by_rounds(one, other, |ran| ran.seconds)
}

fn by_rounds(one: &ProgramCell, other: &ProgramCell, figure: fn(&ProgramRun) -> f64) -> f64 {
    let pairs = one.runs.iter().zip(&other.runs);
    median(pairs.map(|(one, other)| figure(one) / figure(other)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(how: How, seconds: &[f64]) -> ProgramCell {
        let run = |seconds: &f64| ProgramRun {
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
        assert!((figures["x_softswap_vs_in_memory_100"].as_f64().unwrap() - 1.15).abs() < 1e-9);
        assert_eq!(figures["x_softswap_vs_kernel_file_50"], median(vec![4.0 / 9.0, 6.0 / 9.0]));
        assert_eq!(figures["x_softswap_vs_kernel_zram_50"], 2.0);
        assert_eq!(figures["x_softswap_same_dram_vs_kernel_zram_50"], 0.5);
        assert_eq!(figures["x_kernel_file_vs_in_memory_50"], 9.0);
        assert_eq!(figures["x_softswap_same_dram_as_kernel_zram_vs_in_memory_50"], 1.25);
        assert_eq!(figures["x_cpu_softswap_vs_in_memory_50"], 1.0);
        assert_eq!(figures.len(), 4 + 2 * 5);
    }
}
