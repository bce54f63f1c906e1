//! This process's part in the turns of its tree ([`softswap_shared::turns`]).
//!
//! The budget thread measures how much the process waits for the disk, claims a turn, and advances
//! the turns of the tree. The owner of the turn requests the memory of the other claimants and
//! swaps its working set in.

use super::own_threads;
use super::tree::{self, GrantLock, now_ms};
use softswap_engine::api::engine::Engine;
use softswap_engine::api::engine::turns::{BringBack, DiskRefaults, Step, Waiting};
use softswap_engine::base::stats::{Counter, TIERS};
use softswap_shared::ledger::{Claim, Member};
use softswap_shared::turns::{IDLE_MS, Thrashing};
use softswap_sys::PAGE_SIZE;
use softswap_sys::raw::process_cpu_ns;
use softswap_sys::threads;

const INTERVAL_NS: u64 = 15_000_000;
const MEASURE_MS: u64 = 150;
/// A claimant must wait for memory or run for this share of the time, in thousandths.
const BUSY: u64 = 500;
/// A process that waits or runs for less than this share of the time is idle, in thousandths.
const IDLE: u64 = 250;
/// Minimum share of the time that a thrashing process waits for memory, in thousandths.
const WAITED: u64 = 300;
/// Measurements in a row that must show thrashing. A process that is idle in one of them waits for
/// other processes, not for memory.
const CERTAIN_MEASUREMENTS: u32 = 2;
/// Minimum number of refaults from the disk in a measurement of a thrashing process.
const MIN_REFAULTS: u64 = 30;
/// A process that runs for this share of the time makes progress, in thousandths.
const RUNS: u64 = 50;
/// Time without progress after which the owner of a turn checks whether it waits for a processor.
const CHECK_MS: u64 = IDLE_MS / 2;
/// Divisor: a process claims its working set and 1/12 more, for watermarks and the engine.
const MARGIN_PART: u64 = 12;
/// Evicted pages of the working set are estimated as 3/2 of the mean distance of the first
/// refaults: the mean is too low at first, because pages with long distances refault last.
const DISTANCES_IN_HALVES: u64 = 3;
/// If a process waits for more than this share of the time after its working set was swapped in,
/// the memory did not suffice, in thousandths.
const MISFIT: u64 = 500;
/// Time without claims after a turn in which the process was idle, and the maximum after several.
const PAUSE_MS: u64 = 2_000;
const MAX_PAUSE_MS: u64 = 64_000;
const RAISE_MS: u64 = 30;
/// Number of rounds without free memory after which the remaining pages are swapped in by faults.
const MAX_FULL_ROUNDS: u32 = 100;

/// Waits up to `ns` while another process owns the turn, or the tree is parked. `Some` if faults
/// must still wait.
pub(crate) fn await_turn(ns: u64) -> Option<Waiting> {
    let member = tree::member()?;
    if member.await_unpark(now_ms, ns) {
        return (ns == 0 || member.ledger().is_parked(now_ms())).then_some(Waiting::Parked);
    }
    let must_wait = member.await_turn(now_ms, ns);
    (must_wait && (ns == 0 || member.must_wait(now_ms()))).then_some(Waiting::Turn)
}

pub(super) fn must_wait(member: &Member) -> bool {
    member.must_wait(now_ms())
}

pub(super) fn has_turn(member: &Member) -> bool {
    member.has_turn(now_ms())
}

pub(super) fn end(member: &Member) {
    member.end_claim(now_ms());
}

fn program_cpu_ns() -> u64 {
    process_cpu_ns().saturating_sub(own_threads::cpu_ns())
}

#[derive(Debug, Clone, Copy, Default)]
struct Sample {
    at_ms: u64,
    cpu_ns: u64,
    refaults: DiskRefaults,
}

impl Sample {
    fn now(engine: &Engine, at_ms: u64) -> Sample {
        Sample { at_ms, cpu_ns: program_cpu_ns(), refaults: engine.disk_refaults() }
    }

    /// Returns the shares of the time since `before` in which threads waited for the disk and ran.
    fn shares_since(self, before: Sample) -> (u64, u64) {
        let passed_us = (self.at_ms.saturating_sub(before.at_ms) * 1_000).max(1);
        let share = |ns: u64| ns / passed_us;
        let waited_ns = self.refaults.since(before.refaults).waited_ns;
        (share(waited_ns), share(self.cpu_ns.saturating_sub(before.cpu_ns)))
    }
}

