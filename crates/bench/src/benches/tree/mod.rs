//! Processes that compete for DRAM: loads whose processes take turns, do not, or run one after the
//! other; and two programs with a shared or a divided budget.

use super::swap::programs::{Program, compiled, numeric_sort};
use crate::measure::machine::Machine;
use crate::measure::managed_program::{softswap_run, temporary_directory};
use crate::measure::options::{InRounds, Named, parse_seconds, within};
use crate::measure::report::{Log, or_left_out};
use crate::measure::sample::{Object, object, take_turns};
use clap::{Args, ValueEnum};
use serde_json::Value;
use softswap_cli::refusal::{OrRefuse, Refusal};
use std::ffi::OsStr;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// About four for each page.
const TOUCHES_PER_MIB: u64 = 1_000;
const UNITS: usize = 8;
/// Memory of a C++ compiler for the headers, and for each class (measured).
const HEADERS_BYTES: u64 = 100 << 20;
const CLASS_BYTES: u64 = 4 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Load {
    /// Two programs with a shared budget, and with half of it for each
    Pair,
    /// Four random readers
    Readers,
    /// make with a C++ compiler
    Make,
    /// Eight numeric sorts by worker processes in Python
    Workers,
    /// A pipeline of two GNU sorts
    Sorts,
}

/// Compare processes that take turns with processes that do not, in one budget.
#[derive(Args)]
#[command(after_long_help = "\
Each process of a load needs three quarters of the budget. A load runs with --turns off and auto, and
one process after the other (serial).

In the load pair one program reads pages at random in three quarters of the budget, the other one
after the other in one and a half times as much. Both count pages a second, in the second half of
their time. The budget is shared, or each has a half (halves).

Examples:
  softswap bench tree --loads pair --budget 128")]
pub(crate) struct TreeArgs {
    /// Only these loads: names separated by commas
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    loads: Vec<Load>,

    /// The budget of all processes together, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 400, value_parser = within(32..=1_048_576))]
    budget: u32,

    /// How long a run of pair takes
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = parse_seconds)]
    seconds: Duration,

    #[command(flatten)]
    common: InRounds<5>,
}

/// Name, `--turns`, and concurrent processes.
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
            pair = measure_pair(args, &mut log)?;
            continue;
        }
        let (dir, name) = (temporary_directory()?, load.name());
        let bytes = (u64::from(args.budget) << 20) / 4 * 3;
        let script = or_left_out(load.script(dir.path(), bytes), &name, &mut log.notes);
        let Some(script) = script else { continue };
        let mut digest = None;
        let cells = take_turns(SIDES, args.common.rounds, |side, _| {
            let run = load_run(args, dir.path(), &script, *side)?;
            match *digest.get_or_insert_with(|| run.digest.clone()) == run.digest {
                true => Ok(run),
                false => Err(Refusal::own(format!("{name}: its output differs between runs"))),
            }
        })?;
        let (off, turns, serial) = (&cells[0], &cells[1], &cells[2]);
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

fn shell(
    args: &TreeArgs,
    options: &[&OsStr],
    script: &str,
    arguments: &[&OsStr],
) -> Result<Command, Refusal> {
    let mut command = softswap_run()?;
    command.arg("--swap").arg(&args.common.swap).args(options).args(["--", "sh", "-c", script]);
    command.args(arguments).stdin(Stdio::null()).stderr(Stdio::inherit());
    Ok(command)
}

fn load_run(args: &TreeArgs, dir: &Path, script: &str, side: Side) -> Result<Run, Refusal> {
    let (_, turns, processes) = side;
    let (report, memory) = (dir.join("report.json"), format!("--memory={}M", args.budget));
    let options =
        ["--turns".as_ref(), turns.as_ref(), memory.as_ref(), "--report".as_ref(), report.as_ref()];
    let mut command = shell(args, &options, script, &["sh".as_ref(), processes.as_ref()])?;
    let start = Instant::now();
    let output = command.env("LC_ALL", "C").current_dir(dir).output();
    let (output, seconds) = (output.or_own("softswap run")?, start.elapsed().as_secs_f64());
    if !output.status.success() {
        return Err(Refusal::own(format!("{script}: {}", output.status)));
    }
    let figures = fs::read(&report).or_own(report.display())?;
    let figures: Value = serde_json::from_slice(&figures).unwrap_or_default();
    let turns = figures["tree"]["turns"].as_f64().unwrap_or(0.0);
    Ok(Run { seconds, turns, digest: output.stdout })
}

