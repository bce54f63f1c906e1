//! What softswap costs a program that fits its budget: the same program plainly and under
//! softswap, in turn, so that what slows the machine down slows both.

use super::swap::programs::{Program, Ready, compiled};
use crate::measure::machine::{Machine, Usage};
use crate::measure::managed_program::{Counters, temporary_directory, without_settings};
use crate::measure::report::{Findings, Output};
use crate::measure::sample::{median, over, rotated, variation};
use clap::Args;
use serde::Serialize;
use serde_json::Map;
use softswap_cli::library;
use softswap_cli::refusal::{Refusal, plain};
use softswap_engine::base::stats::Counter;
use softswap_engine::door::settings::{AreaSpec, Config};
use softswap_sys::aslr::Bases;
use std::ffi::OsString;
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

/// Measure what a program costs that fits its budget.
#[derive(Args)]
#[command(after_long_help = "\
Programs: those of `softswap bench swap`, each about as large as --program-size; churn allocates and
frees blocks of 16 to 1,039 bytes among 200,000 that live; starts is a shell that starts /bin/true
again and again. What is missing here is left out, and a note says so.

With --json: {\"schema\": 2, \"bench\": \"fits\", \"machine\": {...}, start_adds_us, \"ratios\": {...},
\"rows\": [{\"program\", \"plain_s\", \"plain_cov\", \"softswap_s\", \"softswap_cov\", \"slept\", \"count\"}]}.
Ratios: PROGRAM_softswap_vs_plain, the median over the rounds of a round's two times. start_adds_us is
what softswap adds to a start of /bin/true. slept says whether the program had no engine to its end.")]
pub(crate) struct FitsArgs {
    /// Rounds
    #[arg(long, value_name = "N", default_value_t = 15,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// What a program takes, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 256,
          value_parser = clap::value_parser!(u32).range(16..=1_048_576))]
    program_size: u32,

    /// Blocks that churn allocates
    #[arg(long, value_name = "N", default_value_t = 20_000_000,
          value_parser = clap::value_parser!(u32).range(1..))]
    blocks: u32,

    /// Programs that starts starts
    #[arg(long, value_name = "N", default_value_t = 1000,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    starts: u32,

    /// Only these programs, by name with commas between
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    programs: Vec<String>,

    /// Also write one JSON object to FILE; - prints it instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

const STARTS: &str = "starts";

struct Candidate {
    name: &'static str,
    path: PathBuf,
    arguments: Vec<OsString>,
    /// What it reads; brought into the page cache before every run.
    input: Option<PathBuf>,
}

#[derive(Debug, Serialize)]
struct Row {
    program: &'static str,
    plain_s: f64,
    plain_cov: f64,
    softswap_s: f64,
    softswap_cov: f64,
    slept: bool,
    count: usize,
}

#[derive(Debug, Serialize)]
struct Figures {
    start_adds_us: Option<f64>,
    rows: Vec<Row>,
}

pub(super) fn run(args: &FitsArgs) -> Result<ExitCode, Refusal> {
    let output = Output::open(args.json.as_deref())?;
    output.finish(measure(args))
}

fn measure(args: &FitsArgs) -> Result<Findings<Figures>, Refusal> {
    let library = library::find()?;
    let dir = temporary_directory()?;
    let mut notes = Vec::new();
    let candidates = candidates(args, dir.path(), &mut notes);
    let usage = Usage::now();
    let (mut rows, mut ratios, mut start_adds_us) = (Vec::new(), Map::new(), None);
    for candidate in &candidates {
        let name = candidate.name;
        let mut times: [Vec<f64>; 2] = Default::default();
        let (mut slept, mut printed) = (true, None);
        for round in 0..=args.rounds {
            for side in rotated(2, round as usize) {
                let managed = (side == 1).then(|| (library.as_path(), dir.path()));
                let ran = one_run(candidate, managed, u64::from(args.program_size) << 20)?;
                slept &= ran.slept;
                if *printed.get_or_insert(ran.digest) != ran.digest {
                    return Err(Refusal::own(format!("{name} has printed something else")));
                }
                // The first warms up.
                if round > 0 {
                    times[side].push(ran.seconds);
                }
            }
        }
        let [plain, managed] = times;
        ratios.insert(format!("{name}_softswap_vs_plain"), over(&managed, &plain).into());
        if name == STARTS {
            let pairs = plain.iter().zip(&managed);
            let added = median(pairs.map(|(plain, managed)| managed - plain).collect());
            start_adds_us = Some(added * 1e6 / f64::from(args.starts));
        }
        rows.push(Row {
            program: name,
            plain_cov: variation(&plain),
            softswap_cov: variation(&managed),
            count: plain.len(),
            plain_s: median(plain),
            softswap_s: median(managed),
            slept,
        });
    }
    let figures = Figures { start_adds_us, rows };
    let machine = Machine::without_device();
    Ok(Findings { notes, ..Findings::new("fits", machine, usage.since(), figures, ratios) })
}

