//! The budget thread: releases and requests chunks, and takes part in turns and parking.

use super::parking::Parking;
use super::tree::{self, GrantLock, MAX_BYTES, UNAVAILABLE};
use super::tree::{chunk_bytes, chunks_for, limit_of, member};
use super::turns::{self, Turns};
use super::{descriptors, tree_account};
use crate::base::instance;
use softswap_engine::api::engine::Engine;
use softswap_engine::api::engine::memory_limit::LimitRefused;
use softswap_engine::base::stats::Counter;
use softswap_shared::ledger::Member;
use softswap_sys::raw::now_ns;

const REQUEST_TIMEOUT_NS: u64 = 60_000_000;
/// Bytes by which the limit is lowered at a time, so that chunks are released soon.
const LOWER_BYTES: usize = 8 << 20;
/// Time within which the memory in use must reach the lowered limit.
const LOWER_TIMEOUT_NS: u64 = 600_000_000;
const SHORT_INTERVAL_NS: u64 = 100_000_000;
/// Interval between measurements of the benefit. Rounds are at most half of it apart.
const INTERVAL_NS: u64 = 1_000_000_000;
const SLACK_BYTES: usize = 1 << 20;

pub(super) fn run_budget(keep_running: fn() -> bool) {
    let Some(engine) = instance::engine() else { return };
    if member().is_none() || !descriptors::unshare_descriptors() {
        return tree::end_eviction();
    }
    let (mut work, mut turns, mut parking) =
        (Work::default(), Turns::default(), Parking::default());
    tree::set_has_thread(true);
    while keep_running()
        && let Some(member) = member()
    {
        let seen = member.notifications();
        if !is_consistent(&member) {
            tree::fall_back(&member);
            engine.wake_background();
            return;
        }
        if let Some(pause_ns) = parking.evict(engine, &member) {
            turns.forget_own();
            member.await_notification(seen, pause_ns);
            continue;
        }
        let until_back_ns = parking.bring_back(engine, &member).unwrap_or(INTERVAL_NS / 2);
        let is_short = work.round(engine, &member);
        let until_turn_ns = turns.round(engine, &member).unwrap_or(INTERVAL_NS / 2);
        let pause_ns = if is_short { SHORT_INTERVAL_NS } else { INTERVAL_NS / 2 };
        member.await_notification(seen, pause_ns.min(until_turn_ns).min(until_back_ns));
    }
    tree::set_has_thread(false);
    if let Some(member) = member() {
        member.publish(UNAVAILABLE, engine.used_bytes() as u64);
        turns::end(&member);
    }
}

fn is_consistent(member: &Member) -> bool {
    let _lock = GrantLock::lock();
    member.is_sound() && member.total() == tree::granted()
}

#[derive(Default)]
struct Work {
    ticked_at_ns: u64,
    spared_ns: u64,
    benefit: u64,
    pages_out: u64,
}

impl Work {
    fn round(&mut self, engine: &Engine, member: &Member) -> bool {
        move_within(member);
        let beyond = member.excess();
        if beyond > 0 {
            lower(engine, member, tree::granted().saturating_sub(beyond));
        }
        if let Some(target) = member.release_target() {
            lower(engine, member, target.keep + member.excess());
            member.end_release(target);
        }
        self.publish(engine, member);
        // Read after the limit was lowered: evictions by lowering it do not show a shortage.
        let pages_out = engine.stats().get(Counter::PagesOut);
        let is_short = engine.is_short_of_memory() || pages_out != self.pages_out;
        self.pages_out = pages_out;
        if turns::must_wait(member) {
            return true;
        }
        let missing = chunks_for(engine.used_bytes()).saturating_sub(tree::granted());
        if is_short || missing > 0 {
            request(engine, member, missing);
        }
        is_short || missing > 0
    }

