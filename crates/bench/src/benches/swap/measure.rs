//! The rounds: every side in each of them, beginning with another one.

use super::ground::Ground;
use super::limits::Limits;
use super::plan::{Matter, Pattern, Side, described};
use super::programs::Ready;
use super::session::{self, Means, Outgrown, Ran};
use super::task::Phase;
use super::whole::{self, Failure, WholeRan};
use super::{HOT_SHARE, LEAST_HOT_OF_LIMIT, SwapArgs};
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
const KILLED: &str = "the kernel killed it for outgrowing its control group";

/// A pattern with so many threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kind {
    pub(super) pattern: Pattern,
    pub(super) threads: u32,
}

/// One side with one content and share, over all rounds. A run is one process for each
/// pattern: what one leaves behind is not to be measured with the next. What it took is
/// in the order of the kinds, whichever order they had in it.
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
    /// `beside` as in [`Matter`].
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

/// What every run is made with.
struct Bench<'b, 'm> {
    args: &'b SwapArgs,
    ground: &'b mut Ground,
    means: &'b Means<'m>,
    kinds: Vec<Kind>,
}

pub(super) fn patterns(
    args: &SwapArgs,
    ground: &mut Ground,
    means: &Means<'_>,
    sides: &[Side],
    progress: &ProgressBar,
    notes: &mut Vec<String>,
) -> Result<Vec<Cell>, Refusal> {
    let counts_zswap = ground.counts_zswap();
    let mut bench = Bench { args, ground, means, kinds: kinds(args) };
    let sets = if args.no_patterns { Vec::new() } else { Matter::sets(sides, counts_zswap) };
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
                let limits = limits_of(args, set, matter, round);
                let Some(limits) = limits.filter(|_| set[at].runs.len() == round) else {
                    continue;
                };
                let cell = &mut set[at];
                if !bench.round_of(cell, &limits, round)? {
                    let (name, kills) = (matter.name(), cell.kills);
                    notes.push(format!("{name}: {KILLED}, {kills} times; it has no figures"));
                }
            }
        }
    }
    Ok(sets.into_iter().flatten().collect())
}

/// What each pattern's process is held to; nothing where that goes by a run that
/// there is not.
fn limits_of(args: &SwapArgs, set: &[Cell], matter: Matter, round: usize) -> Option<Vec<u64>> {
    let Some(beside) = matter.beside else {
        let limit_bytes = args.working_set() * u64::from(matter.share_percent) / 100;
        return Some(vec![limit_bytes; args.patterns.len()]);
    };
    let rival = set.iter().find(|cell| cell.matter.side == beside)?.runs.get(round)?;
    Some(rival.rooms.iter().map(|room| whole_pages(room.in_all_bytes())).collect())
}

fn whole_pages(bytes: u64) -> u64 {
    bytes / PAGE_SIZE as u64 * PAGE_SIZE as u64
}

impl Bench<'_, '_> {
    /// One more run of a cell, of a process for each pattern; false where the kernel
    /// always kills one of them.
    fn round_of(&mut self, cell: &mut Cell, limits: &[u64], round: usize) -> Result<bool, Refusal> {
        let mut parts: Vec<(usize, Ran)> = Vec::with_capacity(limits.len());
        for at in rotated(limits.len(), round) {
            let Some(part) = self.part_of(cell, at, limits[at], round)? else {
                return Ok(false);
            };
            parts.push((at, part));
        }
        cell.runs.extend(in_order(parts).reduce(Ran::and));
        Ok(true)
    }

    /// A run's part of one pattern: nothing where the kernel always kills it.
    fn part_of(
        &mut self,
        cell: &mut Cell,
        pattern: usize,
        limit_bytes: u64,
        round: usize,
    ) -> Result<Option<Ran>, Refusal> {
        let (args, matter) = (self.args, cell.matter);
        let threads = args.threads.len();
        let kinds = &self.kinds[pattern * threads..][..threads];
        let order: Vec<usize> = rotated(threads, round).collect();
        let phase = |at: &usize| phase(args, kinds[*at], matter.share_percent, limit_bytes, round);
        let phases: Vec<Phase> = order.iter().map(phase).collect();
        let rooms = cell.runs.iter().map(|ran| ran.rooms[pattern]);
        let before = rooms.map(|room| (room.limits, room.bounds.peak_bytes));
        let mut passed = None;
        for limits in attempts(matter.side, limit_bytes, cell.kills, before) {
            let (ground, bytes) = (&mut *self.ground, args.working_set());
            let ran = session::run(ground, self.means, matter, bytes, limits, &phases);
            match ran.map_err(|refusal| of(&matter.name(), &refusal))? {
                Ok(mut ran) => {
                    ran.took = in_order(order.into_iter().zip(ran.took).collect()).collect();
                    return Ok(Some(ran));
                }
                Err(Outgrown::Killed(kills)) => cell.kills += kills,
                Err(Outgrown::Passed(refusal)) => passed = Some(of(&matter.name(), &refusal)),
            }
        }
        if let Some(refusal) = passed {
            return Err(refusal);
        }
        match matter.side {
            Side::Softswap => {
                let why = format!("{}: {KILLED}; ask for a larger --working-set", matter.name());
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
fn attempts(
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
        let (shares, counts_zswap) = (args.program_shares(), ground.counts_zswap());
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
                    match run(ready, means, ground, &mut set[at], limit_bytes, &first)? {
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
    means: &Means<'_>,
    ground: &mut Ground,
    cell: &mut ProgramCell,
    limit_bytes: Option<u64>,
    first: &WholeRan,
) -> Result<Result<WholeRan, String>, Refusal> {
    let ran = match cell.how {
        How::Plain => whole::plain_run(ready, means),
        How::Roomy => whole::roomy_run(ready, means, ground, first.peak_bytes),
        How::Limited { side, .. } => {
            let limit_bytes = limit_bytes.unwrap_or(first.peak_bytes);
            let before =
                cell.runs.iter().filter_map(|ran| Some((ran.limits?, ran.bounds.peak_bytes)));
            let attempts = attempts(side, limit_bytes, cell.kills, before);
            limited_run(ready, means, ground, side, attempts, &mut cell.kills)?
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

fn limited_run(
    ready: &Ready,
    means: &Means<'_>,
    ground: &mut Ground,
    side: Side,
    attempts: Vec<Limits>,
    all_kills: &mut u64,
) -> Result<Result<WholeRan, String>, Refusal> {
    for limits in attempts {
        match whole::limited_run(ready, means, ground, side, limits)? {
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
    use super::super::ground::Bounds;
    use super::*;

    fn ran(limit_bytes: u64, outside_bytes: u64) -> WholeRan {
        WholeRan {
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
