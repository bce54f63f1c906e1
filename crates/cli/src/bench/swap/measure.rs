//! The rounds: every side in each of them, beginning with another one.

use super::super::sample::rotated;
use super::ground::Ground;
use super::plan::{Matter, Pattern, Side};
use super::programs::Ready;
use super::session::{self, Means, Ran};
use super::task::Phase;
use super::whole::{self, Failure, WholeRan};
use super::{HOT_SHARE, LEAST_HOT_OF_LIMIT, SwapArgs};
use crate::refusal::Refusal;
use indicatif::ProgressBar;
use softswap_sys::PAGE_SIZE;

/// The kernel's sides may be killed for memory that could be had: so often it
/// is tried again. softswap may not: its limit holds all that it needs.
const ATTEMPTS: u32 = 5;
/// Of the time that is measured, the most that may go before it.
const MOST_WARM: f64 = 4.0;
const KILLED: &str = "the kernel killed it for outgrowing its control group";

/// A pattern with so many threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kind {
    pub(super) pattern: Pattern,
    pub(super) threads: u32,
}

/// One side with one content and share, over all rounds. What a run took is in
/// the order of the kinds, whichever order they had in it.
pub(super) struct Cell {
    pub(super) matter: Matter,
    pub(super) runs: Vec<Ran>,
    /// By the kernel, before these.
    pub(super) kills: u64,
}

/// How a program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    Plain,
    /// Under softswap, with everything fitting.
    Roomy,
    Limited {
        side: Side,
        share_percent: u32,
    },
}

/// One program run in one way, over all rounds.
pub(super) struct ProgramCell {
    pub(super) name: &'static str,
    pub(super) how: How,
    pub(super) limit_bytes: Option<u64>,
    pub(super) runs: Vec<WholeRan>,
    pub(super) kills: u64,
}

pub(super) fn kinds(args: &SwapArgs) -> Vec<Kind> {
    let with = |pattern: &Pattern| {
        let pattern = *pattern;
        args.threads.iter().map(move |threads| Kind { pattern, threads: *threads })
    };
    args.patterns.iter().flat_map(with).collect()
}

pub(super) fn patterns(
    args: &SwapArgs,
    ground: &mut Ground,
    means: &Means<'_>,
    sides: &[Side],
    progress: &ProgressBar,
    notes: &mut Vec<String>,
) -> Result<Vec<Cell>, Refusal> {
    let kinds = kinds(args);
    let sets = if args.no_patterns { Vec::new() } else { Matter::sets(sides) };
    let cell = |matter: Matter| Cell { matter, runs: Vec::new(), kills: 0 };
    let mut sets: Vec<Vec<Cell>> =
        sets.into_iter().map(|set| set.into_iter().map(cell).collect()).collect();
    for round in 0..args.rounds() as usize {
        for index in rotated(sets.len(), round) {
            let set = &mut sets[index];
            // Either begins in turn; the last one always comes after its rival.
            for at in rotated(set.len(), round % 2) {
                let matter = set[at].matter;
                progress.set_message(format!("round {}: {}", round + 1, matter.name()));
                progress.inc(1);
                // What was killed time and again would be killed again.
                let limit_bytes = limit_of(args, set, matter, round);
                let Some(limit_bytes) = limit_bytes.filter(|_| set[at].runs.len() == round) else {
                    continue;
                };
                let cell = &mut set[at];
                if !round_of(args, ground, means, cell, &kinds, limit_bytes, round)? {
                    let (name, kills) = (matter.name(), cell.kills);
                    notes.push(format!("{name}: {KILLED}, {kills} times; it has no figures"));
                }
            }
        }
    }
    Ok(sets.into_iter().flatten().collect())
}

/// What a run is held to; nothing where it goes by a run that there is not.
fn limit_of(args: &SwapArgs, set: &[Cell], matter: Matter, round: usize) -> Option<u64> {
    let Some(beside) = matter.beside else {
        return Some(args.working_set() * u64::from(matter.share_percent) / 100);
    };
    let rival = set.iter().find(|cell| cell.matter.side == beside)?.runs.get(round)?;
    Some((rival.limit_bytes + rival.bounds.outside_bytes) / PAGE_SIZE as u64 * PAGE_SIZE as u64)
}

/// One more run of a cell; false where the kernel always kills it.
fn round_of(
    args: &SwapArgs,
    ground: &mut Ground,
    means: &Means<'_>,
    cell: &mut Cell,
    kinds: &[Kind],
    limit_bytes: u64,
    round: usize,
) -> Result<bool, Refusal> {
    let matter = cell.matter;
    let order: Vec<usize> = rotated(kinds.len(), round).collect();
    let phase = |at: &usize| phase(args, kinds[*at], matter.share_percent, limit_bytes, round);
    let phases: Vec<Phase> = order.iter().map(phase).collect();
    for _ in 0..attempts(matter.side) {
        let ran = session::run(ground, means, matter, args.working_set(), limit_bytes, &phases);
        match ran.map_err(|refusal| of(&matter.name(), &refusal))? {
            Ok(mut ran) => {
                let mut placed: Vec<_> = order.into_iter().zip(ran.took).collect();
                placed.sort_by_key(|(at, _)| *at);
                ran.took = placed.into_iter().map(|(_, took)| took).collect();
                cell.runs.push(ran);
                return Ok(true);
            }
            Err(kills) => cell.kills += kills,
        }
    }
    match matter.side {
        Side::Softswap => {
            let why = format!("{}: {KILLED}; ask for a larger --working-set", matter.name());
            Err(Refusal::own(why))
        }
        _ => Ok(false),
    }
}