#[derive(Debug)]
struct OwnTurn {
    /// Chunks for the pages to swap in, and the progress of the swap-in; `None` once it is done.
    wants: usize,
    bring: Option<BringBack>,
    full: u32,
    complete: Option<Sample>,
}

impl OwnTurn {
    fn brings(&self) -> bool {
        self.bring.is_some()
    }
}

#[derive(Debug, Default)]
pub(super) struct Turns {
    thrashing: Thrashing,
    before: Sample,
    claim: Claim,
    /// Rises to [`CERTAIN_MEASUREMENTS`] with measurements that show thrashing; others lower it.
    certainty: u32,
    worked: u64,
    ran_ns: u64,
    ran_at_ms: u64,
    own: Option<OwnTurn>,
    /// True if a turn has shown that the working set is larger than the tree's budget.
    is_misfit: bool,
    /// True if faults of this process had to wait in the last round.
    has_waited: bool,
    raised_at_ms: u64,
    pause_ms: u64,
    claims_from_ms: u64,
}

impl Turns {
    /// Makes one round. Returns the time until the next one, if it is due soon.
    pub(super) fn round(&mut self, engine: &Engine, member: &Member) -> Option<u64> {
        let (ledger, at_ms) = (member.ledger(), now_ms());
        if !ledger.takes_turns() && self.claim == Claim::default() {
            return None;
        }
        self.note_progress(engine, at_ms);
        let must_wait = member.must_wait(at_ms);
        self.measure(engine, member, at_ms, must_wait);
        if !ledger.takes_turns() {
            self.claim = Claim::default();
        }
        member.publish_claim(at_ms, self.claim);
        let (waited, ran) = ledger.pressure(at_ms);
        let thrashes = self.thrashing.sample(at_ms, waited, ran);
        let turn = ledger.advance_turn(at_ms, thrashes);
        let has_turn = member.has_turn(at_ms);
        // The last claimant needs no turn, but its working set was evicted as well.
        let has_gone = std::mem::replace(&mut self.has_waited, must_wait);
        let is_last =
            turn.is_none() && (has_gone || self.own.as_ref().is_some_and(OwnTurn::brings));
        if has_turn || is_last {
            self.use_turn(engine, member, has_turn, at_ms);
        } else if let Some(own) = self.own.take() {
            engine.end_bring_back();
            self.end_turn(engine, member, at_ms, &own);
        }
        let is_soon = turn.is_some() || self.own.is_some();
        is_soon.then_some(INTERVAL_NS)
    }

    pub(super) fn forget_own(&mut self) {
        self.own = None;
    }

    /// A process also makes progress while it waits for a processor. That is checked only if the
    /// process otherwise seems idle.
    fn note_progress(&mut self, engine: &Engine, at_ms: u64) {
        let stats = engine.stats();
        let faults: u64 = TIERS.iter().map(|tier| stats.faults(*tier)).sum();
        let worked = faults + stats.get(Counter::PagesReadAhead) + stats.get(Counter::PagesOut);
        let ran_ns = program_cpu_ns();
        let passed_us = at_ms.saturating_sub(self.ran_at_ms) * 1_000;
        let ran = ran_ns.saturating_sub(self.ran_ns) / passed_us.max(1);
        let seems_idle = worked == self.worked && ran < RUNS && !engine.is_faulting();
        let is_checked = self.own.is_some() && at_ms >= self.claim.progress_ms + CHECK_MS;
        let is_ready =
            || is_checked && threads::any_runnable(|thread| !own_threads::is_own(thread));
        if !seems_idle || is_ready() {
            self.claim.progress_ms = at_ms;
        }
        if passed_us > 0 {
            (self.worked, self.ran_ns, self.ran_at_ms) = (worked, ran_ns, at_ms);
        }
    }

