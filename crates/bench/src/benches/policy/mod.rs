//! Which pages leave: how often the policies bring pages in, over traces of real
//! algorithms and programs.

mod trace;
mod other_policies;
pub(crate) mod lackey;
mod recorded;
mod simulated;
pub(crate) mod record;
mod engine_policy;
mod outcome;
mod programs;

use crate::measure::report::Output;
use clap::Args;
use engine_policy::{Found, Grants};
use outcome::{Cell, PolicyOutcome};
use recorded::Recorded;
use softswap_cli::refusal::{Refusal, plain};
use softswap_engine::policy::mechanism::Without;
use softswap_engine::simulator::Costs;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use trace::Trace;

/// Pages of each recorded program, and with --quick.
const PAGES: u32 = 4096;
const QUICK_PAGES: u32 = 512;

/// Compare which pages leave with other policies, over traces.
///
/// Runs algorithms over vectors that record which pages they touch, and counts
/// how often each policy brings a page in, with room for 12.5, 25, 50 and 75 % of
/// the pages. The same seed gives the same figures on any machine.
#[derive(Args)]
#[command(after_long_help = "\
Policies: softswap is the engine's own code, and is told of misses only, as in a program; clock is the
same without what pages earn by coming back soon; fifo needs to be told of no more either. lru and
s3_fifo see every touch, and optimum (Belady's) also what comes: no policy that brings a page in when
it is touched has fewer misses. clock_ahead and softswap_ahead also read neighbours ahead, as from disk.

Traces: merge_sort, quick_sort, hash_join, graph_walk, graph_search (breadth first), btree (look-ups, 80 %
of them of 20 % of the keys), zipf (exponent 0.99), hot_set (90 % of the touches in 10 % of the pages),
scan_and_hot_set, phases (six hot sets of 15 %, one after the other), loop (all pages in order). A page
that is touched several times in a row counts once.

--trace takes what valgrind prints: `valgrind --tool=lackey --trace-mem=yes --log-file=FILE PROGRAM`. Loads
and stores count; code does not, as softswap does not manage it. Or what softswap itself recorded, as in
crates/bench/traces, where a page that was given up and touched again is the same. Over such a trace all
policies together are simulated too, in memory for 75, 50 and 25 % of its pages: with the pool, copies, streams,
and what faults cost as told, so that no clock is read.

With --json: {\"schema\": 2, \"bench\": \"policy\", \"machine\": {...}, \"seed\", \"traces\": [{\"trace\", \"pages\",
\"touches\"}], \"rows\": [{\"trace\", \"memory_percent\", \"memory_pages\", \"variant\", \"sees_hits\", \"misses\",
\"pages_in\"}], \"simulated\":
[{\"trace\", \"memory_percent\", \"memory_pages\", \"without\", \"zero_faults\", \"filled_faults\", \"pool_faults\",
\"disk_faults\", \"write_faults\", \"pages_ahead\", \"pages_written\", \"stalled_ms\", \"pool_bytes\"}], \"ratios\": {...}}.
Misses are counted from the first touch on. pages_in counts pages read ahead,
too. Ratios: misses_softswap_vs_POLICY_TRACE_PERCENT are misses of one over those of the other, with 12
for 12.5 %; misses_softswap_vs_POLICY is the geometric mean of all; pages_in_softswap_ahead_vs_clock_ahead
that of the pages brought in.")]
pub(crate) struct PolicyArgs {
    /// Pages that each recorded program touches
    #[arg(long, value_name = "N", default_value_t = PAGES,
          value_parser = clap::value_parser!(u32).range(64..=65_536))]
    pages: u32,

    /// Fewer pages: 512
    #[arg(long, conflicts_with = "pages")]
    quick: bool,

    /// What keys, graphs and orders are made from
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32))]
    seed: u32,

    /// Also a trace of a real program, recorded by valgrind's lackey or by softswap; may be
    /// repeated
    #[arg(long, value_name = "FILE")]
    trace: Vec<PathBuf>,

    /// Simulate recorded traces with so many pages of memory, instead of shares; may be repeated
    #[arg(long, value_name = "N", requires = "trace")]
    memory_pages: Vec<usize>,

    /// What faults cost in simulations: a file of `softswap bench faults --json`
    #[arg(long, value_name = "FILE", requires = "trace")]
    costs: Option<PathBuf>,

    /// Simulate recorded traces also without these mechanisms, with commas between
    #[arg(long, value_name = "NAME,...", requires = "trace", default_value_t = Without::default())]
    without: Without,

    /// Only these traces
    #[arg(long, requires = "trace")]
    only_traces: bool,

    /// Also write one JSON object to FILE; - prints it instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(super) fn run(args: &PolicyArgs) -> Result<ExitCode, Refusal> {
    let output = Output::open(args.json.as_deref())?;
    output.finish(measure(args))
}

