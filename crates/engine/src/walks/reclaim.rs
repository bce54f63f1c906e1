//! Who takes pages out, and when.
//!
//! The background thread starts when free memory falls below the low watermark and stops
//! at the high one. While pages that leave need no disk ([`crate::policy::write_load`]),
//! free memory is kept at the high watermark: by the background thread, too, where the
//! process leaves a processor to it; else, and where that does not keep up, by the
//! threads that bring pages in. A thread that needs a page and finds none free takes a
//! batch out as well (direct reclaim); that is rare and counted.

use crate::base::stats::Counter;
use crate::core::Core;
use crate::core::errors::{Exhausted, NoSlot};
use crate::memory::context::{BATCH_PAGES, Context, Contexts};
use crate::policy::mechanism::Mechanism;
use crate::policy::partition::WRITE_BACK_PERCENT;
use crate::steps::swap_cache;
use crate::store::swap::AreaFull;
use crate::walks::page_out;
use crate::walks::pool_upkeep;
use crate::walks::upkeep::Upkeep;
use softswap_sys::raw::{current_cpu, now_ns, thread_cpu_ns};
use softswap_sys::signals::{self, Mask};
use softswap_sys::window::Crowding;
use std::sync::atomic::Ordering::Relaxed;

/// Copies of unchanged pages given up at once when the areas or the pool are full.
const SHED_PAGES: usize = 4 * BATCH_PAGES;
/// With fewer pages than this in DRAM touchers take none out ahead of need.
const LEAST_PAGES: usize = 8 * BATCH_PAGES;
/// How long to wait for others' progress before trying again.
const PAUSE_NS: u64 = 1_000_000;
/// Memory counts as exhausted after so long without any progress.
const GIVE_UP_NS: u64 = 1_500_000_000;
/// A try that takes longer counts for so long: a process that was stopped meanwhile, or
/// whose disk was, has not tried.
const LONGEST_TRY_NS: u64 = 100_000_000;
/// A try that takes longer because a device did not answer in time, and then failed, counts
/// for so long: a few of them are enough.
const FAILED_TRY_NS: u64 = GIVE_UP_NS / 3 + 1;

/// A lower limit for which nothing has left for so long is given up.
const PATIENCE_NS: u64 = GIVE_UP_NS / 4;

/// Pauses after which what is kept on standby makes room.
const PAUSES_TO_RELEASE: u32 = 4;

/// How long the background thread sleeps when there is nothing to do, and the least
/// between two steps of work for the swap areas and the pool.
const NAP_NS: u64 = 1_000_000_000;
const PACE_NS: u64 = 5_000_000;

/// What a round of reclaim came to.
pub(crate) enum Round {
    /// There is more room, or will be: pages left, or the pool gives way.
    Progress,
    /// Nothing could leave, because of the area if it says so.
    Stuck(Option<NoSlot>),
}

/// Makes room in the pool when it is nearly full, and takes one batch out; only the first
/// as long as a pool above its limit gives memory back.
pub(crate) fn round(core: &Core, context: &mut Context) -> Round {
    let mut area_full = None;
    let mut from_pool = 0;
    // First: a slab less is room for a page more, and nothing is lost by it.
    pool_upkeep::compact(core, context);
    if is_pool_high(core) || are_pages_few(core) {
        let before_bytes = core.stores.pool.used_bytes();
        from_pool = take_from_pool(core, context, &mut area_full);
        let used_bytes = core.stores.pool.used_bytes();
        // Pages in use need not leave for room that the pool has just given, and is to.
        let is_to_give = used_bytes > core.stores.pool.limit_bytes() || are_pages_few(core);
        if used_bytes < before_bytes && is_to_give {
            return Round::Progress;
        }
    }
    let outcome = page_out::page_out(core, context);
    if outcome.pages_out + from_pool > 0 {
        return Round::Progress;
    }
    match outcome.area_full.or(area_full) {
        // What was not offered to the pool is, the next time.
        Some(NoSlot::Area(_)) if core.policies.admission.refuse() => Round::Progress,
        Some(NoSlot::Area(_)) if swap_cache::shed(core, SHED_PAGES) > 0 => Round::Progress,
        why => Round::Stuck(why),
    }
}

