//! This process's part of a budget that its tree shares.
//!
//! It has a seat at the ledger that `softswap run` has made, and its limit is what it holds
//! there, in steps. It takes free steps where it finds memory short, in the midst of a fault if
//! need be. A thread of the engine's does the rest: says what the memory is worth here, gives
//! steps back that are not used or that others ask for, and asks others where none are free.
//!
//! Without that thread (a forked child, a program with filters of its own) a process takes free
//! steps as well, but gives none: it is not asked either, as far as others are. `softswap run`
//! asks others for it.
//!
//! The least that an engine can do with it may use in any case, so that none waits to start. What
//! it does use of that without steps it asks for.

use super::{descriptors, own_threads, tree_account};
use crate::base::{instance, issue_call};
use softswap_engine::base::stats::Counter;
use softswap_engine::door::engine::Engine;
use softswap_engine::door::engine::memory_limit::LimitRefused;
use softswap_engine::door::settings::{Config, MIN_MEMORY_BYTES};
use softswap_engine::ledger::{Counts, Identity, Ledger, SHAPE, Seat, Sizes};
use softswap_sys::raw::{self, now_ns};
use softswap_sys::{exemption, futex, own_descriptors, shared, threads};
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize};

/// What a process begins with, of the whole: a part, and at most so many bytes.
const FIRST_PART: usize = 16;
const FIRST_BYTES: usize = 64 << 20;
/// What it does with where the ledger cannot be used.
const FIXED_PART: u64 = 8;
/// What a process begins with where little is free, about what its engine takes.
const SMALL_STEPS: usize = 2;
/// What an area more takes of an engine's own memory, about.
const AREA_BYTES: usize = 512 << 10;
/// What a forked child may add in any case: it gets as far as exec.
pub(super) const CHILD_BYTES: usize = 4 << 20;
/// Who has no more lets go of its seat when it ends; larger ones only once their memory is gone.
const MOST_LEFT_STEPS: usize = 8;
/// What a process that cannot do without asks for again.
const URGENT_STEPS: usize = 2;
/// So long waits who asks.
const PATIENCE_NS: u64 = 60_000_000;
/// A limit is lowered by so much at a time: soon enough for who waits.
const PIECE_BYTES: usize = 8 << 20;
/// So long may pages take to leave for such a piece.
const PIECE_NS: u64 = 600_000_000;
/// Between looks at what is short, and at what is used and worth.
const LOOK_NS: u64 = 100_000_000;
const TICK_NS: u64 = 1_000_000_000;
/// What is kept beside what is used, at least.
const SLACK_BYTES: usize = 1 << 20;
/// The most that is taken at once.
const MOST_BYTES: usize = 256 << 20;
/// Worth more than others' memory: who cannot give is asked last.
const PRICELESS: u64 = u64::MAX;

static LEDGER: OnceLock<Ledger> = OnceLock::new();
/// The ledger's descriptor, or -1, and the device and inode of its file.
static LEDGER_NUMBER: AtomicI32 = AtomicI32::new(-1);
static LEDGER_FILE: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// The seat and whose it is; 0: none.
static SEAT: AtomicU64 = AtomicU64::new(0);
static OWNER: AtomicU32 = AtomicU32::new(0);
/// Which process is known for what it is, when it began, and its name space. 0: none.
static KNOWN: AtomicU32 = AtomicU32::new(0);
static BEGAN: AtomicU64 = AtomicU64::new(0);
static NAMESPACE: AtomicU32 = AtomicU32::new(0);
static STEP_BYTES: AtomicUsize = AtomicUsize::new(0);
/// Steps that this process has taken, and the limit that it has at least, in bytes.
static GRANTED: AtomicUsize = AtomicUsize::new(0);
static LEAST_BYTES: AtomicUsize = AtomicUsize::new(0);
/// Whether the engine that is to come is a forked child's.
static INHERITS: AtomicBool = AtomicBool::new(false);
/// What a forked child's parent might use, in bytes.
static LIMIT_OF_PARENT: AtomicUsize = AtomicUsize::new(0);
/// Whether somebody changes what is granted.
static IS_CHANGING: AtomicBool = AtomicBool::new(false);
/// Whether it goes without the ledger from now on, and has not said so.
static HAS_FALLEN_BACK: AtomicBool = AtomicBool::new(false);
/// Whether a thread of this process asks others and answers them.
static HAS_THREAD: AtomicBool = AtomicBool::new(false);
/// What the ledger's count of freed steps was when none was free, and one.
static NONE_SINCE: AtomicU64 = AtomicU64::new(0);

