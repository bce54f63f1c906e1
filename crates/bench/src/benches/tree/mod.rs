//! Trees of processes that compete for DRAM: the time of loads whose processes take turns, do not,
//! and run one after the other; the rates of two programs with one shared budget, and with half of
//! it for each.

mod options;
mod loads;
mod pair;

pub(crate) use options::TreeArgs;

use crate::measure::machine::Machine;
use crate::measure::managed_program::{softswap_run, temporary_directory};
use crate::measure::object::{Object, object};
use crate::measure::options::Named;
use crate::measure::report::Log;
use crate::measure::sample::{Cell, take_turns};
use options::Load;
use serde_json::Value;
use softswap_cli::refusal::{OrRefuse, Refusal};
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

/// A way to run a load: its name, `--turns`, and the number of concurrent processes.
type Side = (&'static str, &'static str, &'static str);
const SIDES: [Side; 3] = [("off", "off", "4"), ("turns", "auto", "4"), ("serial", "off", "1")];

struct Run {
    seconds: f64,
    turns: f64,
    digest: Vec<u8>,
}

pub(super) fn measure(args: &TreeArgs) -> Result<Object, Refusal> {
    let mut log = Log::start();
    let (mut rows, mut pair) = (Vec::new(), Vec::new());
    for load in Load::all() {
        if !args.loads.is_empty() && !args.loads.contains(&load) {
            continue;
        }
        if load == Load::Pair {
            pair = pair::measure(args, &mut log)?;
            continue;
        }
        let (dir, name) = (temporary_directory()?, load.name());
        let bytes = (u64::from(args.budget) << 20) / 4 * 3;
        let script = match load.script(dir.path(), bytes) {
            Ok(script) => script,
            Err(why) => {
                log.note(format!("{name} is left out: {why}"));
                continue;
            }
        };
        let (mut cells, mut digest) = (SIDES.map(Cell::new), None);
        take_turns(&mut cells, args.common.rounds, |side, _| {
            let run = one_run(args, dir.path(), &script, *side)?;
            match *digest.get_or_insert_with(|| run.digest.clone()) == run.digest {
                true => Ok(run),
                false => Err(Refusal::own(format!("{name}: its output differs between runs"))),
            }
        })?;
        let [off, turns, serial] = &cells;
        for other in [off, serial] {
            let ratio = turns.ratio_to(other, |run| run.seconds);
            log.ratio(format!("{name}_turns_vs_{}", other.key.0), ratio);
        }
        rows.extend(cells.iter().map(|cell| {
            object! {
                load: name,
                side: cell.key.0,
                seconds: cell.median(|run| run.seconds),
                cov: cell.cov(|run| run.seconds),
                turns: cell.median(|run| run.turns),
                count: cell.rounds.len(),
            }
        }));
    }
    let figures = object! { budget_bytes: u64::from(args.budget) << 20, rows, pair };
    Ok(log.findings("tree", Machine::without_device(), figures))
}

/// Runs the script of a load.
fn one_run(args: &TreeArgs, dir: &Path, script: &str, side: Side) -> Result<Run, Refusal> {
    let (_, turns, processes) = side;
    let report = dir.join("report.json");
    let mut command = softswap_run()?;
    command.arg("--swap").arg(&args.common.swap).arg("--report").arg(&report);
    command.arg(format!("--memory={}M", args.budget)).args(["--turns", turns]);
    command.args(["--", "sh", "-c", script, "sh", processes]).env("LC_ALL", "C").current_dir(dir);
    let start = Instant::now();
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let (output, seconds) = (output.or_own("softswap run")?, start.elapsed().as_secs_f64());
    if !output.status.success() {
        return Err(Refusal::own(format!("{script}: {}", output.status)));
    }
    let figures = std::fs::read(&report).or_own(report.display())?;
    let figures: Value = serde_json::from_slice(&figures).unwrap_or_default();
    let turns = figures["tree"]["turns"].as_f64().unwrap_or(0.0);
    Ok(Run { seconds, turns, digest: output.stdout })
}