/// As [`round`], for somebody who needs room: where no page can leave, the pool may
/// have what is missing, though it is below its limit, or may take more where the
/// areas do not.
pub(crate) fn round_for_room(core: &Core, context: &mut Context) -> Round {
    let stuck = round(core, context);
    if let Round::Stuck(mut why) = stuck {
        return match take_from_pool(core, context, &mut why) {
            0 if why.is_some() && core.widen_pool() => Round::Progress,
            0 => Round::Stuck(why),
            _ => Round::Progress,
        };
    }
    stuck
}

/// Makes the pool smaller: by copies, or by what goes on to the disk, whichever is worth
/// less, else by the other. Returns how many pages left it.
fn take_from_pool(core: &Core, context: &mut Context, area_full: &mut Option<NoSlot>) -> usize {
    if core.stores.pool.used_bytes() == 0 {
        return 0;
    }
    let mut write_back = || {
        pool_upkeep::write_back(core, context).unwrap_or_else(|full| {
            *area_full = Some(full);
            0
        })
    };
    let shed = || swap_cache::shed_pooled(core, SHED_PAGES);
    let are_copies_last = swap_cache::outweigh(core);
    let first = if are_copies_last { write_back() } else { shed() };
    match first {
        0 if are_copies_last => shed(),
        0 => write_back(),
        taken => taken,
    }
}

/// Batches taken out in vain, because others had the room first, after which signals are
/// looked for.
const ROUNDS_BETWEEN_LOOKS: u32 = 8;

/// Charges `count` pages to the budget, reclaiming if there is no room. Where that takes
/// long it ends early when one of the signals `open` is pending.
///
/// # Errors
/// When nothing could leave for a while, or a signal is to be taken first.
pub(crate) fn make_room(
    core: &Core,
    context: &mut Context,
    count: usize,
    open: Mask,
) -> Result<(), Exhausted> {
    if !context.may_reclaim {
        core.memory.budget.charge(count);
        return Ok(());
    }
    core.count_inherited(count);
    let (mut stuck, mut rounds) = (Stuck::default(), 0_u32);
    loop {
        let other = core.other_bytes();
        if core.try_charge(&mut context.scratch, count, other) {
            // Whoever gave the room: the next wait is another one.
            core.background.interrupted_wait.forget();
            // Now, while the page is brought in.
            if core.memory.budget.is_low(other) && !core.grow_budget() {
                core.background.wake();
            }
            if core.memory.budget.is_moving() {
                core.memory.budget.follow(core.other_bytes());
            }
            return Ok(());
        }
        if core.grow_budget() {
            continue;
        }
        core.background.wake();
        core.stats.add(Counter::DirectReclaims, 1);
        let began_ns = now_ns();
        match round_for_room(core, context) {
            Round::Progress => {
                stuck = Stuck::default();
                core.background.interrupted_wait.forget();
                rounds += 1;
                if rounds.is_multiple_of(ROUNDS_BETWEEN_LOOKS) && signals::pending() & open != 0 {
                    return Err(Exhausted::Signal);
                }
            }
            Round::Stuck(why) => {
                // It may have just turned out that there is no area.
                core.count_inherited(0);
                stuck.pause(core, why, began_ns, open)?;
                // It may take something again.
                context.refusal = None;
            }
        }
    }
}

/// Takes pages out while the process has as many mappings as it may have.
pub(crate) fn keep_mappings(core: &Core, context: &mut Context) {
    const MOST_ROUNDS: usize = 32;
    for _ in 0..MOST_ROUNDS {
        let is_full = core.memory.window.crowding() == Crowding::Full;
        if !is_full || matches!(round(core, context), Round::Stuck(_)) {
            return;
        }
    }
}

