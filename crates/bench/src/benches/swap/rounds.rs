//! The rounds: every side in each of them, beginning with another one.

use super::args::SwapArgs;
use super::limits::Limits;
use super::pattern_run::{self, Outgrown, PatternRun, RunContext};
use super::plan::{Case, Pattern, Side, described};
use super::program_run::{self, Failure, ProgramRun};
use super::programs::Ready;
use super::task::Phase;
use super::testbed::Testbed;
use crate::measure::sample::rotated;
use indicatif::ProgressBar;
use softswap_cli::refusal::Refusal;
use softswap_sys::PAGE_SIZE;

/// The kernel's sides may be killed for memory that could be had: so often it
/// is tried again. softswap may not: its limit holds all that it needs. Only where
/// it was given more than in a first run, that is tried instead from then on.
const ATTEMPTS: u32 = 5;
/// Of the time that is measured, the most that may go before it.
const MOST_WARM: f64 = 4.0;
/// Of all pages, those that a hot set has; more where these were less than
/// [`LEAST_HOT_OF_LIMIT`] of what fits.
const HOT_SHARE: f64 = 0.1;
const LEAST_HOT_OF_LIMIT: f64 = 0.3;
pub(super) const KILLED: &str = "the kernel killed it for outgrowing its control group";

/// A pattern with so many threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Workload {
    pub(super) pattern: Pattern,
    pub(super) threads: u32,
}

/// One side with one content and share, over all rounds. A run is one process for each
/// pattern: what one leaves behind is not to be measured with the next. What it took is
/// in the order of the workloads, whichever order they had in it.
pub(super) struct Cell {
    pub(super) case: Case,
    pub(super) runs: Vec<PatternRun>,
    /// By the kernel, before these.
    pub(super) kills: u64,
}

/// How a program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    Plain,
    /// Under softswap, with everything fitting.
    Roomy,
    /// `beside` as in [`Case`].
    Limited {
        side: Side,
        share_percent: u32,
        beside: Option<Side>,
    },
}

/// One program run in one way, over all rounds.
pub(super) struct ProgramCell {
    pub(super) name: &'static str,
    pub(super) how: How,
    /// What is asked for; where it goes by another's run, nothing.
    pub(super) limit_bytes: Option<u64>,
    pub(super) runs: Vec<ProgramRun>,
    pub(super) kills: u64,
}

pub(super) fn workloads(args: &SwapArgs) -> Vec<Workload> {
    let with = |pattern: &Pattern| {
        let pattern = *pattern;
        args.threads().iter().map(move |threads| Workload { pattern, threads: *threads })
    };
    args.patterns().iter().flat_map(with).collect()
}

/// What every run is made with.
struct Bench<'b, 'm> {
    args: &'b SwapArgs,
    testbed: &'b mut Testbed,
    context: &'b RunContext<'m>,
    workloads: Vec<Workload>,
}

pub(super) fn patterns(
    args: &SwapArgs,
    testbed: &mut Testbed,
    context: &RunContext<'_>,
    sides: &[Side],
    progress: &ProgressBar,
    notes: &mut Vec<String>,
) -> Result<Vec<Cell>, Refusal> {
    let counts_zswap = testbed.counts_zswap();
    let mut bench = Bench { args, testbed, context, workloads: workloads(args) };
    let sets =
        if args.patterns().is_empty() { Vec::new() } else { Case::sets(sides, counts_zswap) };
    let cell = |case: Case| Cell { case, runs: Vec::new(), kills: 0 };
    let mut sets: Vec<Vec<Cell>> =
        sets.into_iter().map(|set| set.into_iter().map(cell).collect()).collect();
    for round in 0..args.rounds() as usize {
        for index in rotated(sets.len(), round) {
            let set = &mut sets[index];
            // Either begins in turn; the last one always comes after its rival.
            for at in rotated(set.len(), round % 2) {
                let case = set[at].case;
                progress.set_message(format!("round {}: {}", round + 1, case.name()));
                progress.inc(1);
                // What was killed time and again would be killed again.
                let limits = limits_of(args, set, case, round);
                let Some(limits) = limits.filter(|_| set[at].runs.len() == round) else {
                    continue;
                };
                let cell = &mut set[at];
                if !bench.round_of(cell, &limits, round)? {
                    let (name, kills) = (case.name(), cell.kills);
                    notes.push(format!("{name}: {KILLED}, {kills} times; it has no figures"));
                }
            }
        }
    }
    Ok(sets.into_iter().flatten().collect())
}

