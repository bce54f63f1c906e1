//! Turns: load control of a tree that thrashes. [`crate::ledger`] stores the decisions.
//!
//! A process *claims* a turn if it was busy all the time, waited for pages from the disk, and wants
//! more memory than it holds. If at least two claimants do not fit together, one of them owns a
//! turn: it gets the memory that it wants, and the faults of the other claimants wait. A process
//! that was idle in between claims nothing, so its faults never wait: another process may depend on
//! it.
//!
//! A turn expires, or ends as soon as its owner exits, stops, or is idle: an idle owner may wait
//! for another claimant. The next owner is the claimant that has waited longest, in steps of
//! [`MIN_MS`]; of several, the one that needs the least memory. A turn is so short that each of up
//! to 17 claimants waits at most [`WAIT_MS`].

/// Shortest length of a turn that expires, in ms.
pub const MIN_MS: u64 = 2_000;
/// Longest turn, in ms.
pub const MAX_MS: u64 = 30_000;
/// Longest wait for a turn, in ms.
pub const WAIT_MS: u64 = 35_000;
/// Time without progress after which an owner counts as idle, in ms.
pub const IDLE_MS: u64 = 50;
/// Time without a sign of life after which a process counts as stopped, in ms.
pub const SILENT_MS: u64 = 1_500;
/// Ratio of a turn's length to the time to swap in its owner's working set.
const COST_FACTOR: u64 = 20;
/// Excess of waiting over running at which a tree counts as thrashing, in ms: reached by 0.4 s of
/// waiting only, or by 1.6 s of which five eighths are waiting.
const THRASHES_MS: i64 = 400;
/// Longest interval that one call of [`Thrashing::sample`] counts, in ms.
const MAX_SAMPLE_MS: u64 = 250;

/// Entry and generation of a member.
pub type Id = (usize, u32);

/// A process that wants more memory than it gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claimant {
    /// The member.
    pub id: Id,
    /// Chunks that its working set needs.
    pub wants: usize,
    /// Time to swap these chunks in, in ms.
    pub cost_ms: u64,
    /// Time since it began to claim a turn, or since its last turn, in ms.
    pub waited_ms: u64,
    /// Time from its last progress (it ran, or faulted a page in) to its last sign of life, in ms.
    pub idle_ms: u64,
    /// Time since its last sign of life, in ms.
    pub silent_ms: u64,
}

/// A turn: its owner and its latest end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    /// The member that has the turn.
    pub owner: Id,
    /// Time at which the turn ends at the latest, in ms.
    pub until_ms: u64,
}

/// Returns the maximum length of a turn: each other claimant gets its turn within [`WAIT_MS`] if
/// all turns have about this length, and follow the order of the waits.
fn longest_ms(others: &[&Claimant]) -> u64 {
    let mut waits: Vec<u64> = others.iter().map(|it| it.waited_ms).collect();
    waits.sort_unstable_by(|one, other| other.cmp(one));
    // A margin of one step: claimants that waited for equally many steps are ordered by memory.
    let left_ms = |waited_ms: u64| WAIT_MS.saturating_sub(MIN_MS + waited_ms);
    let each_ms = waits.iter().zip(1..).map(|(waited_ms, place)| left_ms(*waited_ms) / place);
    each_ms.min().unwrap_or(MAX_MS).clamp(MIN_MS, MAX_MS)
}

/// If no claimant fits alone, each would wait for pages even in its own turn.
fn contend(claimants: &[Claimant], limit: usize) -> bool {
    let wants = claimants.iter().fold(0, |sum: usize, it| sum.saturating_add(it.wants));
    claimants.len() > 1 && wants > limit && claimants.iter().any(|it| it.wants <= limit)
}