    fn publish(&mut self, engine: &Engine, member: &Member) {
        let now = now_ns();
        let passed_ns = now.saturating_sub(self.ticked_at_ns);
        if passed_ns >= INTERVAL_NS {
            // Checked here too: a forked child that only writes to inherited pages takes no fault
            // in the engine, so the fault path would never charge those pages.
            engine.count_inherited();
            let spared_ns = engine.saved_by_mib_ns();
            if self.ticked_at_ns > 0 {
                let rise = spared_ns.saturating_sub(self.spared_ns);
                let in_a_second =
                    u128::from(rise) * u128::from(INTERVAL_NS) / u128::from(passed_ns);
                // Smoothed: one second is a noisy sample.
                let rise_per_second_ns = in_a_second as u64;
                let kept_ns = (self.benefit / 4).saturating_mul(3);
                self.benefit = kept_ns.saturating_add(rise_per_second_ns / 4);
                // The owner of the turn keeps unused chunks for the rest of its working set.
                if !turns::has_turn(member) {
                    release_unused(engine, member);
                }
            }
            (self.ticked_at_ns, self.spared_ns) = (now, spared_ns);
            // `softswap run` does this, too, but may have been killed.
            let _ = member.ledger().serve_demands();
        }
        member.publish(self.benefit.min(UNAVAILABLE - 1), engine.used_bytes() as u64);
        tree_account::publish(engine, member);
    }
}

/// Replaces chunks beyond a lowered limit by free ones within it.
fn move_within(member: &Member) {
    if member.excess() == 0 {
        return;
    }
    let _lock = GrantLock::lock();
    let moved = member.take(member.excess());
    // Chunks beyond the limit are released first.
    let given = member.release(moved);
    tree::grant((tree::granted() + moved).saturating_sub(given));
}

fn release_unused(engine: &Engine, member: &Member) {
    let used_bytes = engine.used_bytes();
    let kept_bytes = used_bytes + SLACK_BYTES.max(used_bytes / 4);
    let keep = chunks_for(kept_bytes);
    // Lowering the limit has a cost.
    if tree::granted() > keep + keep / 8 {
        lower(engine, member, keep);
    }
}

/// Obtains the `missing` chunks, free ones or those of members with a lower benefit.
fn request(engine: &Engine, member: &Member, missing: usize) {
    let ledger = member.ledger();
    ledger.reap(|process| process.liveness());
    let granted = tree::granted();
    let owed = ledger.floor().saturating_sub(granted);
    let most = (MAX_BYTES / 4 / chunk_bytes()).max(1);
    let need = (granted / 8).max(owed).max(missing).clamp(1, most);
    let got = member.obtain(need, REQUEST_TIMEOUT_NS);
    if got > 0 {
        let _lock = GrantLock::lock();
        let granted = tree::granted() + got;
        tree::grant(granted);
        // Fails only if there is no address space for larger tables.
        let _ = engine.set_memory_limit(limit_of(granted) as u64);
    }
}

/// Releases all but `keep` chunks, or as many as possible, [`LOWER_BYTES`] at a time.
fn lower(engine: &Engine, member: &Member, keep: usize) {
    let _lock = GrantLock::lock();
    let mut keep = keep;
    loop {
        let granted = tree::granted();
        if granted <= keep {
            return;
        }
        let next = keep.max(granted.saturating_sub((LOWER_BYTES / chunk_bytes()).max(1)));
        match engine.set_memory_limit(limit_of(next) as u64) {
            Ok(()) if is_reached(engine, limit_of(next)) => {
                tree::grant(next);
                // Published first: another process may use the chunks at once.
                member.publish_used(engine.used_bytes() as u64);
                member.release(granted - next);
            }
            Err(
                LimitRefused::TooSmall { min_bytes, .. } | LimitRefused::Locked { min_bytes, .. },
            ) if chunks_for(min_bytes as usize) > keep => keep = chunks_for(min_bytes as usize),
            // The limit cannot be reached, since pages cannot be evicted: keep the old one.
            _ => {
                let _ = engine.set_memory_limit(limit_of(granted) as u64);
                return;
            }
        }
    }
}

fn is_reached(engine: &Engine, bytes: usize) -> bool {
    const MOMENT: std::time::Duration = std::time::Duration::from_millis(1);
    let until_ns = now_ns() + LOWER_TIMEOUT_NS;
    while !engine.keeps_limit(bytes) && now_ns() < until_ns {
        std::thread::sleep(MOMENT);
    }
    engine.keeps_limit(bytes)
}
