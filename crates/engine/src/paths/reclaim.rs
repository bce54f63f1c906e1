//! Background and direct reclaim.
//!
//! The background thread reclaims from the low watermark up to the high one. While evicted pages do
//! not need the disk ([`crate::policy::write_load`]), free memory is kept at the high watermark: by
//! the background thread if a CPU is idle and it keeps up, otherwise by the threads that fault. A
//! thread that finds no free memory evicts a batch (direct reclaim).

use crate::base::stats::Counter;
use crate::core::Core;
use crate::core::errors::{Exhausted, NoSlot};
use crate::memory::context::{BATCH_PAGES, Context, Contexts};
use crate::paths::upkeep::Upkeep;
use crate::paths::{page_out, pool_upkeep};
use crate::policy::mechanism::Mechanism;
use crate::policy::partition::WRITE_BACK_PERCENT;
use crate::steps::swap_cache;
use crate::store::swap::AreaFull;
use softswap_sys::raw::{current_cpu, now_ns, thread_cpu_ns, write_stderr};
use softswap_sys::signals::{self, Mask};
use softswap_sys::window::MappingPressure;
use std::sync::atomic::Ordering::Relaxed;

/// Maximum number of copies freed in one round if the areas or the pool are full.
const RECLAIM_COPIES: usize = 4 * BATCH_PAGES;
/// Number of pages in DRAM below which program threads do not evict ahead of need.
const MIN_PAGES: usize = 8 * BATCH_PAGES;
const PAUSE_NS: u64 = 1_000_000;
/// Time without progress after which memory counts as exhausted.
const RECLAIM_TIMEOUT_NS: u64 = 1_500_000_000;
/// Maximum time counted for one try. A longer one means that the process or its disk was stopped.
const MAX_TRY_NS: u64 = 100_000_000;

/// Time without progress after which a lower limit is abandoned.
const LOWER_LIMIT_TIMEOUT_NS: u64 = RECLAIM_TIMEOUT_NS / 4;

pub(crate) enum Round {
    /// Memory was freed, or a retry may free some.
    Progress,
    /// No page could be evicted; the area's error, if that is the reason.
    Stuck(Option<NoSlot>),
}

/// Shrinks the pool if it is nearly full or few pages are resident, then evicts a batch.
pub(crate) fn round(core: &Core, context: &mut Context) -> Round {
    let mut area_full = None;
    let mut from_pool = 0;
    // Compact first: it frees a slab without evicting a page.
    pool_upkeep::compact(core, context);
    if is_pool_high(core) || has_few_pages(core) {
        let before_bytes = core.stores.pool.used_bytes();
        from_pool = take_from_pool(core, context, &mut area_full);
        let used_bytes = core.stores.pool.used_bytes();
        // Resident pages need not be evicted if the pool released memory that it had to release.
        let must_shrink = used_bytes > core.stores.pool.limit_bytes() || has_few_pages(core);
        if used_bytes < before_bytes && must_shrink {
            return Round::Progress;
        }
    }
    let outcome = page_out::page_out(core, context);
    if outcome.pages_out + from_pool > 0 {
        return Round::Progress;
    }
    match outcome.area_full.or(area_full) {
        // Pages that bypassed the pool will be offered to it in the next round.
        Some(NoSlot::Area(_)) if core.policies.admission.refuse() => Round::Progress,
        Some(NoSlot::Area(_)) if swap_cache::reclaim_copies(core, RECLAIM_COPIES) > 0 => {
            Round::Progress
        }
        why => Round::Stuck(why),
    }
}