/// What each pattern's process is held to; nothing where that goes by a run that
/// there is not.
fn limits_of(args: &SwapArgs, set: &[Cell], case: Case, round: usize) -> Option<Vec<u64>> {
    let Some(beside) = case.beside else {
        let limit_bytes = args.working_set() * u64::from(case.share_percent) / 100;
        return Some(vec![limit_bytes; args.patterns().len()]);
    };
    let rival = set.iter().find(|cell| cell.case.side == beside)?.runs.get(round)?;
    Some(rival.memory_uses.iter().map(|room| whole_pages(room.in_all_bytes())).collect())
}

pub(super) fn whole_pages(bytes: u64) -> u64 {
    bytes / PAGE_SIZE as u64 * PAGE_SIZE as u64
}

impl Bench<'_, '_> {
    /// One more run of a cell, of a process for each pattern; false where the kernel
    /// always kills one of them.
    fn round_of(&mut self, cell: &mut Cell, limits: &[u64], round: usize) -> Result<bool, Refusal> {
        let mut parts: Vec<(usize, PatternRun)> = Vec::with_capacity(limits.len());
        for at in rotated(limits.len(), round) {
            let Some(part) = self.part_of(cell, at, limits[at], round)? else {
                return Ok(false);
            };
            parts.push((at, part));
        }
        cell.runs.extend(in_order(parts).reduce(PatternRun::and));
        Ok(true)
    }

    /// A run's part of one pattern: nothing where the kernel always kills it.
    fn part_of(
        &mut self,
        cell: &mut Cell,
        pattern: usize,
        limit_bytes: u64,
        round: usize,
    ) -> Result<Option<PatternRun>, Refusal> {
        let (args, case) = (self.args, cell.case);
        let threads = args.threads().len();
        let workloads = &self.workloads[pattern * threads..][..threads];
        let order: Vec<usize> = rotated(threads, round).collect();
        let seconds = args.seconds();
        let phase =
            |at: &usize| phase(seconds, workloads[*at], case.share_percent, limit_bytes, round);
        let phases: Vec<Phase> = order.iter().map(phase).collect();
        let memory_uses = cell.runs.iter().map(|ran| ran.memory_uses[pattern]);
        let before = memory_uses.map(|room| (room.limits, room.bounds.peak_bytes));
        let mut passed = None;
        for limits in attempts(case.side, limit_bytes, cell.kills, before) {
            let (testbed, bytes) = (&mut *self.testbed, args.working_set());
            let ran = pattern_run::run(testbed, self.context, case, bytes, limits, &phases);
            match ran.map_err(|refusal| of(&case.name(), &refusal))? {
                Ok(mut ran) => {
                    ran.took = in_order(order.into_iter().zip(ran.took).collect()).collect();
                    return Ok(Some(ran));
                }
                Err(Outgrown::Killed(kills)) => cell.kills += kills,
                Err(Outgrown::Passed(refusal)) => passed = Some(of(&case.name(), &refusal)),
            }
        }
        if let Some(refusal) = passed {
            return Err(refusal);
        }
        match case.side {
            Side::Softswap => {
                let why = format!("{}: {KILLED}; ask for a larger --working-set", case.name());
                Err(Refusal::own(why))
            }
            _ => Ok(None),
        }
    }
}

/// What was done in another order, by its numbers.
fn in_order<T>(mut numbered: Vec<(usize, T)>) -> impl Iterator<Item = T> {
    numbered.sort_by_key(|(at, _)| *at);
    numbered.into_iter().map(|(_, one)| one)
}

/// What a run is held to, time and again if it is killed: softswap as at first once
/// it was, for too much had been learnt then.
pub(super) fn attempts(
    side: Side,
    limit_bytes: u64,
    kills: u64,
    before: impl Iterator<Item = (Limits, Option<u64>)>,
) -> Vec<Limits> {
    let first = Limits::first(limit_bytes);
    match side {
        Side::Softswap if kills > 0 => vec![first],
        Side::Softswap => {
            let mut limits = vec![Limits::after(limit_bytes, before), first];
            limits.dedup();
            limits
        }
        _ => vec![first; ATTEMPTS as usize],
    }
}