/// What is to be run and can be.
fn candidates(args: &FitsArgs, dir: &Path, notes: &mut Vec<String>) -> Vec<Candidate> {
    let is_wanted =
        |name: &str| args.programs.is_empty() || args.programs.iter().any(|n| n == name);
    let bytes = u64::from(args.program_size) << 20;
    let mut all = Vec::new();
    let mut add = |name: &'static str, made: Result<Candidate, String>| match made {
        Ok(candidate) => all.push(candidate),
        Err(why) => notes.push(format!("{name} is left out: {why}")),
    };
    if is_wanted("churn") {
        let arguments = vec![args.blocks.to_string().into()];
        let made = compiled(dir, "churn", include_str!("churn.c"), &[]);
        add("churn", made.map(|path| Candidate { name: "churn", path, arguments, input: None }));
    }
    if is_wanted(STARTS) {
        let script = format!(
            "i=0; while [ $i -lt {} ]; do /bin/true || exit 1; i=$((i+1)); done",
            args.starts
        );
        let (path, arguments) = ("/bin/sh".into(), vec!["-c".into(), script.into()]);
        add(STARTS, Ok(Candidate { name: STARTS, path, arguments, input: None }));
    }
    for program in Program::ALL.into_iter().filter(|program| is_wanted(program.name())) {
        let made = program.make_ready(dir, bytes).map(|ready| {
            let Ready { path, arguments, input, .. } = ready;
            Candidate { name: program.name(), path, arguments, input }
        });
        add(program.name(), made);
    }
    all
}

struct Ran {
    seconds: f64,
    /// Of what it printed.
    digest: u64,
    slept: bool,
}

/// One run, managed with what library and swap directory are for.
fn one_run(
    candidate: &Candidate,
    managed: Option<(&Path, &Path)>,
    bytes: u64,
) -> Result<Ran, Refusal> {
    let Candidate { path, arguments, input, .. } = candidate;
    let own =
        |error: std::io::Error| Refusal::own(format!("{}: {}", path.display(), plain(&error)));
    if let Some(input) = input {
        std::fs::read(input).map_err(own)?;
    }
    let counters = Counters::new()?;
    let mut command = Command::new(path);
    without_settings(&mut command);
    if let Some((library, swap)) = managed {
        let config = Config {
            // With room for what allocators keep, and for the engine that never comes.
            memory_bytes: 2 * bytes + (256 << 20),
            areas: vec![AreaSpec::new(swap)],
            place: Some(Bases::choose()),
            ..Config::default()
        };
        command.envs(counters.environment(&config, library));
    }
    command.args(arguments).stdin(Stdio::null()).stderr(Stdio::inherit());
    let start = Instant::now();
    let output = command.output().map_err(own)?;
    let seconds = start.elapsed().as_secs_f64();
    if !output.status.success() {
        return Err(Refusal::own(format!("{} failed: {}", path.display(), output.status)));
    }
    let slept = managed.is_none() || counters.stats().get(Counter::Version) == 0;
    let mut hasher = DefaultHasher::new();
    hasher.write(&output.stdout);
    Ok(Ran { seconds, digest: hasher.finish(), slept })
}