pub(super) fn seat() -> Option<Seat> {
    let word = SEAT.load(Acquire);
    if word == 0 {
        return None;
    }
    LEDGER.get()?.seat_by(word, OWNER.load(Relaxed))
}

/// Which process this is. The first time that opens files, in the program's table of descriptors:
/// not beside its threads.
pub(super) fn identity() -> Option<Identity> {
    let pid = raw::current_process();
    if KNOWN.load(Acquire) == pid {
        let (start, namespace) = (BEGAN.load(Relaxed), NAMESPACE.load(Relaxed));
        return Some(Identity { pid, start, namespace });
    }
    let me = Identity::own()?;
    BEGAN.store(me.start, Relaxed);
    NAMESPACE.store(me.namespace, Relaxed);
    KNOWN.store(pid, Release);
    Some(me)
}

/// In a forked child: it may have its parent's number, in a name space of its own.
fn forget_identity() {
    KNOWN.store(0, Release);
}

/// Whether this process shares its tree's budget.
pub(crate) fn is_shared() -> bool {
    SEAT.load(Relaxed) != 0
}

pub(super) fn step_bytes() -> usize {
    STEP_BYTES.load(Relaxed)
}

/// What so many steps allow, in bytes.
fn limit_of(steps: usize) -> usize {
    (steps * step_bytes()).max(LEAST_BYTES.load(Relaxed))
}

pub(super) fn steps_for(bytes: usize) -> usize {
    bytes.div_ceil(step_bytes())
}

/// What is granted changes by nobody else meanwhile.
pub(super) struct Alone;

impl Alone {
    /// At once, or not.
    fn try_be() -> Option<Alone> {
        // Made only where it is to be: one that is dropped lets go of what another has.
        (!IS_CHANGING.swap(true, AcqRel)).then(|| Alone)
    }

    pub(super) fn be() -> Alone {
        let mut turns = 0;
        loop {
            match Alone::try_be() {
                Some(alone) => return alone,
                None => futex::relax(&mut turns),
            }
        }
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        IS_CHANGING.store(false, Release);
    }
}

/// The words of the ledger, where there is one that can be used.
pub(super) fn open(number: i32) -> Option<Ledger> {
    // SAFETY: borrowed for this call only; a wrong number is refused by it.
    let fd = unsafe { BorrowedFd::borrow_raw(number) };
    let ledger = Ledger::open(shared::open(fd, SHAPE.words()).ok()?, SHAPE)?;
    let step_bytes = usize::try_from(ledger.step_bytes()).ok()?;
    let is_plausible = step_bytes.is_power_of_two() && step_bytes <= MIN_MEMORY_BYTES as usize;
    is_plausible.then(|| {
        // What this process becomes by exec goes on with it, and so does what it starts.
        own_descriptors::keep(number);
        if let Some([device, inode]) = identity_of_file(number) {
            LEDGER_FILE[0].store(device, Relaxed);
            LEDGER_FILE[1].store(inode, Relaxed);
            LEDGER_NUMBER.store(number, Release);
        }
        STEP_BYTES.store(step_bytes, Relaxed);
        *LEDGER.get_or_init(|| ledger)
    })
}

/// Device and inode of an open file.
fn identity_of_file(number: i32) -> Option<[u64; 2]> {
    // SAFETY: all-zero is a valid stat to write over.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    let found =
        issue_call::ask(libc::SYS_fstat, [number as usize, &raw mut stat as usize, 0, 0, 0, 0]);
    (found == 0).then_some([stat.st_dev, stat.st_ino])
}

/// Returns the descriptor of the ledger, a file that all processes of the tree have open, or
/// `None` without one. The program may have closed it and opened another file under its number.
pub(crate) fn ledger_descriptor() -> Option<i32> {
    let number = LEDGER_NUMBER.load(Acquire);
    let file = LEDGER_FILE.each_ref().map(|word| word.load(Relaxed));
    (number >= 0 && identity_of_file(number) == Some(file)).then_some(number)
}

