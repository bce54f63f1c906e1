//! The part of a tree's budget that a sleeping process has.
//!
//! What it commits it holds steps for, touched or not, and nothing for the first megabyte: most
//! processes need no seat. Where no steps are free it wakes, and asks as others do. It gives back
//! what it does not have any more, but is not asked: it has no thread that would answer. So it
//! sleeps with a small part of the whole only.

use super::tree::{self, Alone, CHILD_BYTES};
use crate::memory::asleep;
use softswap_engine::door::settings::Config;
use softswap_engine::ledger::Identity;
use softswap_sys::{raw, signals};

/// So much counts as nothing.
const UNCOUNTED_BYTES: usize = 1 << 20;
/// What a process that cannot be asked may hold: a part of the whole, and at least so many bytes.
const MOST_PART: usize = 16;
const MOST_BYTES: usize = 8 << 20;
/// Taken beside what is needed: a part of it, and at most so many bytes.
const HEADROOM_PART: usize = 8;
const HEADROOM_BYTES: usize = 32 << 20;

/// What this process may commit from its start, in bytes; `None` where there is no ledger that
/// can be used. What the program had that it comes from by exec is free again.
pub(crate) fn begin(config: &Config) -> Option<usize> {
    let ledger = tree::open(config.ledger_fd?)?;
    if ledger.has_tenant(raw::current_process()) {
        let seat = ledger.take_seat(Identity::own()?)?;
        seat.give(seat.held() + seat.beyond());
        tree::take_place(&seat, 0);
    }
    asleep::share(grow, shrink);
    Some(UNCOUNTED_BYTES)
}

/// Takes free steps, so that `bytes` may be committed; what may be, in bytes.
fn grow(bytes: usize) -> usize {
    // A handler that commits finds nobody in the midst.
    signals::with_all_blocked(|| take(bytes))
}

fn take(bytes: usize) -> usize {
    let _alone = Alone::be();
    let Some(seat) = tree::seat().or_else(tree::take_seat) else { return UNCOUNTED_BYTES };
    let granted = tree::granted();
    let whole = seat.ledger().limit() * tree::step_bytes();
    if bytes > (whole / MOST_PART).max(MOST_BYTES) {
        return (granted * tree::step_bytes()).max(UNCOUNTED_BYTES);
    }
    let headroom = (bytes / HEADROOM_PART).min(HEADROOM_BYTES);
    let wanted = tree::steps_for(bytes + headroom).saturating_sub(granted);
    let granted = granted + seat.take(wanted);
    tree::grant(granted);
    tree::say_used(&seat, bytes);
    (granted * tree::step_bytes()).max(UNCOUNTED_BYTES)
}

/// Gives steps back that `bytes` do not need; what may be committed, in bytes.
fn shrink(bytes: usize) -> usize {
    signals::with_all_blocked(|| give(bytes))
}

fn give(bytes: usize) -> usize {
    let _alone = Alone::be();
    let Some(seat) = tree::seat() else { return UNCOUNTED_BYTES };
    let headroom = (bytes / HEADROOM_PART).min(HEADROOM_BYTES);
    let granted = tree::granted();
    let given = seat.give(granted.saturating_sub(tree::steps_for(bytes + headroom)));
    tree::grant(granted - given);
    tree::say_used(&seat, bytes);
    ((granted - given) * tree::step_bytes()).max(UNCOUNTED_BYTES)
}

/// In a forked child: a seat of its own for what it inherits, as it may write to all of that. Of
/// a little it is not known whether it lives on. False where there are no steps for it: then it
/// must not sleep, but be seen.
pub(super) fn become_child() -> bool {
    if !asleep::is_shared() {
        return true;
    }
    tree::forget_seat();
    let inherited = asleep::committed_bytes();
    if inherited <= CHILD_BYTES {
        asleep::set_limit(inherited + UNCOUNTED_BYTES);
        return true;
    }
    let may_commit = grow(inherited);
    asleep::set_limit(may_commit);
    if may_commit < inherited {
        tree::begin_with(inherited + CHILD_BYTES);
    }
    may_commit >= inherited
}
