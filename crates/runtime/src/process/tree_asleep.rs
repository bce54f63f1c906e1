//! The part of a tree's budget that a sleeping process has.
//!
//! What it commits it holds steps for, touched or not, and nothing for the first megabyte: most
//! processes need no seat. It gives back what it does not have any more. A small process takes
//! what it needs, and asks others for it; it is not asked itself. A large one has a thread that
//! waits for who asks, and wakes the process then, unless it is alone and the budget does not
//! move by itself. It takes only what is free: where there is no more it wakes, too. In a forked
//! child there is no such thread. So a large one leaves a part of the whole to others, and wakes
//! when it commits while these are short.

use super::statistics;
use super::tree::{self, Alone, CHILD_BYTES};
use crate::base::cancellation::uncancelled;
use crate::base::instance;
use crate::memory::asleep::{self, Share};
use crate::memory::libc_memory::outside_the_window;
use softswap_engine::door::settings::Config;
use softswap_engine::ledger::{Ledger, Seat};
use softswap_sys::{raw, signals};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// So much counts as nothing.
const UNCOUNTED_BYTES: usize = 1 << 20;
/// A process is small up to a part of the whole, and at least so many bytes: an engine of its
/// own would take as much.
const SMALL_PART: usize = 16;
const SMALL_BYTES: usize = 8 << 20;
/// What large ones leave free that cannot be asked: a part of the whole.
const LEFT_PART: usize = 8;
/// Taken beside what is needed: a part of it, and at most so many bytes.
const HEADROOM_PART: usize = 8;
const HEADROOM_BYTES: usize = 32 << 20;
/// So long waits a small one whom others are to give something.
const PATIENCE_NS: u64 = 200_000_000;
/// So often a large one looks whether others are short.
const LOOK_NS: u64 = 10_000_000;

/// Between two looks of the thread where nobody asks, and where it could not wake the process.
const TICK_NS: u64 = 10_000_000_000;
const AGAIN_NS: u64 = 100_000_000;

static LOOKED_AT_NS: AtomicU64 = AtomicU64::new(0);
/// What an engine takes of the whole, once it is there.
static LEFT_BYTES: AtomicUsize = AtomicUsize::new(0);
/// What starts the thread.
static ATTEND: OnceLock<fn() -> bool> = OnceLock::new();
/// Whether a thread is to be started, and whether there cannot be one.
static NEEDS_THREAD: AtomicBool = AtomicBool::new(false);
static HAS_NO_THREAD: AtomicBool = AtomicBool::new(false);
/// Whether this is the only process of its tree, whose budget does not move by itself.
static IS_ALONE: AtomicBool = AtomicBool::new(false);

/// What this process may commit from its start, in bytes; `None` where there is no ledger that
/// can be used. What the program had that it comes from by exec is free again.
/// `attend` starts the thread, if it can be.
pub(crate) fn begin(
    config: &Config,
    left_for_engine: usize,
    attend: fn() -> bool,
) -> Option<usize> {
    ATTEND.get_or_init(|| attend);
    LEFT_BYTES.store(left_for_engine, Relaxed);
    let may_be_alone = statistics::is_supervised(config) && !config.is_moving;
    IS_ALONE.store(may_be_alone && !raw::has_children(), Relaxed);
    let ledger = tree::open(config.ledger_fd?)?;
    if ledger.has_tenant(raw::current_process()) {
        let seat = ledger.take_seat(tree::identity()?)?;
        seat.give(seat.held() + seat.beyond());
        // Nor is it asked any more for what that had.
        seat.asked().into_iter().for_each(|question| seat.answered(question));
        seat.want(0);
        tree::take_place(&seat, 0);
    }
    let needs_thread = || NEEDS_THREAD.load(Relaxed);
    asleep::set_share(Share { grow, shrink, needs_thread, start_thread, is_short });
    Some(UNCOUNTED_BYTES)
}

fn is_small(ledger: &Ledger, bytes: usize) -> bool {
    bytes <= (ledger.limit() * tree::step_bytes() / SMALL_PART).max(SMALL_BYTES)
}

/// Before there are threads: later it takes a seat without opening a file.
pub(crate) fn prepare_for_threads() {
    if asleep::is_shared() {
        tree::identity();
    }
}

/// What large ones may take.
fn spare_steps(ledger: &Ledger) -> usize {
    let left = match tree::has_thread() || IS_ALONE.load(Relaxed) {
        true => tree::steps_for(LEFT_BYTES.load(Relaxed)),
        false => ledger.limit() / LEFT_PART,
    };
    ledger.free_steps().saturating_sub(left)
}

/// A handler that commits finds nobody in the midst, and who is in the midst is not cancelled.
/// Not in the child of a `vfork` or of a raw `clone`: the seat is its parent's.
fn undisturbed(body: impl FnOnce()) {
    if asleep::is_owner() {
        raw::preserving_errno(|| uncancelled(|| signals::with_all_blocked(body)));
    }
}

/// Takes steps, so that `bytes` may be committed.
fn grow(bytes: usize) {
    undisturbed(|| take(bytes, PATIENCE_NS));
}