fn measure(args: &PolicyArgs) -> Result<PolicyOutcome, Refusal> {
    let mut outcome = PolicyOutcome::new(args.seed);
    // Read first: what cannot be read should cost no time.
    let costs = args.costs.as_deref().map_or(Ok(Costs::default()), costs)?;
    let mut given: Vec<Trace> = Vec::new();
    let mut recordings = Vec::new();
    for path in &args.trace {
        let (trace, recording) = read(path)?;
        let is_taken = given.iter().any(|other| other.name == trace.name);
        if is_taken || programs::has(&trace.name) {
            return Err(Refusal::usage(format!(
                "--trace {}: there is a trace {:?} already; give the file another name",
                path.display(),
                trace.name
            )));
        }
        recordings.extend(recording.map(|recording| (trace.name.clone(), recording)));
        given.push(trace);
    }
    let pages = if args.quick { QUICK_PAGES } else { args.pages } as usize;
    let recorded = (!args.only_traces).then(|| programs::traces(pages, u64::from(args.seed)));
    for trace in recorded.into_iter().flatten().chain(given) {
        for memory in Memory::ALL {
            outcome.add(&trace, cells(&trace, memory)?);
        }
    }
    for (name, recording) in &recordings {
        let rows = |without| {
            simulated::rows(name, recording, &args.memory_pages, (costs, without)).map_err(
                |error| Refusal::own(format!("no memory for the trace {name}: {}", plain(&error))),
            )
        };
        let with = rows(Without::default())?;
        let mut without = Vec::new();
        if args.without != Without::default() {
            without = rows(args.without)?;
            outcome.add_stall_ratio((&without, &with));
        }
        outcome.add_simulated(with);
        outcome.add_simulated(without);
    }
    outcome.finish();
    Ok(outcome)
}

/// What faults cost, from a file.
fn costs(path: &Path) -> Result<Costs, Refusal> {
    let refuse = |why: String| Refusal::usage(format!("--costs {}: {why}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| refuse(plain(&error).to_string()))?;
    simulated::costs(&text).map_err(refuse)
}

/// A trace from a file of either kind.
fn read(path: &Path) -> Result<(Trace, Option<Recorded>), Refusal> {
    let bad = |why| Refusal::usage(format!("--trace {}: {}", path.display(), plain(&why)));
    let mut magic = Vec::new();
    let begin = File::open(path).and_then(|file| file.take(8).read_to_end(&mut magic));
    if begin.is_err() || !Recorded::is_one(&magic) {
        // Which says what it is not.
        return lackey::read(path).map(|trace| (trace, None));
    }
    let bytes = std::fs::read(path).map_err(bad)?;
    let recorded = Recorded::from_bytes(&bytes).map_err(bad)?;
    let name = path.file_stem().map_or("trace".into(), |stem| stem.to_string_lossy());
    Ok((Trace::new(&name, recorded.touches()), Some(recorded)))
}

/// How many of a trace's pages fit.
#[derive(Debug, Clone, Copy)]
struct Memory {
    percent: f64,
}

impl Memory {
    const ALL: [Memory; 4] = [
        Memory { percent: 12.5 },
        Memory { percent: 25.0 },
        Memory { percent: 50.0 },
        Memory { percent: 75.0 },
    ];

    fn pages(self, trace: &Trace) -> usize {
        ((trace.pages as f64 * self.percent / 100.0) as usize).max(1)
    }
}

/// A policy: what it counts with so much memory.
struct Policy {
    name: &'static str,
    /// Whether it is told of touches of resident pages.
    sees_hits: bool,
    run: fn(&Trace, usize) -> std::io::Result<Found>,
}

fn known(misses: u64) -> std::io::Result<Found> {
    Ok(Found { misses, pages_in: misses })
}

const POLICIES: [Policy; 8] = [
    Policy { name: "fifo", sees_hits: false, run: |t, m| known(other_policies::fifo(t, m)) },
    Policy {
        name: "clock",
        sees_hits: false,
        run: |t, m| engine_policy::run(t, m, Grants::None, false),
    },
    Policy {
        name: "softswap",
        sees_hits: false,
        run: |t, m| engine_policy::run(t, m, Grants::Refaults, false),
    },
    Policy { name: "lru", sees_hits: true, run: |t, m| known(other_policies::lru(t, m)) },
    Policy { name: "s3_fifo", sees_hits: true, run: |t, m| known(other_policies::s3_fifo(t, m)) },
    Policy { name: "optimum", sees_hits: true, run: |t, m| known(other_policies::optimum(t, m)) },
    Policy {
        name: "clock_ahead",
        sees_hits: false,
        run: |t, m| engine_policy::run(t, m, Grants::None, true),
    },
    Policy {
        name: "softswap_ahead",
        sees_hits: false,
        run: |t, m| engine_policy::run(t, m, Grants::Refaults, true),
    },
];

/// What all policies count with one size of memory.
fn cells(trace: &Trace, memory: Memory) -> Result<Vec<Cell>, Refusal> {
    let pages = memory.pages(trace);
    let cell = |policy: &Policy| {
        let found = (policy.run)(trace, pages).map_err(|error| {
            Refusal::own(format!("no memory for the trace {}: {}", trace.name, plain(&error)))
        })?;
        let (variant, sees_hits) = (policy.name, policy.sees_hits);
        Ok(Cell { memory_percent: memory.percent, memory_pages: pages, variant, sees_hits, found })
    };
    POLICIES.iter().map(cell).collect()
}