/// Returns the turn that follows `turn`, which may be the same one. `limit` is the number of chunks
/// for all claimants; turns begin if the tree `thrashes`.
#[must_use]
pub fn next(
    turn: Option<Turn>,
    now_ms: u64,
    limit: usize,
    thrashes: bool,
    claimants: &[Claimant],
) -> Option<Turn> {
    if turn.is_none() && !thrashes || !contend(claimants, limit) {
        return None;
    }
    let live_but = |id: Option<Id>| {
        let live = claimants.iter().filter(|it| it.silent_ms < SILENT_MS);
        live.filter(move |it| Some(it.id) != id).collect::<Vec<_>>()
    };
    let others = live_but(turn.map(|turn| turn.owner));
    if let Some(turn) = turn {
        // Further claimants shorten the turn.
        let until_ms = turn.until_ms.min(now_ms + longest_ms(&others));
        let is_at_it =
            |it: &Claimant| it.id == turn.owner && it.idle_ms < IDLE_MS && it.silent_ms < SILENT_MS;
        if now_ms < until_ms && claimants.iter().any(is_at_it) {
            return Some(Turn { until_ms, ..turn });
        }
    }
    let key = |it: &&Claimant| (it.waited_ms / MIN_MS, usize::MAX - it.wants);
    let owner = others.into_iter().max_by_key(key)?;
    let longest_ms = longest_ms(&live_but(Some(owner.id)));
    let length_ms = owner.cost_ms.saturating_mul(COST_FACTOR).clamp(MIN_MS, longest_ms);
    Some(Turn { owner: owner.id, until_ms: now_ms + length_ms })
}

/// Detects that processes wait for pages more than half of their runnable time.
#[derive(Debug, Default)]
pub struct Thrashing {
    sampled_at_ms: u64,
    excess_ms: i64,
}

