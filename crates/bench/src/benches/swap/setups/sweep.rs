//! `bench swap --sweep`: softswap as it comes against every fixed setting.

use super::super::args::SwapArgs;
use super::super::conditions::Conditions;
use super::super::plan::{Data, Side};
use super::super::prepare;
use super::trials::{Amount, Cell, Timed, Trials};
use crate::measure::machine::{Machine, Usage};
use crate::measure::report::{Report, lines};
use crate::measure::sample::{geometric_mean, median, variation};
use serde::Serialize;
use serde_json::{Map, Value};
use softswap_cli::refusal::Refusal;
use softswap_cli::swapdir::SwapDir;
use softswap_cli::units;
use softswap_engine::codec::Choice;
use softswap_engine::door::settings::{Config, PoolLimit};
use std::path::PathBuf;

const DEFAULT: &str = "default";
const CODECS: [&str; 2] = ["lz4", "zstd"];
const POOL_PERCENTS: [u8; 4] = [10, 25, 50, 80];
/// A cell with a larger ratio is lost.
const LOST: f64 = 1.05;
const CONTENTS: [Data; 3] = [Data::Compressible, Data::Incompressible, Data::Mixed];

/// softswap as it comes, and every fixed setting. Without a codec nothing goes to the pool,
/// so that one stands for all sizes.
fn setups() -> Result<Vec<(String, Config)>, Refusal> {
    let none = Config { codec: Choice::NONE, ..Config::default() };
    let mut all = vec![(DEFAULT.to_string(), Config::default()), ("none".to_string(), none)];
    for name in CODECS {
        for percent in POOL_PERCENTS {
            let codec = name.parse().map_err(|bad| Refusal::own(format!("{bad}")))?;
            let config = Config { codec, pool: PoolLimit::Percent(percent), ..Config::default() };
            all.push((format!("{name}, pool {percent} %"), config));
        }
    }
    Ok(all)
}

/// The fixed setting with the lowest median, among those that came through all rounds:
/// its place among all setups, and the median over the rounds of what softswap as it comes
/// took over it.
fn best_fixed(seconds: &[Vec<f64>], rounds: usize) -> Option<(usize, f64)> {
    let (ours, fixed) = seconds.split_first().filter(|(ours, _)| ours.len() == rounds)?;
    let came = (1..).zip(fixed).filter(|(_, fixed)| fixed.len() == rounds);
    let (at, best) =
        came.min_by(|(_, a), (_, b)| median((*a).clone()).total_cmp(&median((*b).clone())))?;
    Some((at, median(ours.iter().zip(best).map(|(ours, best)| ours / best).collect())))
}

#[derive(Debug, Serialize)]
struct SettingRow {
    setting: String,
    /// Of the program, or of one touch.
    seconds: f64,
    cov: f64,
    count: usize,
}

#[derive(Debug, Serialize)]
struct Row {
    work: String,
    share_percent: u32,
    threads: u32,
    /// Nothing where no comparison could be made.
    best_fixed: Option<String>,
    lost: bool,
    /// softswap as it comes first.
    settings: Vec<SettingRow>,
    /// Among the ratios in JSON.
    #[serde(skip)]
    over_best: f64,
}