/// Takes a seat for this process: what it may begin with, in bytes; `None` where its budget is
/// its own.
pub(crate) fn join(config: &Config) -> Option<u64> {
    let number = config.ledger_fd?;
    let seat = open(number).and_then(|ledger| ledger.take_seat(identity()?));
    let Some(seat) = seat else {
        let share = (config.memory_bytes / FIXED_PART).max(MIN_MEMORY_BYTES);
        say_fixed(share as usize, "cannot be used");
        return Some(share);
    };
    let least = least_for(config).max(LEAST_BYTES.load(Relaxed));
    LEAST_BYTES.store(least, Relaxed);
    // After exec it has what it had before.
    let had = seat.held() + seat.beyond();
    let ledger = seat.ledger();
    let part = (ledger.limit() * step_bytes() / FIRST_PART).min(FIRST_BYTES);
    let first = steps_for(part.max(least));
    let wanted = if ledger.free_steps() > ledger.limit() / 2 { first } else { SMALL_STEPS };
    let granted = had + seat.take(wanted.saturating_sub(had));
    take_place(&seat, granted);
    Some(limit_of(granted) as u64)
}

/// What an engine can do with: more with more areas, whose tables and rings it has.
fn least_for(config: &Config) -> usize {
    let areas_bytes = config.areas.len().saturating_sub(1) * AREA_BYTES;
    (MIN_MEMORY_BYTES as usize + areas_bytes).min(config.memory_bytes as usize)
}

pub(super) fn take_place(seat: &Seat, granted: usize) {
    GRANTED.store(granted, Relaxed);
    NONE_SINCE.store(0, Relaxed);
    HAS_THREAD.store(false, Relaxed);
    OWNER.store(raw::current_process(), Relaxed);
    SEAT.store(seat.to_word(), Release);
    // Until a thread can answer.
    seat.publish(PRICELESS, 0);
    // What a program before this one had in this process is not its own.
    seat.publish_counts(&Counts::default());
    seat.publish_sizes(&Sizes::default());
    // Asked for only where no filter of the program's may forbid it. One of the engine's threads
    // has a name of its own; the process's has been said by then.
    if !exemption::is_in_force() && !own_threads::is_this() {
        seat.publish_name(threads::own_name());
    }
}

/// A seat for a process that sleeps.
pub(super) fn take_seat() -> Option<Seat> {
    let seat = LEDGER.get()?.take_seat(identity()?)?;
    take_place(&seat, seat.held());
    Some(seat)
}

/// In a forked child: the seat is its parent's.
pub(super) fn forget_seat() {
    forget_identity();
    INHERITS.store(false, Relaxed);
    LEAST_BYTES.store(0, Relaxed);
    SEAT.store(0, Release);
    GRANTED.store(0, Relaxed);
    HAS_THREAD.store(false, Relaxed);
    IS_CHANGING.store(false, Relaxed);
}

/// Steps that this process holds.
pub(super) fn granted() -> usize {
    GRANTED.load(Relaxed)
}

/// From now on it holds so many.
pub(super) fn grant(steps: usize) {
    GRANTED.store(steps, Relaxed);
}

/// Says what a process uses that sleeps: as far as is known its memory is worth nothing to it,
/// where it can be asked.
pub(super) fn say_used(seat: &Seat, bytes: usize) {
    seat.publish(if has_thread() { 0 } else { PRICELESS }, bytes as u64);
    tree_account::tell_resident(seat, bytes as u64);
}

pub(super) fn has_thread() -> bool {
    HAS_THREAD.load(Relaxed)
}

/// Wakes the thread, if it waits.
pub(super) fn wake_thread() {
    if let Some(seat) = seat() {
        seat.wake_own();
    }
}

pub(super) fn set_has_thread(has: bool) {
    HAS_THREAD.store(has, Relaxed);
}

/// This is a forked child, whose engine begins with `bytes`, whoever has the steps for it: with
/// what it inherits.
pub(super) fn begin_with(bytes: usize) {
    LEAST_BYTES.store(bytes, Relaxed);
    INHERITS.store(true, Relaxed);
}

