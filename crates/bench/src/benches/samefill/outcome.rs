//! The result of `bench samefill`.

use super::args::SamefillArgs;
use super::dump::{Dump, MIX, Rounds};
use crate::measure::machine::{Disturbance, Machine};
use crate::measure::report::{Report, SCHEMA, lines, ratios_text};
use crate::measure::sample::{median, variation};
use crate::pages::checks::{Check, CheckRow, Verdicts, check_line, mbps};
use serde::Serialize;
use serde_json::{Map, Value};
use softswap_cli::units;

#[derive(Debug, Serialize)]
pub(super) struct SamefillOutcome {
    schema: u32,
    bench: &'static str,
    pages: u64,
    rounds: u32,
    machine: Machine,
    #[serde(flatten)]
    disturbance: Disturbance,
    ratios: Map<String, Value>,
    dumps: Vec<DumpRow>,
    together: DumpRow,
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct DumpRow {
    dump: &'static str,
    pages: u64,
    collected_pages: u64,
    same_filled_share: f64,
    zero_share: f64,
    other_share: f64,
    checks: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    #[serde(flatten)]
    cold: CheckRow,
    in_cache_mbps: f64,
    in_cache_cov: f64,
}

/// Whether pages come from memory or are in the cache.
type Cache = fn(&Dump) -> &Rounds;

const COLD: Cache = |dump| &dump.cold;
const IN_CACHE: Cache = |dump| &dump.in_cache;

impl SamefillOutcome {
    pub(super) fn new(
        args: &SamefillArgs,
        dumps: &[Dump],
        machine: Machine,
        disturbance: Disturbance,
        notes: Vec<String>,
    ) -> SamefillOutcome {
        let all: Vec<&Dump> = dumps.iter().collect();
        let together = row("together", &all);
        SamefillOutcome {
            schema: SCHEMA,
            bench: "samefill",
            pages: together.pages,
            rounds: args.rounds,
            machine,
            disturbance,
            ratios: ratios(dumps),
            dumps: dumps.iter().map(|dump| row(dump.name, &[dump])).collect(),
            together,
            notes,
        }
    }
}

fn verdicts(dumps: &[&Dump]) -> Verdicts {
    let mut sum = Verdicts::default();
    dumps.iter().for_each(|dump| sum.add(&dump.verdicts));
    sum
}

/// Time of each round over all of `dumps`, in ns.
fn rounds(dumps: &[&Dump], cache: Cache, check: Check) -> Vec<u64> {
    let of = |dump: &Dump| cache(dump)[check as usize].clone();
    let add = |sum: Vec<u64>, dump: &&Dump| sum.iter().zip(of(dump)).map(|(a, b)| a + b).collect();
    dumps.split_first().map_or(Vec::new(), |(first, rest)| rest.iter().fold(of(first), add))
}

fn row(dump: &'static str, dumps: &[&Dump]) -> DumpRow {
    let found = verdicts(dumps);
    let figures = |cache, check| {
        let rounds = rounds(dumps, cache, check).into_iter().map(|ns| mbps(found.pages, ns));
        let rounds: Vec<f64> = rounds.collect();
        (median(rounds.clone()), variation(&rounds))
    };
    let check_row = |check: Check| {
        let (mbps, cov) = figures(COLD, check);
        let (in_cache_mbps, in_cache_cov) = figures(IN_CACHE, check);
        let iterations = found.iterations(check);
        let cold = CheckRow { variant: check.name(), iterations, mbps, cov };
        Row { cold, in_cache_mbps, in_cache_cov }
    };
    DumpRow {
        dump,
        pages: found.pages,
        collected_pages: dumps.iter().map(|dump| dump.collected as u64).sum(),
        same_filled_share: found.share(found.same_filled()),
        zero_share: found.share(found.zero),
        other_share: found.share(found.other),
        checks: Check::ALL.into_iter().map(check_row).collect(),
    }
}

fn ratios(dumps: &[Dump]) -> Map<String, Value> {
    let programs: Vec<&Dump> = dumps.iter().filter(|dump| dump.name != MIX).collect();
    let mut groups = vec![(String::new(), dumps.iter().collect()), ("_programs".into(), programs)];
    groups.extend(dumps.iter().map(|dump| (format!("_{}", dump.name), vec![dump])));
    let mut ratios = Map::new();
    for (suffix, dumps) in &groups {
        let found = verdicts(dumps);
        let iterations = found.iterations(Check::LastFirst).zip(found.iterations(Check::Forward));
        let ratio = iterations.map(|(last_first, forward)| last_first / forward);
        // Of no dump at all it is no number, and so null.
        ratios.insert(format!("iterations_last_first_vs_forward{suffix}"), ratio.into());
        for (where_from, cache) in [("", COLD), ("_in_cache", IN_CACHE)] {
            for (name, fast, slow) in [
                ("last_first_vs_forward", Check::LastFirst, Check::Forward),
                ("softswap_vs_last_first", Check::Softswap, Check::LastFirst),
            ] {
                let pairs = rounds(dumps, cache, slow).into_iter().zip(rounds(dumps, cache, fast));
                let gains = pairs.map(|(slow, fast)| slow as f64 / fast.max(1) as f64).collect();
                let name = format!("throughput_{name}{where_from}{suffix}");
                ratios.insert(name, median(gains).into());
            }
        }
    }
    ratios
}

impl Report for SamefillOutcome {
    fn table(&self) -> String {
        let mut text = format!("{}\n{} rounds\n", self.machine.line(), self.rounds);
        text += &self.dumps.iter().chain([&self.together]).map(dump_text).collect::<String>();
        text += &format!("\n{}\n\n", self.disturbance);
        text + &ratios_text(&self.ratios) + &lines(&self.notes)
    }
}

fn dump_text(row: &DumpRow) -> String {
    let mut text = format!(
        "\n{}: {} pages, {} of them collected, the others repeat these; {:.1} % same-filled \
         ({:.1} % zeroes, {:.1} % another word)\n",
        row.dump,
        units::count(row.pages),
        units::count(row.collected_pages.min(row.pages)),
        row.same_filled_share * 100.0,
        row.zero_share * 100.0,
        row.other_share * 100.0
    );
    text += &format!(
        "{:<12}{:>11}{:>10}{:>8}{:>15}{:>8}\n",
        "check", "iterations", "MB/s", "CoV", "in cache MB/s", "CoV"
    );
    for Row { cold, in_cache_mbps, in_cache_cov } in &row.checks {
        let cov = in_cache_cov * 100.0;
        text += &format!("{}{in_cache_mbps:>15.0}{cov:>6.1} %\n", check_line(cold));
    }
    text
}