impl Row {
    fn new(timed: &Timed<'_>, setups: &[(String, Config)], rounds: usize) -> Row {
        let Cell { share_percent, threads, .. } = *timed.cell;
        let best = best_fixed(&timed.seconds, rounds);
        let setting = |((name, _), seconds): (&(String, Config), &Vec<f64>)| SettingRow {
            setting: name.clone(),
            seconds: median(seconds.clone()),
            cov: variation(seconds),
            count: seconds.len(),
        };
        Row {
            work: timed.cell.name(),
            share_percent,
            threads,
            best_fixed: best.map(|(at, _)| setups[at].0.clone()),
            // What did not come through itself has won nothing.
            lost: best.is_none_or(|(_, over)| over > LOST),
            settings: setups.iter().zip(&timed.seconds).map(setting).collect(),
            over_best: best.map_or(f64::NAN, |(_, over)| over),
        }
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct SweepOutcome {
    #[serde(flatten)]
    conditions: Conditions,
    cells: usize,
    lost_cells: usize,
    ratios: Map<String, Value>,
    rows: Vec<Row>,
    /// Among the ratios in JSON.
    #[serde(skip)]
    mean: f64,
    notes: Vec<String>,
}

/// Geometric mean over the cells in which a comparison could be made.
fn mean_over_best(rows: &[Row]) -> f64 {
    let compared: Vec<f64> =
        rows.iter().map(|row| row.over_best).filter(|over| over.is_finite()).collect();
    geometric_mean(compared.into_iter())
}

/// What every setting took: one line for each cell.
fn times_table(rows: &[Row]) -> String {
    let Some(first) = rows.first() else { return String::new() };
    let line = |cell: &str, share: &str, threads: &str, times: Vec<String>| {
        let times: String = times.iter().map(|time| format!("{time:>12}")).collect();
        format!("{cell:<32}{share:>6}{threads:>4}{times}\n")
    };
    let names = first.settings.iter().map(|one| one.setting.replace(", pool", ""));
    let mut text = line("work", "fits", "t", names.collect());
    for row in rows {
        let (share, threads) = (format!("{} %", row.share_percent), row.threads.to_string());
        let times = row.settings.iter().map(|one| match one.count {
            0 => "-".into(),
            _ => units::nanoseconds((one.seconds * 1e9) as u64),
        });
        text += &line(&row.work, &share, &threads, times.collect());
    }
    text
}

pub(crate) fn measure(
    args: &SwapArgs,
    dir: &SwapDir,
    library: PathBuf,
) -> Result<SweepOutcome, Refusal> {
    let (usage, signals, mut notes) = (Usage::now(), prepare::signals()?, Vec::new());
    let setups = setups()?;
    let place = (dir.path.as_path(), args.area_bytes());
    let (mut testbed, mut context) = prepare::prepare(
        place,
        &mut vec![Side::Softswap],
        library,
        Config::default(),
        &signals,
        &mut notes,
    )?;
    let ready = prepare::ready(args.programs(), &testbed.dir, args.program_size(), &mut notes);
    let amount = Amount {
        rounds: args.rounds() as usize,
        working_set_bytes: args.working_set(),
        phase_seconds: args.seconds(),
    };
    let mut trials = Trials { testbed: &mut testbed, context: &mut context, amount };
    let (contents, shares) = (CONTENTS.as_slice(), args.program_shares());
    let cells = trials.cells((args.patterns(), contents), &ready, shares, args.threads())?;
    let timed = trials.measure(&cells, &setups, &mut notes)?;
    let rows: Vec<Row> =
        timed.iter().map(|timed| Row::new(timed, &setups, amount.rounds)).collect();
    let ratio = |(row, cell): (&Row, &Cell)| {
        let key = format!("{}_default_vs_best_fixed{}", row.work, cell.suffix());
        (key, Value::from(row.over_best))
    };
    let mean = mean_over_best(&rows);
    let mut ratios: Map<String, Value> = rows.iter().zip(&cells).map(ratio).collect();
    ratios.insert("default_vs_best_fixed".into(), mean.into());
    Ok(SweepOutcome {
        conditions: Conditions::of(
            args,
            Machine::with_device(&dir.path, dir.file_system),
            usage.since(),
        ),
        cells: rows.len(),
        lost_cells: rows.iter().filter(|row| row.lost).count(),
        ratios,
        rows,
        mean,
        notes,
    })
}

impl Report for SweepOutcome {
    fn table(&self) -> String {
        let mut text = self.conditions.heading("rounds");
        text += &format!(
            "\n{:<32}{:>6}{:>4}{:>15}{:>9}  {:<16}\n",
            "work", "fits", "t", "default", "over", "best fixed"
        );
        for row in &self.rows {
            let ours = row.settings.first().map_or(f64::NAN, |ours| ours.seconds);
            text += &format!(
                "{:<32}{:>4} %{:>4}{:>12.2} us{:>9.2}  {:<16}{}\n",
                row.work,
                row.share_percent,
                row.threads,
                ours * 1e6,
                row.over_best,
                row.best_fixed.as_deref().unwrap_or("-"),
                if row.lost { " lost" } else { "" }
            );
        }
        text += &format!("\n{}", times_table(&self.rows));
        text += &format!(
            "\n{} of {} cells are lost; geometric mean of all {:.3}\n",
            self.lost_cells, self.cells, self.mean
        );
        text + &format!("{}\n{}", self.conditions.disturbance, lines(&self.notes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_fixed_setting_is_found_by_medians_and_compared_by_rounds() {
        let seconds = [
            vec![2.0, 4.0, 9.0],
            vec![1.0, 5.0, 8.0],
            // Once the fastest of all, and still not the best.
            vec![0.1, 6.0, 7.0],
            vec![2.5, 4.0, 4.5],
        ];
        let (at, over) = best_fixed(&seconds, 3).unwrap();
        assert_eq!((at, over), (3, 1.0));
        assert_eq!(best_fixed(&seconds[..3], 3).unwrap().0, 1);
    }

    #[test]
    fn what_did_not_come_through_is_not_compared() {
        let whole = vec![1.0, 1.0];
        let seconds = [whole.clone(), vec![0.5], vec![1.6, 2.0]];
        assert_eq!(best_fixed(&seconds, 2).unwrap().0, 2);
        assert_eq!(best_fixed(&seconds[..2], 2), None);
        assert_eq!(best_fixed(&[vec![1.0], whole], 2), None);
    }

    fn row(over_best: f64, seconds: &[f64]) -> Row {
        let setting = |(at, seconds): (usize, &f64)| SettingRow {
            setting: if at == 0 { DEFAULT.into() } else { "lz4, pool 10 %".into() },
            seconds: *seconds,
            cov: 0.0,
            count: usize::from(seconds.is_finite()),
        };
        Row {
            work: "sqlite".into(),
            share_percent: 50,
            threads: 1,
            best_fixed: None,
            lost: false,
            settings: seconds.iter().enumerate().map(setting).collect(),
            over_best,
        }
    }

    #[test]
    fn the_mean_is_geometric_and_leaves_out_what_was_not_compared() {
        let rows = [row(2.0, &[]), row(0.5, &[]), row(f64::NAN, &[])];
        assert!((mean_over_best(&rows) - 1.0).abs() < 1e-12);
        assert!(mean_over_best(&rows[2..]).is_nan());
    }

    #[test]
    fn every_setting_has_its_time_in_the_table() {
        let text = times_table(&[row(1.0, &[2.5, f64::NAN])]);
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].ends_with("     default    lz4 10 %"), "{text}");
        assert!(lines[1].ends_with("      2.50 s           -"), "{text}");
    }

    #[test]
    fn there_is_a_setup_for_every_fixed_setting() {
        let setups = setups().unwrap();
        assert_eq!(setups[0].1, Config::default());
        assert_eq!(setups.len(), 1 + 1 + CODECS.len() * POOL_PERCENTS.len());
        for (at, (name, config)) in setups.iter().enumerate() {
            assert!(setups[..at].iter().all(|other| other.0 != *name && other.1 != *config));
        }
    }
}