fn of(what: &str, refusal: &Refusal) -> Refusal {
    Refusal::new(refusal.status, format!("{what}: {refusal}"))
}

pub(super) fn phase(
    seconds: f64,
    workload: Workload,
    share_percent: u32,
    limit_bytes: u64,
    round: usize,
) -> Phase {
    Phase {
        pattern: workload.pattern,
        threads: workload.threads as usize,
        // As many as pages fit, so that those in memory are this pattern's.
        warm_touches: limit_bytes / PAGE_SIZE as u64,
        warm_seconds: seconds * MOST_WARM,
        seconds,
        hot_share: HOT_SHARE.max(LEAST_HOT_OF_LIMIT * f64::from(share_percent) / 100.0),
        // The same touches for every side in a round.
        seed: 1000 * (round as u64 + 1) + 100 * u64::from(workload.threads),
    }
}

/// Runs the programs; a way in which one fails is noted and has fewer runs.
pub(super) fn programs(
    args: &SwapArgs,
    testbed: &mut Testbed,
    context: &RunContext<'_>,
    sides: &[Side],
    all: &[Ready],
    progress: &ProgressBar,
    notes: &mut Vec<String>,
) -> Result<Vec<ProgramCell>, Refusal> {
    let mut found = Vec::new();
    for ready in all {
        let name = ready.program.name();
        let first = program_run::plain_run(ready, context)
            .map_err(|why| Refusal::own(format!("{name} as it is: {why}")))?;
        let (shares, counts_zswap) = (args.program_shares(), testbed.counts_zswap());
        let mut sets = cells_of(shares, name, sides, counts_zswap, first.peak_bytes);
        for round in 0..args.rounds() as usize {
            for index in rotated(sets.len(), round) {
                let set = &mut sets[index];
                for at in 0..set.len() {
                    let way = how(set[at].how);
                    progress.set_message(format!("round {}: {name}, {way}", round + 1));
                    progress.inc(1);
                    // What failed once would fail again.
                    let limit_bytes = program_limit_of(set, at, round);
                    let Some(limit_bytes) = limit_bytes.filter(|_| set[at].runs.len() == round)
                    else {
                        continue;
                    };
                    match run(ready, context, testbed, &mut set[at], limit_bytes, &first)? {
                        Ok(ran) => set[at].runs.push(ran),
                        Err(why) => notes.push(format!("{name}, {way}: {why}")),
                    }
                }
            }
        }
        found.extend(sets.into_iter().flatten());
    }
    Ok(found)
}

/// How many runs [`programs`] makes of each program in a round.
pub(super) fn ways(args: &SwapArgs, sides: &[Side], counts_zswap: bool) -> usize {
    cells_of(args.program_shares(), "", sides, counts_zswap, 0).iter().map(Vec::len).sum()
}

/// All ways in which a program runs, in sets that run one after the other: what
/// goes by another one's run comes right after it.
fn cells_of(
    shares: &[u32],
    name: &'static str,
    sides: &[Side],
    counts_zswap: bool,
    peak_bytes: u64,
) -> Vec<Vec<ProgramCell>> {
    let cell =
        |how, limit_bytes| ProgramCell { name, how, limit_bytes, runs: Vec::new(), kills: 0 };
    let has_ours = sides.contains(&Side::Softswap);
    let mut sets = vec![vec![cell(How::Plain, None)]];
    sets.extend(has_ours.then(|| vec![cell(How::Roomy, None)]));
    let set = |share_percent: u32, side: Side| {
        let limit_bytes = whole_pages(peak_bytes * u64::from(share_percent) / 100);
        let limited = |side, beside| How::Limited { side, share_percent, beside };
        let same = has_ours && side.keeps_outside(counts_zswap);
        let same = same.then(|| cell(limited(Side::Softswap, Some(side)), None));
        [cell(limited(side, None), Some(limit_bytes))].into_iter().chain(same).collect()
    };
    sets.extend(shares.iter().flat_map(|share| sides.iter().map(|side| set(*share, *side))));
    sets
}

/// What a run of a set is held to, where it is; nothing where it goes by a run
/// that there is not.
fn program_limit_of(set: &[ProgramCell], at: usize, round: usize) -> Option<Option<u64>> {
    if !matches!(set[at].how, How::Limited { beside: Some(_), .. }) {
        return Some(set[at].limit_bytes);
    }
    let rival = set[0].runs.get(round)?;
    Some(Some(whole_pages(rival.limits?.limit_bytes + rival.bounds.outside_bytes)))
}