/// For how long nothing could leave for somebody who waits for room.
#[derive(Default)]
struct Stuck {
    ns: u64,
    tried_at_ns: Option<u64>,
    pauses: u32,
}

impl Stuck {
    /// After a try in vain that began then: waits for others' progress, unless that has been tried
    /// for long enough, or a signal is to be taken.
    fn pause(
        &mut self,
        core: &Core,
        why: Option<NoSlot>,
        began_ns: u64,
        open: Mask,
    ) -> Result<(), Exhausted> {
        let interrupted_wait = &core.background.interrupted_wait;
        let now = now_ns();
        let before = self.tried_at_ns.replace(now).unwrap_or_else(|| {
            let (waited_ns, at_ns) = interrupted_wait.go_on(now);
            self.ns = waited_ns;
            at_ns
        });
        self.ns += match why {
            Some(NoSlot::Area(AreaFull::Write { .. })) if now - began_ns > LONGEST_TRY_NS => {
                FAILED_TRY_NS
            }
            _ => (now - before).min(LONGEST_TRY_NS),
        };
        self.pauses += 1;
        if self.pauses.is_multiple_of(PAUSES_TO_RELEASE) {
            core.stores.standby.release();
        }
        if self.ns > GIVE_UP_NS {
            return Err(exhausted(core, why));
        }
        // Nobody dies of a limit that cannot be kept.
        if self.ns > PATIENCE_NS && give_way(core) {
            return Ok(());
        }
        if signals::pending() & open != 0 {
            interrupted_wait.note(self.ns, now);
            return Err(Exhausted::Signal);
        }
        core.background.pause(core.background.seen(), PAUSE_NS);
        Ok(())
    }
}

/// Keeps free memory at the high watermark, or has that done: while pages that leave need no
/// disk, and nobody waits for it, who would leave a processor to others. Where there is
/// such a processor the background thread packs what leaves, as long as it keeps up, else
/// the thread that has brought a page in. `pinned` pages may not leave. Nothing is claimed.
pub(crate) fn keep_room(core: &Core, contexts: &Contexts, pinned: usize) {
    // Of a handful of pages it would take out what it was just given, for ever.
    let are_many = || core.memory.budget.pages() >= pinned + LEAST_PAGES;
    let is_spared =
        || core.policies.write_load.spares_the_disk() && !core.policies.partition.disk_dominates();
    let other = core.other_bytes();
    if core.memory.budget.is_comfortable(other)
        || !core.policies.has(Mechanism::KeepRoom)
        || !(are_many() && is_spared())
        || is_pool_high(core)
        || core.grow_budget()
    {
        return;
    }
    let is_for_others = || {
        core.background.is_running()
            && core.policies.partition.costs().leaves_a_processor()
            && !core.memory.budget.is_low(other)
    };
    if core.memory.pinners.is_due() || is_for_others() {
        return core.background.wake();
    }
    let mut context = contexts.claim(current_cpu());
    if !context.may_reclaim {
        return;
    }
    let start = now_ns();
    core.balance_pool();
    pool_upkeep::compact(core, &mut context);
    let pages = page_out::page_out(core, &mut context).pages_out;
    core.stats.add(Counter::StalledNs, now_ns() - start);
    core.stats.add(Counter::ReclaimedAhead, u64::from(pages > 0));
}

/// Gives a lower limit up, if there is one that is not kept yet.
fn give_way(core: &Core) -> bool {
    let has_given_way = core.memory.budget.give_way();
    if has_given_way {
        core.background.limit_failed.store(true, Relaxed);
        core.background.wake_all();
    }
    has_given_way
}

/// Whether the budget leaves so few pages in DRAM that an instruction might not have all that it
/// touches at once. Then the pool gives way, however small it is.
fn are_pages_few(core: &Core) -> bool {
    let budget = &core.memory.budget;
    budget.pages() < LEAST_PAGES && budget.is_low(core.other_bytes())
}