/// The engine of such a child has found what there is. From now on it is as in a child that was
/// forked by a process that was awake.
pub(crate) fn leave_to_parent(engine: &Engine) {
    if INHERITS.swap(false, Relaxed) {
        engine.leave_to_parent();
        let granted = GRANTED.load(Relaxed);
        set_least(engine, limit_of(granted));
        engine.begin_share(limit_of(granted));
    }
}

/// A forked child may use what the engine itself has and a little, in any case.
fn set_least(engine: &Engine, limit_of_parent: usize) {
    LIMIT_OF_PARENT.store(limit_of_parent, Relaxed);
    LEAST_BYTES.store(engine.used_bytes() + CHILD_BYTES, Relaxed);
    raise_least(engine);
}

/// A forked child that can write nowhere may use as much as its parent might: nothing of it can
/// leave, and it would have to be stopped.
fn raise_least(engine: &Engine) {
    if !engine.may_write() {
        LEAST_BYTES.fetch_max(LIMIT_OF_PARENT.load(Relaxed), Relaxed);
    }
}

/// In a forked child: a seat of its own, with what is free. What it inherits is its parent's, but
/// for what the engine itself has, until it needs more than a little.
pub(super) fn become_child(engine: &Engine) {
    if SEAT.swap(0, AcqRel) == 0 {
        return;
    }
    IS_CHANGING.store(false, Relaxed);
    forget_identity();
    // Nothing is opened where the program's own filter may forbid it.
    let me = match exemption::is_in_force() {
        true => Some(Identity {
            pid: raw::current_process(),
            start: 0,
            namespace: NAMESPACE.load(Relaxed),
        }),
        false => identity(),
    };
    // Where nothing is told of processes it goes on with what it had by its parent.
    let Some(me) = me else { return };
    let Some(seat) = LEDGER.get().and_then(|ledger| ledger.take_seat(me)) else { return };
    set_least(engine, limit_of(GRANTED.load(Relaxed)));
    let granted = seat.take(steps_for(LEAST_BYTES.load(Relaxed)));
    take_place(&seat, granted);
    engine.begin_share(limit_of(granted));
}

/// Takes free steps, if there are, and raises the limit by them. In a fault: waits for nothing.
pub(crate) fn more(raise: &dyn Fn(usize)) -> bool {
    let (Some(seat), Some(_alone)) = (seat(), Alone::try_be()) else { return false };
    let Some(engine) = instance::engine() else { return false };
    let before = GRANTED.load(Relaxed);
    let limit = limit_of(before);
    raise_least(engine);
    let seen = seat.ledger().freed().wrapping_add(1);
    let is_raised = limit_of(before) > limit;
    if !is_raised && (NONE_SINCE.load(Relaxed) == seen || !seat.is_sound()) {
        if !engine.may_write() {
            // Whoever was asked may not have answered.
            seat.want_urgently(URGENT_STEPS);
        }
        return false;
    }
    let used_bytes = engine.used_bytes();
    // Beyond what it may use in any case, and what it uses already.
    let rise = (limit / 4).clamp(2 * step_bytes(), MOST_BYTES.max(2 * step_bytes()));
    let wanted = steps_for(limit.max(used_bytes) + rise).saturating_sub(before);
    let got = seat.take(wanted);
    if got < wanted {
        NONE_SINCE.store(seen, Relaxed);
        want(&seat, wanted - got, used_bytes);
    }
    GRANTED.store(before + got, Relaxed);
    let limit_then = limit_of(before + got);
    if limit_then > limit {
        raise(limit_then);
    }
    limit_then > limit
}

/// Has others asked for what nobody has: by this process's thread, or by `softswap run`.
fn want(seat: &Seat, steps: usize, used_bytes: usize) {
    if HAS_THREAD.load(Relaxed) {
        return seat.wake_own();
    }
    // What a child inherits it shares, until it has made room for it.
    let shown_bytes = used_bytes.min(limit_of(GRANTED.load(Relaxed))) as u64;
    seat.publish(PRICELESS, shown_bytes);
    let engine = instance::engine();
    engine.iter().for_each(|engine| tree_account::tell_counts(engine, seat));
    tree_account::tell_resident(seat, shown_bytes);
    match engine.is_some_and(|engine| !engine.may_write()) {
        // Its pages cannot leave: it would have to be stopped.
        true => seat.want_urgently(steps),
        false => seat.want(steps),
    }
}