/// As [`round`]. If no page is evictable, also shrinks a pool below its limit, or raises the limit.
pub(crate) fn direct_round(core: &Core, context: &mut Context) -> Round {
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

/// Evicts a batch, else shrinks the pool, else releases standby pages. False if nothing was freed.
pub(crate) fn evict_more(core: &Core, context: &mut Context) -> bool {
    if core.memory.pinners.is_due() {
        core.background.wake();
    }
    page_out::page_out(core, context).pages_out > 0
        || take_from_pool(core, context, &mut None) > 0
        || core.stores.standby.release() > 0
}

/// Frees copies or writes pages back, first those of less value. Returns the number of pages.
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
    let reclaim_pooled = || swap_cache::reclaim_pooled_copies(core, RECLAIM_COPIES);
    let are_copies_last = swap_cache::outweighs_write_back(core);
    let first = if are_copies_last { write_back() } else { reclaim_pooled() };
    match first {
        0 if are_copies_last => reclaim_pooled(),
        0 => write_back(),
        taken => taken,
    }
}

/// Charges `count` pages, with reclaim if necessary. Fails if no page could be evicted for a while,
/// or if a signal in `open` is pending.
pub(crate) fn charge_pages(
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
            // Memory was freed, so the next wait starts from zero.
            core.background.interrupted_wait.forget();
            // Wake background reclaim now, so that it runs while the page is faulted in.
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
        match direct_round(core, context) {
            Round::Progress => {
                stuck = Stuck::default();
                core.background.interrupted_wait.forget();
                rounds += 1;
                // Other threads may use the freed memory again and again.
                if rounds.is_multiple_of(8) && signals::pending() & open != 0 {
                    return Err(Exhausted::Signal);
                }
            }
            Round::Stuck(why) => {
                // The process may have just learnt that it has no area.
                core.count_inherited(0);
                stuck.pause(core, why, began_ns, open)?;
                // The area may accept writes again.
                context.refusal = None;
            }
        }
    }
}

/// Evicts pages at the limit on mappings. Not in a forking thread: the child would lack their keys.
pub(crate) fn keep_mappings(core: &Core, context: &mut Context) {
    const MAX_ROUNDS: usize = 32;
    if !context.may_reclaim {
        return;
    }
    for _ in 0..MAX_ROUNDS {
        let is_full = core.memory.window.mapping_pressure() == MappingPressure::Full;
        if !is_full || matches!(round(core, context), Round::Stuck(_)) {
            return;
        }
    }
}

/// Time without progress of a thread that waits for memory.
#[derive(Default)]
struct Stuck {
    ns: u64,
    tried_at_ns: Option<u64>,
    pauses: u32,
}