/// One run; it must print what the `first` one did.
fn run(
    ready: &Ready,
    context: &RunContext<'_>,
    testbed: &mut Testbed,
    cell: &mut ProgramCell,
    limit_bytes: Option<u64>,
    first: &ProgramRun,
) -> Result<Result<ProgramRun, String>, Refusal> {
    let ran = match cell.how {
        How::Plain => program_run::plain_run(ready, context),
        How::Roomy => program_run::roomy_run(ready, context, testbed, first.peak_bytes),
        How::Limited { side, .. } => {
            let limit_bytes = limit_bytes.unwrap_or(first.peak_bytes);
            let before =
                cell.runs.iter().filter_map(|ran| Some((ran.limits?, ran.bounds.peak_bytes)));
            let attempts = attempts(side, limit_bytes, cell.kills, before);
            limited_run(ready, context, testbed, side, attempts, &mut cell.kills)?
        }
    };
    if ran.as_ref().is_ok_and(|ran| ran.digest != first.digest) {
        return Err(Refusal::own(format!(
            "{}, {}: it printed something else than without a limit",
            cell.name,
            how(cell.how)
        )));
    }
    Ok(ran)
}

pub(super) fn limited_run(
    ready: &Ready,
    context: &RunContext<'_>,
    testbed: &mut Testbed,
    side: Side,
    attempts: Vec<Limits>,
    all_kills: &mut u64,
) -> Result<Result<ProgramRun, String>, Refusal> {
    for limits in attempts {
        match program_run::limited_run(ready, context, testbed, side, limits)? {
            Ok(ran) => return Ok(Ok(ran)),
            Err(Failure::Killed(kills)) => *all_kills += kills,
            Err(Failure::Other(why)) => return Ok(Err(why)),
        }
    }
    Ok(Err(KILLED.into()))
}

pub(super) fn how(how: How) -> String {
    match how {
        How::Plain => "as it is".into(),
        How::Roomy => "softswap, 100 %".into(),
        How::Limited { side, share_percent, beside } => {
            format!("{}, {share_percent} %", described(side, beside))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testbed::Bounds;
    use super::*;

    fn ran(limit_bytes: u64, outside_bytes: u64) -> ProgramRun {
        ProgramRun {
            seconds: 1.0,
            cpu_seconds: 1.0,
            digest: 0,
            peak_bytes: 0,
            limits: Some(Limits::first(limit_bytes)),
            bounds: Bounds { outside_bytes, ..Bounds::default() },
        }
    }

    #[test]
    fn a_program_meets_who_keeps_pages_outside_with_the_same_dram_next() {
        for counts_zswap in [false, true] {
            let sets = cells_of(&[50, 25], "x", &Side::ALL, counts_zswap, 100 << 20);
            assert_eq!(sets.len(), 2 + 2 * Side::ALL.len());
            for set in &sets {
                let How::Limited { side, share_percent, .. } = set[0].how else { continue };
                assert_eq!(set[0].limit_bytes, Some(u64::from(share_percent) << 20));
                let same: Vec<How> = set[1..].iter().map(|cell| cell.how).collect();
                let ours = How::Limited { side: Side::Softswap, share_percent, beside: Some(side) };
                let wanted = if side.keeps_outside(counts_zswap) { vec![ours] } else { vec![] };
                assert_eq!(same, wanted);
            }
        }
        let alone = cells_of(&[50], "x", &[Side::KernelZram], false, 100 << 20);
        assert_eq!(alone.iter().flatten().count(), 2);
    }

    #[test]
    fn the_same_dram_is_what_the_rival_had_in_the_same_round() {
        let sides = [Side::KernelZram, Side::Softswap];
        let mut set = cells_of(&[50], "x", &sides, false, 100 << 20);
        let set = &mut set[2];
        assert_eq!(program_limit_of(set, 0, 0), Some(Some(50 << 20)));
        assert_eq!(program_limit_of(set, 1, 0), None, "the rival has not come through");
        set[0].runs = vec![ran(50 << 20, 5000), ran(50 << 20, 9000)];
        assert_eq!(program_limit_of(set, 1, 0), Some(Some((50 << 20) + 4096)));
        assert_eq!(program_limit_of(set, 1, 1), Some(Some((50 << 20) + 8192)));
    }
}