/// This process ends. What little it has is free from now on; what more would be, once its
/// memory is, others see.
pub(crate) fn leave() {
    let Some(seat) = seat().filter(|_| OWNER.load(Relaxed) == raw::current_process()) else {
        return;
    };
    instance::engine().iter().for_each(|engine| tree_account::tell_counts(engine, &seat));
    if GRANTED.load(Relaxed) <= MOST_LEFT_STEPS && SEAT.swap(0, AcqRel) != 0 {
        seat.leave();
    }
}

/// What the thread does, for as long as it is to go on.
pub(super) fn attend(goes_on: fn() -> bool) {
    let Some(engine) = instance::engine() else { return };
    if seat().is_none() || !descriptors::leave_table() {
        return;
    }
    let mut work = Work::default();
    HAS_THREAD.store(true, Relaxed);
    while goes_on()
        && let Some(seat) = seat()
    {
        let bell = seat.bell();
        if !is_kept(&seat) {
            fall_back(&seat);
            engine.wake_background();
            return;
        }
        let is_short = work.turn(engine, &seat);
        seat.await_bell(bell, if is_short { LOOK_NS } else { TICK_NS / 2 });
    }
    HAS_THREAD.store(false, Relaxed);
    if let Some(seat) = seat() {
        seat.publish(PRICELESS, engine.used_bytes() as u64);
    }
}

/// Whether the ledger says of this process what it says itself.
fn is_kept(seat: &Seat) -> bool {
    let _alone = Alone::be();
    seat.is_sound() && seat.held() + seat.beyond() == GRANTED.load(Relaxed)
}

/// The ledger has been written to by somebody else: what was granted is kept, for good.
fn fall_back(seat: &Seat) {
    // Not where it has been left meanwhile.
    if SEAT.compare_exchange(seat.to_word(), 0, AcqRel, Relaxed).is_ok() {
        HAS_FALLEN_BACK.store(true, Release);
    }
}

/// Says once that the share is fixed. This thread cannot: standard error is the program's, in
/// whose table of descriptors it is not.
pub(super) fn tell() {
    if HAS_FALLEN_BACK.load(Relaxed) && HAS_FALLEN_BACK.swap(false, AcqRel) {
        say_fixed(limit_of(GRANTED.load(Relaxed)), "has been overwritten");
    }
}

fn say_fixed(bytes: usize, why: &str) {
    raw::write_stderr(
        format!(
            "softswap: the page by which processes share a budget {why}: process {} does with a \
             fixed share of {} MiB\n",
            raw::current_process(),
            bytes >> 20
        )
        .as_bytes(),
    );
}

/// What the thread knows from turn to turn.
#[derive(Default)]
struct Work {
    ticked_at_ns: u64,
    spared_ns: u64,
    worth: u64,
    pages_out: u64,
}

impl Work {
    /// Whether memory is short here.
    fn turn(&mut self, engine: &Engine, seat: &Seat) -> bool {
        move_within(seat);
        let beyond = seat.beyond();
        if beyond > 0 {
            lower(engine, seat, GRANTED.load(Relaxed).saturating_sub(beyond));
        }
        if let Some(question) = seat.asked() {
            lower(engine, seat, question.keep + seat.beyond());
            seat.answered(question);
        }
        self.tell(engine, seat);
        // Not what leaves only because it was just given away.
        let pages_out = engine.stats().get(Counter::PagesOut);
        let is_short = engine.is_short_of_memory() || pages_out != self.pages_out;
        self.pages_out = pages_out;
        let missing = steps_for(engine.used_bytes()).saturating_sub(GRANTED.load(Relaxed));
        if is_short || missing > 0 {
            ask(engine, seat, missing);
        }
        is_short || missing > 0
    }