impl Load {
    /// Returns a shell script that runs the load in `dir` with `$1` processes at a time, which need
    /// `bytes` each, and prints a digest of the result.
    fn script(self, dir: &Path, bytes: u64) -> Result<String, String> {
        let mib = bytes >> 20;
        Ok(match self {
            Load::Pair => return Err("its processes run for a fixed time".into()),
            Load::Readers => {
                compiled(dir, "touch", include_str!("touch.c"))?;
                let touches = mib * TOUCHES_PER_MIB;
                format!("seq 4 | xargs -P \"$1\" -n 1 ./touch read {mib} {touches}")
            }
            Load::Make => {
                for program in ["make", "g++"] {
                    let found = Command::new(program).arg("--version").output();
                    found.or_text(format!("{program} (`apt install make g++`)"))?;
                }
                let classes = bytes.saturating_sub(HEADERS_BYTES) / CLASS_BYTES;
                let mut objects = String::new();
                for unit in 0..UNITS {
                    let path = dir.join(format!("unit{unit}.cc"));
                    fs::write(&path, source(unit, classes)).or_text(path.display())?;
                    let _ = write!(objects, " unit{unit}.o");
                }
                format!(
                    "rm -f{objects}; make -s -j \"$1\" CXXFLAGS=-O1{objects} && cat{objects} | cksum"
                )
            }
            Load::Workers => {
                let (python, sort) = numeric_sort()?;
                for (name, text) in [("sort.py", sort), ("workers.py", include_str!("workers.py"))]
                {
                    fs::write(dir.join(name), text).or_text(name)?;
                }
                format!("{} workers.py \"$(cat sort.py)\" {bytes} \"$1\"", python.display())
            }
            Load::Sorts => {
                let ready = Program::TextSort.make_ready(dir, bytes)?;
                let sort = format!("sort --buffer-size={}b --temporary-directory=.", bytes * 2);
                let input = ready.name;
                format!(
                    "if [ \"$1\" = 1 ]; then {sort} {input} >middle && {sort} -k 2 middle; \
                     else {sort} {input} | {sort} -k 2; fi | cksum"
                )
            }
        })
    }
}

/// Gives each class its own containers. Without classes it includes no headers, which need much
/// memory.
fn source(unit: usize, classes: u64) -> String {
    let headers =
        if classes > 0 { "#include <map>\n#include <string>\n#include <vector>\n" } else { "" };
    let mut text = String::from(headers);
    for class in 0..classes {
        let _ = writeln!(
            text,
            "struct C{class} {{ int n; bool operator<(const C{class} &o) const {{ return n < o.n; }} }};
int f{unit}_{class}(int most) {{
    std::map<C{class}, std::vector<std::string>> all;
    for (int i = 0; i < most; i++) all[C{class}{{i * {} % 97}}].push_back(std::to_string(i));
    return (int)all.size();
}}",
            class + 3
        );
    }
    text
}

struct Rates {
    hot: f64,
    stream: f64,
}

impl Rates {
    fn total(&self) -> f64 {
        self.hot + self.stream
    }
}

/// Measures programs with a hot set and a stream. Returns a row for each budget.
fn measure_pair(args: &TreeArgs, log: &mut Log) -> Result<Vec<Object>, Refusal> {
    let dir = temporary_directory()?;
    let program = compiled(dir.path(), "touch", include_str!("touch.c")).map_err(Refusal::own)?;
    let cells = take_turns(["shared", "halves"], args.common.rounds, |budget, _| {
        pair_run(args, &program, *budget == "shared")
    })?;
    let (shared, halves) = (&cells[0], &cells[1]);
    log.ratio("hot_shared_vs_halves", shared.ratio_to(halves, |rates| rates.hot));
    log.ratio("stream_shared_vs_halves", shared.ratio_to(halves, |rates| rates.stream));
    log.ratio("total_shared_vs_halves", shared.ratio_to(halves, Rates::total));
    let rows = cells.iter().map(|cell| {
        object! {
            budget: cell.key,
            hot_per_s: cell.median(|rates| rates.hot),
            stream_per_s: cell.median(|rates| rates.stream),
            total_per_s: cell.median(Rates::total),
            total_cov: cell.cov(Rates::total),
            count: cell.rounds.len(),
        }
    });
    Ok(rows.collect())
}

fn pair_run(args: &TreeArgs, program: &Path, is_shared: bool) -> Result<Rates, Refusal> {
    let (budget, seconds) = (args.budget, args.seconds.as_secs_f64());
    let memory = match is_shared {
        true => format!("--memory={budget}M"),
        false => format!("--memory-per-process={}M", budget / 2),
    };
    let [hot, stream] = [budget / 4 * 3, budget / 2 * 3];
    let script = format!(
        "\"$0\" hot {hot} {seconds} & \"$0\" stream {stream} {seconds}; s=$?; wait $! && exit $s"
    );
    let mut command = shell(args, &[memory.as_ref()], &script, &[program.as_ref()])?;
    let output = command.output().or_own("softswap run")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let rate = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok())
    };
    match (output.status.success(), rate("hot"), rate("stream")) {
        (true, Some(hot), Some(stream)) => Ok(Rates { hot, stream }),
        _ => Err(Refusal::own(format!("the two programs failed: {}", output.status))),
    }
}