fn take(bytes: usize, patience_ns: u64) {
    let _alone = Alone::be();
    let Some(seat) = tree::seat().or_else(tree::take_seat) else { return };
    let headroom = (bytes / HEADROOM_PART).min(HEADROOM_BYTES);
    let granted = tree::granted();
    let [missing, wanted] = [bytes, bytes.saturating_add(headroom)]
        .map(|bytes| tree::steps_for(bytes).saturating_sub(granted));
    let got = if is_small(seat.ledger(), bytes) {
        let got = seat.take(wanted);
        got + seat.obtain(missing.saturating_sub(got), patience_ns)
    } else {
        // Nothing where it is too little: then the process wakes.
        let spare = spare_steps(seat.ledger());
        if missing > spare { 0 } else { seat.take(wanted.min(spare)) }
    };
    settle(&seat, granted + got, bytes);
}

/// Gives steps back that what is committed does not need.
fn shrink() {
    undisturbed(|| {
        let _alone = Alone::be();
        let Some(seat) = tree::seat() else { return };
        let bytes = asleep::committed_bytes();
        let headroom = (bytes / HEADROOM_PART).min(HEADROOM_BYTES);
        let granted = tree::granted();
        let given = seat.give(granted.saturating_sub(tree::steps_for(bytes + headroom)));
        settle(&seat, granted - given, bytes);
    });
}

/// It has so many steps from now on.
fn settle(seat: &Seat, granted: usize, used_bytes: usize) {
    tree::grant(granted);
    let limit_bytes = (granted * tree::step_bytes()).max(UNCOUNTED_BYTES);
    // Where that is too little it is not committed either.
    let used_bytes = used_bytes.min(limit_bytes);
    tree::say_used(seat, used_bytes);
    NEEDS_THREAD.store(wants_thread(seat, used_bytes), Relaxed);
    asleep::set_limit(limit_bytes);
}

fn wants_thread(seat: &Seat, used_bytes: usize) -> bool {
    let may_be_wanted = !tree::has_thread() && !HAS_NO_THREAD.load(Relaxed);
    may_be_wanted && !IS_ALONE.load(Relaxed) && !is_small(seat.ledger(), used_bytes)
}

/// This process is about to have a child, or has one: it is not alone.
pub(crate) fn not_alone() {
    if !IS_ALONE.load(Relaxed) || !asleep::is_owner() {
        return;
    }
    IS_ALONE.store(false, Relaxed);
    if instance::is_asleep()
        && let Some(seat) = tree::seat()
        && wants_thread(&seat, asleep::committed_bytes())
    {
        start_thread();
    }
}

/// Starts the thread that waits for others. Where it cannot be now, the next commit tries again.
fn start_thread() {
    // Not in the child of a `vfork`, which has this memory, too.
    if !asleep::is_owner() {
        return;
    }
    NEEDS_THREAD.store(false, Relaxed);
    let attend = || ATTEND.get().is_some_and(|attend| attend());
    raw::preserving_errno(|| {
        instance::prepare_for_threads();
        if instance::emulates_signals() && !uncancelled(|| outside_the_window(attend)) {
            HAS_NO_THREAD.store(true, Relaxed);
        }
    });
}

/// What the thread does: waits until others want what this process has, and wakes it then.
pub(super) fn await_question(goes_on: fn() -> bool) {
    while goes_on()
        && let Some(seat) = tree::seat()
    {
        // Before it is asked whether the process sleeps: who wakes it rings.
        let bell = seat.bell();
        if !instance::may_wake() {
            break;
        }
        tree::set_has_thread(true);
        tree::say_used(&seat, asleep::committed_bytes());
        let mut pause_ns = TICK_NS;
        if seat.beyond() > 0 || seat.asked().is_some() {
            if instance::awake().is_some() {
                return;
            }
            pause_ns = AGAIN_NS;
        }
        seat.await_bell(bell, pause_ns);
    }
    tree::set_has_thread(false);
    if let Some(seat) = tree::seat().filter(|_| instance::engine().is_none()) {
        // Not to be asked any more.
        tree::say_used(&seat, asleep::committed_bytes());
    }
}

/// Whether others need what a large process has that cannot be asked, or the budget has become
/// too small for it.
fn is_short(bytes: usize) -> bool {
    if tree::has_thread() || !asleep::is_owner() {
        return false;
    }
    let Some(seat) = tree::seat() else { return false };
    let now_ns = raw::now_ns();
    let looked_at_ns = LOOKED_AT_NS.load(Relaxed);
    if is_small(seat.ledger(), bytes) || now_ns < looked_at_ns + LOOK_NS {
        return false;
    }
    LOOKED_AT_NS.store(now_ns, Relaxed);
    seat.beyond() > 0 || !IS_ALONE.load(Relaxed) && spare_steps(seat.ledger()) == 0
}

/// In a forked child: a seat of its own for what it inherits, as it may write to all of that. Of
/// a little it is not known whether it lives on. False where there are no steps for it: then it
/// must not sleep, but be seen.
pub(super) fn become_child() -> bool {
    if !asleep::is_shared() {
        return true;
    }
    tree::forget_seat();
    if instance::emulates_signals() {
        // It was prepared for threads before it was forked.
        prepare_for_threads();
    }
    NEEDS_THREAD.store(false, Relaxed);
    HAS_NO_THREAD.store(false, Relaxed);
    IS_ALONE.store(false, Relaxed);
    let inherited = asleep::committed_bytes();
    if inherited <= CHILD_BYTES {
        asleep::set_limit(inherited + UNCOUNTED_BYTES);
        return true;
    }
    asleep::set_limit(0);
    // It may be on its way to exec: nobody is waited for.
    undisturbed(|| take(inherited, 0));
    let may_sleep = asleep::limit_bytes() >= inherited;
    if !may_sleep {
        tree::begin_with(inherited + CHILD_BYTES);
    }
    may_sleep
}