    /// Says what memory is worth here, once a second, and gives back what is not used.
    fn tell(&mut self, engine: &Engine, seat: &Seat) {
        let now = now_ns();
        let passed_ns = now.saturating_sub(self.ticked_at_ns);
        if passed_ns >= TICK_NS {
            // A child that only writes to what it inherits asks for no room.
            engine.count_inherited();
            let spared_ns = engine.spared_by_a_mib_ns();
            if self.ticked_at_ns > 0 {
                let rise = spared_ns.saturating_sub(self.spared_ns);
                let in_a_second = u128::from(rise) * u128::from(TICK_NS) / u128::from(passed_ns);
                // What is seen in one second says little.
                let rises = in_a_second as u64;
                self.worth = (self.worth / 4).saturating_mul(3).saturating_add(rises / 4);
                give_back_unused(engine, seat);
            }
            (self.ticked_at_ns, self.spared_ns) = (now, spared_ns);
            // Where `softswap run` has been killed nobody else does.
            let _ = seat.ledger().ring_for_others();
        }
        seat.publish(self.worth.min(PRICELESS - 1), engine.used_bytes() as u64);
        tree_account::tell(engine, seat);
    }
}

/// Moves steps beyond a limit that was lowered to free ones within it.
fn move_within(seat: &Seat) {
    if seat.beyond() == 0 {
        return;
    }
    let _alone = Alone::be();
    let moved = seat.take(seat.beyond());
    // Those beyond the limit go first.
    let given = seat.give(moved);
    GRANTED.store((GRANTED.load(Relaxed) + moved).saturating_sub(given), Relaxed);
}

fn give_back_unused(engine: &Engine, seat: &Seat) {
    let used_bytes = engine.used_bytes();
    let kept_bytes = used_bytes + SLACK_BYTES.max(used_bytes / 4);
    let keep = steps_for(kept_bytes);
    // Not for a little.
    if GRANTED.load(Relaxed) > keep + keep / 8 {
        lower(engine, seat, keep);
    }
}

/// Asks others for more, where none is free and theirs is worth less; for what is `missing` of
/// what it uses at least.
fn ask(engine: &Engine, seat: &Seat, missing: usize) {
    let ledger = seat.ledger();
    ledger.reap(|who| who.fate());
    let granted = GRANTED.load(Relaxed);
    let owed = ledger.floor().saturating_sub(granted);
    let most = (MOST_BYTES / 4 / step_bytes()).max(1);
    let need = (granted / 8).max(owed).max(missing).clamp(1, most);
    let got = seat.obtain(need, PATIENCE_NS);
    if got > 0 {
        let _alone = Alone::be();
        let granted = GRANTED.load(Relaxed) + got;
        GRANTED.store(granted, Relaxed);
        // Refused only where there is no address space: then it does with the tables it has.
        let _ = engine.set_memory_limit(limit_of(granted) as u64);
    }
}

/// Does with `keep` steps, or as few as it can, and gives the others back, piece by piece.
fn lower(engine: &Engine, seat: &Seat, keep: usize) {
    let _alone = Alone::be();
    let mut keep = keep;
    loop {
        let granted = GRANTED.load(Relaxed);
        if granted <= keep {
            return;
        }
        let next = keep.max(granted.saturating_sub((PIECE_BYTES / step_bytes()).max(1)));
        match engine.set_memory_limit(limit_of(next) as u64) {
            Ok(()) if is_reached(engine, limit_of(next)) => {
                GRANTED.store(next, Relaxed);
                seat.give(granted - next);
            }
            Err(
                LimitRefused::TooSmall { least_bytes, .. }
                | LimitRefused::Locked { least_bytes, .. },
            ) if steps_for(least_bytes as usize) > keep => keep = steps_for(least_bytes as usize),
            // Pages have no place to go.
            _ => {
                let _ = engine.set_memory_limit(limit_of(granted) as u64);
                return;
            }
        }
    }
}

/// Waits until a lower limit holds, or is given up.
fn is_reached(engine: &Engine, bytes: usize) -> bool {
    const MOMENT: std::time::Duration = std::time::Duration::from_millis(1);
    let until_ns = now_ns() + PIECE_NS;
    while !engine.keeps_limit(bytes) && now_ns() < until_ns {
        std::thread::sleep(MOMENT);
    }
    engine.keeps_limit(bytes)
}