impl Thrashing {
    /// Samples how long processes `waited` and `ran`, in any unit. Returns true if they thrash.
    pub fn sample(&mut self, now_ms: u64, waited: u64, ran: u64) -> bool {
        let passed_ms = now_ms.saturating_sub(self.sampled_at_ms).min(MAX_SAMPLE_MS) as i64;
        self.sampled_at_ms = now_ms;
        let [waited, ran] = [waited, ran].map(|share| i64::from(share.min(1 << 30) as u32));
        let excess_ms = passed_ms * (waited - ran) / (waited + ran).max(1);
        self.excess_ms = (self.excess_ms + excess_ms).clamp(0, THRASHES_MS);
        self.excess_ms == THRASHES_MS
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMIT: usize = 100;

    fn claimant(entry: usize, wants: usize, waited_ms: u64) -> Claimant {
        let id = (entry, 1);
        Claimant { id, wants, cost_ms: 1_000, waited_ms, idle_ms: 0, silent_ms: 0 }
    }

    #[test]
    fn a_tree_thrashes_once_it_has_waited_clearly_more_than_it_ran() {
        let until = |waited, ran| {
            let mut thrashing = Thrashing::default();
            thrashing.sample(10_000, 0, 1);
            (10..100).find(|step| thrashing.sample(10_000 + step * 100, waited, ran))
        };
        assert_eq!(until(1, 0), Some(12));
        assert_eq!(until(3, 1), Some(16));
        assert_eq!(until(1, 1), None);
        assert_eq!(until(0, 0), None);
        assert_eq!(until(u64::MAX, 0), Some(12));
    }

    #[test]
    fn without_contention_no_process_waits() {
        let of = |wants: &[usize]| {
            let claimants: Vec<_> =
                wants.iter().enumerate().map(|(entry, wants)| claimant(entry, *wants, 0)).collect();
            next(None, 0, LIMIT, true, &claimants).map(|turn| turn.owner.0)
        };
        assert_eq!(of(&[80]), None, "there is one claimant");
        assert_eq!(of(&[40, 60]), None, "they fit");
        assert_eq!(of(&[101, 300]), None, "each thrashes alone, too");
        assert_eq!(of(&[60, 50]), Some(1));
        assert_eq!(of(&[300, 50]), Some(1));
        let two = [claimant(0, 80, 0), claimant(1, 80, 0)];
        assert_eq!(next(None, 0, LIMIT, false, &two), None, "the tree does not thrash");
    }

    #[test]
    fn a_turn_ends_early_if_its_owner_exits_stops_or_is_idle() {
        let turn = Turn { owner: (0, 1), until_ms: 9_000 };
        let after = |change: fn(&mut Claimant)| {
            let mut owner = claimant(0, 80, 0);
            change(&mut owner);
            let claimants = [owner, claimant(1, 80, 0)];
            next(Some(turn), 1_000, LIMIT, false, &claimants).map(|turn| turn.owner.0)
        };
        assert_eq!(after(|_| {}), Some(0));
        assert_eq!(after(|owner| owner.idle_ms = IDLE_MS), Some(1));
        assert_eq!(after(|owner| owner.silent_ms = SILENT_MS), Some(1));
        assert_eq!(after(|owner| owner.id = (2, 1)), Some(1), "the owner is gone");
        assert_eq!(after(|owner| owner.wants = 10), None, "both fit now");
    }

    #[test]
    fn more_claimants_shorten_a_turn() {
        let two = [claimant(0, 80, 0), claimant(1, 90, 0)];
        let turn = next(None, 0, LIMIT, true, &two).unwrap();
        assert_eq!(turn, Turn { owner: (0, 1), until_ms: 20_000 });
        let four: Vec<_> = (0..4).map(|entry| claimant(entry, 80, 0)).collect();
        assert_eq!(next(Some(turn), 5_000, LIMIT, true, &four).unwrap().until_ms, 16_000);
    }

    #[derive(Debug, Clone)]
    struct Process {
        wants: usize,
        cost_ms: u64,
        arrives_ms: u64,
        work_ms: u64,
        /// The process is idle after each multiple of this work time.
        idles_each_ms: u64,
    }

    fn processes() -> impl Strategy<Value = Vec<Process>> {
        let process = (51..150usize, 0..3_000u64, 0..60_000u64, 100..90_000u64, 300..20_000u64);
        let process = process.prop_map(|(wants, cost_ms, arrives_ms, work_ms, idles_each_ms)| {
            Process { wants, cost_ms, arrives_ms, work_ms, idles_each_ms }
        });
        prop::collection::vec(process, 2..17)
    }

    proptest! {
        /// Each claimant gets a turn within [`WAIT_MS`], no turn outlasts its end, and the
        /// last claimant waits for no other.
        #[test]
        fn each_claimant_gets_a_turn_within_the_bound(all in processes()) {
            const STEP_MS: u64 = 20;
            let mut left: Vec<_> = all.iter().map(|it| it.work_ms).collect();
            let mut since: Vec<_> = all.iter().map(|it| it.arrives_ms).collect();
            let (mut turn, mut began_ms, mut idle_ms) = (None::<Turn>, 0, 0);
            for now_ms in (0..3_000_000).step_by(STEP_MS as usize) {
                let is_here = |entry: &usize| all[*entry].arrives_ms <= now_ms && left[*entry] > 0;
                let here: Vec<usize> = (0..all.len()).filter(is_here).collect();
                let claimants: Vec<_> = here.iter().map(|entry| Claimant {
                    cost_ms: all[*entry].cost_ms,
                    idle_ms: if turn.is_some_and(|it| it.owner.0 == *entry) { idle_ms } else { 0 },
                    ..claimant(*entry, all[*entry].wants, now_ms - since[*entry])
                }).collect();
                let before = turn;
                turn = next(before, now_ms, LIMIT, true, &claimants);
                if before.map(|it| it.owner) != turn.map(|it| it.owner) {
                    // As the ledger does.
                    before.iter().for_each(|it| since[it.owner.0] = now_ms);
                    (began_ms, idle_ms) = (now_ms, 0);
                }
                let Some(Turn { owner: (owner, _), until_ms }) = turn else {
                    prop_assert!(!contend(&claimants, LIMIT));
                    for entry in here {
                        since[entry] = now_ms;
                        left[entry] = left[entry].saturating_sub(STEP_MS);
                    }
                    continue;
                };
                prop_assert!(here.contains(&owner) && until_ms - began_ms <= MAX_MS);
                for entry in here {
                    prop_assert!(entry == owner || now_ms - since[entry] <= WAIT_MS + STEP_MS);
                }
                idle_ms = match left[owner] % all[owner].idles_each_ms < STEP_MS {
                    true => idle_ms + STEP_MS,
                    false => 0,
                };
                if idle_ms == 0 || idle_ms > IDLE_MS {
                    left[owner] = left[owner].saturating_sub(STEP_MS);
                }
            }
            prop_assert!(left.iter().all(|left| *left == 0), "all have ended: {:?}", left);
        }
    }
}