fn is_pool_high(core: &Core) -> bool {
    core.stores.pool.used_bytes() * 100 > core.stores.pool.limit_bytes() * WRITE_BACK_PERCENT
}

fn exhausted(core: &Core, why: Option<NoSlot>) -> Exhausted {
    if let Some(full) = why {
        return Exhausted::NoSlot(full);
    }
    let pages = core.memory.budget.pages() * softswap_sys::PAGE_SIZE;
    Exhausted::NoVictims {
        limit_mib: core.memory.budget.limit_bytes() >> 20,
        other_mib: (core.used_bytes() - pages) >> 20,
        pages_mib: pages >> 20,
    }
}

/// The background thread's work; returns when `go_on` says no.
pub(crate) fn run(core: &Core, contexts: &Contexts, go_on: impl Fn() -> bool) {
    let mut at_ease = AtEase::default();
    let mut cpu_ns = thread_cpu_ns();
    let mut stuck_rounds = 0;
    core.background.set_running(true);
    core.stats.add(Counter::EngineThreads, 1);
    while go_on() {
        let seen = core.background.seen();
        let before_ns = std::mem::replace(&mut cpu_ns, thread_cpu_ns());
        core.policies.partition.costs().reclaimed_behind(cpu_ns.saturating_sub(before_ns));
        tend(core, contexts);
        core.memory.pinners.look();
        core.memory.budget.follow(core.other_bytes());
        if core.memory.budget.is_comfortable(core.other_bytes()) {
            let nap_ns = at_ease.step(core, contexts);
            sleep_until_low(core, seen, nap_ns);
            continue;
        }
        if core.grow_budget() {
            continue;
        }
        // Claimed anew for every batch, so that fork can come in between.
        let mut context = contexts.claim_background();
        let stuck = matches!(round_for_room(core, &mut context), Round::Stuck(_));
        drop(context);
        core.memory.budget.follow(core.other_bytes());
        core.report();
        stuck_rounds = if stuck { stuck_rounds + 1 } else { 0 };
        if stuck {
            core.background.pause(seen, PAUSE_NS);
        }
        if stuck_rounds > PATIENCE_NS / PAUSE_NS && give_way(core) {
            stuck_rounds = 0;
        }
    }
    core.background.set_running(false);
}

/// Work for when memory is at ease, at its own pace: background reclaim may be woken for
/// every batch, thousands of times a second.
#[derive(Default)]
struct AtEase {
    upkeep: Upkeep,
    /// Whether there may be more to do, and no step before then.
    has_more: bool,
    next_ns: u64,
}

impl AtEase {
    /// Does a step if one is due; how long to sleep until the next is.
    fn step(&mut self, core: &Core, contexts: &Contexts) -> u64 {
        let now = now_ns();
        if now >= self.next_ns {
            self.has_more = self.upkeep.step(core, contexts);
            self.next_ns = now + PACE_NS;
        }
        if self.has_more { self.next_ns.saturating_sub(now) } else { NAP_NS }
    }
}

/// Adds and takes away bounce buffers, and moves the pool's limit. In a context: a fork
/// waits for that, so that no child has a pool that is half there and counted in full, or
/// a slab that somebody looked at when it came to be.
fn tend(core: &Core, contexts: &Contexts) {
    let context = contexts.claim_background();
    core.follow_budget();
    core.tend_buffers();
    core.balance_pool();
    // Without address space for it nothing is kept.
    let _ = core.stores.standby.tend();
    drop(context);
    // Without one: standard error may block.
    core.tell_of_full_buffers();
}

/// Sleeps until a fault finds memory low, or for so long: peaks are noted then,
/// and a wake-up that came too early is made good.
fn sleep_until_low(core: &Core, seen: u32, nap_ns: u64) {
    core.background.sleep(seen, nap_ns);
    core.report();
}