    fn measure(&mut self, engine: &Engine, member: &Member, at_ms: u64, must_wait: bool) {
        if must_wait {
            // The claim does not change until the turn.
            self.before = Sample::default();
            (self.claim.waited, self.claim.ran) = (0, 0);
            return;
        }
        if self.before.at_ms == 0 {
            self.before = Sample::now(engine, at_ms);
        }
        if at_ms < self.before.at_ms + MEASURE_MS {
            return;
        }
        let now = Sample::now(engine, at_ms);
        let (waited, ran) = now.shares_since(self.before);
        let refaults = now.refaults.since(self.before.refaults);
        self.before = now;
        (self.claim.waited, self.claim.ran) = (waited as u32, ran as u32);
        let has_turn = self.own.is_some();
        if let Some(own) = &self.own
            && !engine.is_short_of_memory()
        {
            if own.bring.is_none() && refaults.count >= MIN_REFAULTS {
                self.want_more(engine, member, at_ms);
            }
            return;
        }
        let thrashes = waited >= WAITED && refaults.count >= MIN_REFAULTS;
        let is_busy = waited + ran >= BUSY && at_ms >= self.claims_from_ms;
        self.certainty = match (thrashes && (is_busy || has_turn), waited + ran >= IDLE) {
            (true, _) => CERTAIN_MEASUREMENTS.min(self.certainty + 1),
            // One measurement is not significant on a busy machine.
            (false, true) => self.certainty.saturating_sub(1),
            (false, false) => 0,
        };
        if self.certainty == CERTAIN_MEASUREMENTS {
            let wants = wanted_chunks(engine, refaults.mean_distance() / 2 * DISTANCES_IN_HALVES);
            let held = tree::granted();
            let most = member.ledger().limit() + 1;
            let wants = if self.is_misfit { wants.max(most) } else { wants.min(most) };
            // If the working set fits into the chunks held, no turn is needed.
            self.claim.wants = if wants > held || has_turn { wants } else { 0 };
        } else if self.certainty == 0 && !has_turn {
            self.claim.wants = 0;
        }
    }

    fn use_turn(&mut self, engine: &Engine, member: &Member, has_turn: bool, at_ms: u64) {
        if engine.is_short_of_memory() && tree::granted() >= self.claim.wants {
            self.want_more(engine, member, at_ms);
        }
        let missing = self.claim.wants.saturating_sub(tree::granted());
        if missing > 0 {
            let _lock = GrantLock::lock();
            let got = member.take(missing);
            if got > 0 {
                tree::grant(tree::granted() + got);
                // Fails only if there is no address space for larger tables.
                let _ = engine.set_memory_limit(tree::limit_of(tree::granted()) as u64);
            }
            if got < missing && has_turn {
                member.request_for_turn(self.claim.wants);
            }
        }
        let wants = self.claim.wants;
        let begin = || {
            let missing_bytes = (wants * tree::chunk_bytes()).saturating_sub(engine.used_bytes());
            let bring = Some(BringBack::new((missing_bytes / PAGE_SIZE) as u64));
            OwnTurn { wants, bring, full: 0, complete: None }
        };
        let own = self.own.get_or_insert_with(begin);
        if own.wants < wants && !own.brings() {
            *own = begin();
        }
        let Some(bring) = &mut own.bring else {
            own.complete.get_or_insert_with(|| Sample::now(engine, now_ms()));
            return;
        };
        let step = engine.bring_back(bring);
        own.full = if step == Step::Full { own.full + 1 } else { 0 };
        if step == Step::Done || own.full == MAX_FULL_ROUNDS {
            engine.end_bring_back();
            own.bring = None;
        }
    }

    /// Raises a claim that was too low: distances show only the pages that were swapped in.
    fn want_more(&mut self, engine: &Engine, member: &Member, at_ms: u64) {
        let most = wanted_chunks(engine, u64::MAX).min(member.ledger().limit());
        if at_ms >= self.raised_at_ms + RAISE_MS && self.claim.wants < most {
            self.claim.wants = (self.claim.wants + self.claim.wants / 8 + 1).min(most);
            self.raised_at_ms = at_ms;
        }
    }

    fn end_turn(&mut self, engine: &Engine, member: &Member, at_ms: u64, own: &OwnTurn) {
        if at_ms.saturating_sub(self.claim.progress_ms) >= IDLE_MS {
            // The process waits for something other than memory, perhaps for another claimant.
            self.pause_ms = (2 * self.pause_ms).clamp(PAUSE_MS, MAX_PAUSE_MS);
            self.claims_from_ms = at_ms + self.pause_ms;
            self.claim.wants = 0;
            member.publish_claim(at_ms, self.claim);
            return;
        }
        self.pause_ms = 0;
        if let Some(complete) = own.complete
            && at_ms > complete.at_ms + MEASURE_MS
        {
            let (waited, ran) = Sample::now(engine, at_ms).shares_since(complete);
            self.is_misfit = waited > MISFIT && waited > ran;
        }
    }
}

/// The memory in use and `distance_pages` more, up to all memory of the process.
fn wanted_chunks(engine: &Engine, distance_pages: u64) -> usize {
    let stats = engine.stats();
    let used_bytes = engine.used_bytes() as u64;
    let missing_bytes =
        distance_pages.saturating_mul(PAGE_SIZE as u64).min(stats.get(Counter::DiskBytes));
    let bytes = used_bytes + missing_bytes;
    tree::chunks_for((bytes + bytes / MARGIN_PART) as usize)
}