fn attempts(side: Side) -> u32 {
    if side == Side::Softswap { 1 } else { ATTEMPTS }
}

fn of(what: &str, refusal: &Refusal) -> Refusal {
    Refusal::new(refusal.status, format!("{what}: {refusal}"))
}

fn phase(args: &SwapArgs, kind: Kind, share_percent: u32, limit_bytes: u64, round: usize) -> Phase {
    let seconds = args.seconds();
    Phase {
        pattern: kind.pattern,
        threads: kind.threads as usize,
        // As many as pages fit, so that those in memory are this pattern's.
        warm_touches: limit_bytes / PAGE_SIZE as u64,
        warm_seconds: seconds * MOST_WARM,
        seconds,
        hot_share: HOT_SHARE.max(LEAST_HOT_OF_LIMIT * f64::from(share_percent) / 100.0),
        // The same touches for every side in a round.
        seed: 1000 * (round as u64 + 1) + 100 * u64::from(kind.threads),
    }
}

/// Runs the programs; a way in which one fails is noted and has fewer runs.
pub(super) fn programs(
    args: &SwapArgs,
    ground: &mut Ground,
    means: &Means<'_>,
    sides: &[Side],
    all: &[Ready],
    progress: &ProgressBar,
    notes: &mut Vec<String>,
) -> Result<Vec<ProgramCell>, Refusal> {
    let mut found = Vec::new();
    for ready in all {
        let name = ready.program.name();
        let first = whole::plain_run(ready, means)
            .map_err(|why| Refusal::own(format!("{name} as it is: {why}")))?;
        let mut cells = cells_of(args, name, sides, first.peak_bytes);
        for round in 0..args.rounds() as usize {
            for index in rotated(cells.len(), round) {
                let cell = &mut cells[index];
                progress.set_message(format!("round {}: {name}, {}", round + 1, how(cell.how)));
                progress.inc(1);
                // What failed once would fail again.
                if cell.runs.len() < round {
                    continue;
                }
                match run(ready, means, ground, cell, first.peak_bytes)? {
                    Ok(ran) if ran.digest == first.digest => cell.runs.push(ran),
                    Ok(_) => {
                        return Err(Refusal::own(format!(
                            "{name}, {}: it printed something else than without a limit",
                            how(cell.how)
                        )));
                    }
                    Err(why) => notes.push(format!("{name}, {}: {why}", how(cell.how))),
                }
            }
        }
        found.extend(cells);
    }
    Ok(found)
}

/// How many runs [`programs`] makes of each program in a round.
pub(super) fn ways(args: &SwapArgs, sides: &[Side]) -> usize {
    cells_of(args, "", sides, 0).len()
}

fn cells_of(
    args: &SwapArgs,
    name: &'static str,
    sides: &[Side],
    peak_bytes: u64,
) -> Vec<ProgramCell> {
    let cell =
        |how, limit_bytes| ProgramCell { name, how, limit_bytes, runs: Vec::new(), kills: 0 };
    let mut cells = vec![cell(How::Plain, None)];
    if sides.contains(&Side::Softswap) {
        cells.push(cell(How::Roomy, None));
    }
    for share_percent in args.program_shares() {
        cells.extend(sides.iter().map(|side| {
            let limit_bytes = peak_bytes * u64::from(*share_percent) / 100 / 4096 * 4096;
            cell(How::Limited { side: *side, share_percent: *share_percent }, Some(limit_bytes))
        }));
    }
    cells
}

fn run(
    ready: &Ready,
    means: &Means<'_>,
    ground: &mut Ground,
    cell: &mut ProgramCell,
    peak_bytes: u64,
) -> Result<Result<WholeRan, String>, Refusal> {
    let side = match cell.how {
        How::Plain => return Ok(whole::plain_run(ready, means)),
        How::Roomy => return Ok(whole::roomy_run(ready, means, ground, peak_bytes)),
        How::Limited { side, .. } => side,
    };
    let limit_bytes = cell.limit_bytes.unwrap_or(peak_bytes);
    for _ in 0..attempts(side) {
        match whole::limited_run(ready, means, ground, side, limit_bytes)? {
            Ok(ran) => return Ok(Ok(ran)),
            Err(Failure::Killed(kills)) => cell.kills += kills,
            Err(Failure::Other(why)) => return Ok(Err(why)),
        }
    }
    Ok(Err(KILLED.into()))
}

pub(super) fn how(how: How) -> String {
    match how {
        How::Plain => "as it is".into(),
        How::Roomy => "softswap, 100 %".into(),
        How::Limited { side, share_percent } => format!("{}, {share_percent} %", side.name()),
    }
}