impl Stuck {
    /// Waits after a try that began at `began_ns`. Fails after a timeout or if a signal is pending.
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
            let (waited_ns, at_ns) = interrupted_wait.take_wait(now);
            self.ns = waited_ns;
            at_ns
        });
        self.ns += match why {
            // A device timed out and failed: a few such tries suffice.
            Some(NoSlot::Area(AreaFull::Write { .. })) if now - began_ns > MAX_TRY_NS => {
                RECLAIM_TIMEOUT_NS / 3 + 1
            }
            _ => (now - before).min(MAX_TRY_NS),
        };
        self.pauses += 1;
        if self.pauses.is_multiple_of(4) {
            core.stores.standby.release();
        }
        if self.ns > RECLAIM_TIMEOUT_NS {
            return Err(exhausted(core, why));
        }
        // If the limit cannot be reached, keep the old one; do not kill the program.
        if self.ns > LOWER_LIMIT_TIMEOUT_NS && cancel_lowering(core) {
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

/// Keeps free memory at the high watermark while evicted pages rarely need the disk: by background
/// reclaim if it keeps up and a CPU is idle, otherwise in this thread. `pinned` is the number of
/// pages that are not evictable. The caller must hold no claims.
pub(crate) fn reclaim_ahead(core: &Core, contexts: &Contexts, pinned: usize) {
    // With very few pages the thread would evict the page that it just faulted in.
    let are_many = || core.memory.budget.pages() >= pinned + MIN_PAGES;
    let rarely_needs_disk =
        || core.policies.write_load.avoids_disk() && !core.policies.partition.disk_dominates();
    let other = core.other_bytes();
    if core.memory.budget.is_above_high(other)
        || !core.policies.has(Mechanism::KeepRoom)
        || !(are_many() && rarely_needs_disk())
        || is_pool_high(core)
        || core.grow_budget()
    {
        return;
    }
    let background_keeps_up = || {
        core.background.is_running()
            && core.policies.partition.costs.leaves_processor_idle()
            && !core.memory.budget.is_low(other)
    };
    if core.memory.pinners.is_due() || background_keeps_up() {
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

fn cancel_lowering(core: &Core) -> bool {
    let is_cancelled = core.memory.budget.cancel_lowering();
    if is_cancelled {
        core.background.limit_failed.store(true, Relaxed);
        core.background.wake_all();
    }
    is_cancelled
}

/// Returns true if one instruction's pages might not fit together, so that the pool must shrink.
fn has_few_pages(core: &Core) -> bool {
    let budget = &core.memory.budget;
    budget.pages() < MIN_PAGES && budget.is_low(core.other_bytes())
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
        other_mib: core.used_bytes().saturating_sub(pages) >> 20,
        pages_mib: pages >> 20,
    }
}

pub(crate) fn run(core: &Core, contexts: &Contexts, should_run: impl Fn() -> bool) {
    let mut idle_upkeep = IdleUpkeep::default();
    let mut cpu_ns = thread_cpu_ns();
    let mut stuck_rounds = 0;
    core.background.set_running(true);
    core.stats.add(Counter::EngineThreads, 1);
    while should_run() {
        let seen = core.background.seen();
        let before_ns = std::mem::replace(&mut cpu_ns, thread_cpu_ns());
        core.policies.partition.costs.note_background_cpu(cpu_ns.saturating_sub(before_ns));
        maintain(core, contexts);
        core.memory.pinners.recheck();
        core.memory.budget.follow(core.other_bytes());
        if core.memory.budget.is_above_high(core.other_bytes()) {
            let sleep_ns = idle_upkeep.step(core, contexts);
            core.background.sleep(seen, sleep_ns);
            core.report();
            continue;
        }
        if core.grow_budget() {
            continue;
        }
        // Claim per batch, so that a fork can run between batches.
        let mut context = contexts.claim_background();
        let stuck = matches!(direct_round(core, &mut context), Round::Stuck(_));
        drop(context);
        core.memory.budget.follow(core.other_bytes());
        core.report();
        stuck_rounds = if stuck { stuck_rounds + 1 } else { 0 };
        if stuck {
            core.background.pause(seen, PAUSE_NS);
        }
        if stuck_rounds > LOWER_LIMIT_TIMEOUT_NS / PAUSE_NS && cancel_lowering(core) {
            stuck_rounds = 0;
        }
    }
    core.background.set_running(false);
}

/// Upkeep while free memory is above the high watermark. It has its own interval, because
/// background reclaim may be woken thousands of times a second.
#[derive(Default)]
struct IdleUpkeep {
    upkeep: Upkeep,
    /// True if there may be more to do; the next step is not before `next_ns`.
    has_more: bool,
    next_ns: u64,
}

impl IdleUpkeep {
    /// Does a step if one is due. Returns the time to sleep, in ns.
    fn step(&mut self, core: &Core, contexts: &Contexts) -> u64 {
        let now = now_ns();
        if now >= self.next_ns {
            self.has_more = self.upkeep.step(core, contexts);
            // Minimum interval between two steps of upkeep: 5 ms.
            self.next_ns = now + 5_000_000;
        }
        if self.has_more { self.next_ns.saturating_sub(now) } else { 1_000_000_000 }
    }
}

/// Resizes stores under a context: a child must not inherit a half-built pool or a locked slab.
fn maintain(core: &Core, contexts: &Contexts) {
    let context = contexts.claim_background();
    core.follow_budget();
    core.resize_buffers();
    core.balance_pool();
    // If no address space is left, the standby list stays off.
    let _ = core.stores.standby.maintain();
    drop(context);
    // The context is released first, because standard error may block.
    if let Some(message) = core.stores.bounce.full_message(now_ns()).filter(|_| !core.is_quiet) {
        write_stderr(message.as_bytes());
    }
}
