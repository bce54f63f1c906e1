//! This process's share of its tree's budget.
//!
//! The process is a member of the ledger that `softswap run` created, and its limit is the chunks
//! that it holds. If memory is short it takes free chunks, also in a fault. The budget thread does
//! the rest: it publishes the benefit of more memory, releases chunks that are unused or requested,
//! and requests chunks of other members if none is free.
//!
//! Without that thread (in a forked child, or under the program's own filter) a process takes free
//! chunks, but releases none and is asked last. `softswap run` requests chunks for it.
//!
//! An engine may use its minimum without chunks, so that it can start at once. It then requests
//! chunks for the memory that it uses.

use super::{descriptors, own_threads, tree_account};
use crate::base::{instance, issue_call};
use softswap_engine::api::engine::Engine;
use softswap_engine::api::engine::memory_limit::LimitRefused;
use softswap_engine::api::settings::{Config, MIN_MEMORY_BYTES};
use softswap_engine::base::stats::Counter;
use softswap_shared::ledger::{Counts, Ledger, Member, SHAPE, Sizes};
use softswap_sys::process_identity::{self, ProcessIdentity};
use softswap_sys::raw::{self, now_ns};
use softswap_sys::{exemption, futex, own_descriptors, shared, threads};
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize};

/// First share of a process: a part of the budget, and its maximum in bytes.
const FIRST_PART: usize = 16;
const FIRST_BYTES: usize = 64 << 20;
/// Part of the budget that a process has if the ledger cannot be used.
const FIXED_PART: u64 = 8;
/// First share if little is free: about the memory of the engine itself.
const SMALL_CHUNKS: usize = 2;
/// Memory that the engine takes for each area after the first.
const AREA_BYTES: usize = 512 << 10;
/// Memory that a forked child may add without chunks: enough to reach exec.
pub(super) const CHILD_BYTES: usize = 4 << 20;
/// A process with at most this many chunks leaves the ledger at exit. A larger one is reaped once
/// its memory is freed.
const MAX_LEFT_CHUNKS: usize = 8;
/// Chunks that a process without a writable area requests again if it still lacks memory.
const URGENT_CHUNKS: usize = 2;
/// Time that a request to other members may take.
const REQUEST_TIMEOUT_NS: u64 = 60_000_000;
/// Bytes by which the limit is lowered at a time, so that chunks are released soon.
const LOWER_BYTES: usize = 8 << 20;
/// Time within which the memory in use must reach the lowered limit.
const LOWER_TIMEOUT_NS: u64 = 600_000_000;
/// Interval of the budget thread if memory is short, and of its publications.
const SHORT_INTERVAL_NS: u64 = 100_000_000;
const INTERVAL_NS: u64 = 1_000_000_000;
/// Unused memory that is kept at least.
const SLACK_BYTES: usize = 1 << 20;
/// Maximum number of bytes taken at once.
const MAX_BYTES: usize = 256 << 20;
/// Benefit published by a process that cannot release memory, so that it is asked last.
const UNAVAILABLE: u64 = u64::MAX;

static LEDGER: OnceLock<Ledger> = OnceLock::new();
/// Descriptor of the ledger, or -1, and the device and inode of its file.
static LEDGER_NUMBER: AtomicI32 = AtomicI32::new(-1);
static LEDGER_FILE: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// Tag of the member, 0 if there is none, and the PID with which it joined.
static MEMBER: AtomicU64 = AtomicU64::new(0);
static OWNER: AtomicU32 = AtomicU32::new(0);
static CHUNK_BYTES: AtomicUsize = AtomicUsize::new(0);
/// Chunks that this process holds, and its minimum limit in bytes.
static GRANTED: AtomicUsize = AtomicUsize::new(0);
static MIN_BYTES: AtomicUsize = AtomicUsize::new(0);
/// True if the engine about to start is a forked child's.
static INHERITS: AtomicBool = AtomicBool::new(false);
/// Limit of a forked child's parent in bytes.
static LIMIT_OF_PARENT: AtomicUsize = AtomicUsize::new(0);
/// True while [`GrantLock`] is held.
static IS_CHANGING: AtomicBool = AtomicBool::new(false);
/// True if the process has stopped using an overwritten ledger, and has not reported that yet.
static HAS_FALLEN_BACK: AtomicBool = AtomicBool::new(false);
/// True while the budget thread runs.
static HAS_THREAD: AtomicBool = AtomicBool::new(false);
/// The ledger's count of releases, plus one, when no chunk was free; 0 if some were.
static NONE_SINCE: AtomicU64 = AtomicU64::new(0);

pub(super) fn member() -> Option<Member> {
    let word = MEMBER.load(Acquire);
    if word == 0 {
        return None;
    }
    LEDGER.get()?.member(word, OWNER.load(Relaxed))
}

pub(crate) fn is_shared() -> bool {
    MEMBER.load(Relaxed) != 0
}

/// Returns the memory of all processes of the tree, resident, compressed and on the disk, as they
/// last published it.
pub(crate) fn used_bytes_of_all() -> Option<u64> {
    let bytes = |sizes: Sizes| sizes.resident_bytes + sizes.pool_bytes + sizes.disk_bytes;
    Some(LEDGER.get()?.members().into_iter().map(|member| bytes(member.sizes)).sum())
}

pub(super) fn chunk_bytes() -> usize {
    CHUNK_BYTES.load(Relaxed)
}

/// Returns the limit in bytes if the process holds `chunks`.
fn limit_of(chunks: usize) -> usize {
    (chunks * chunk_bytes()).max(MIN_BYTES.load(Relaxed))
}

pub(super) fn chunks_for(bytes: usize) -> usize {
    bytes.div_ceil(chunk_bytes())
}

/// Lock on the chunks that this process holds.
pub(super) struct GrantLock;

impl GrantLock {
    fn try_lock() -> Option<GrantLock> {
        // Not `then_some`: dropping a lock that was not taken would release it.
        (!IS_CHANGING.swap(true, AcqRel)).then(|| GrantLock)
    }

    pub(super) fn lock() -> GrantLock {
        let mut turns = 0;
        loop {
            match GrantLock::try_lock() {
                Some(lock) => return lock,
                None => futex::relax(&mut turns),
            }
        }
    }
}

impl Drop for GrantLock {
    fn drop(&mut self) {
        IS_CHANGING.store(false, Release);
    }
}

/// Opens the ledger behind a descriptor, if it can be used.
pub(super) fn open(number: i32) -> Option<Ledger> {
    // SAFETY: borrowed for this call only; the call rejects a wrong number.
    let fd = unsafe { BorrowedFd::borrow_raw(number) };
    let ledger = Ledger::open(shared::open(fd, SHAPE.words()).ok()?, SHAPE)?;
    let chunk_bytes = usize::try_from(ledger.chunk_bytes()).ok()?;
    let is_plausible = chunk_bytes.is_power_of_two() && chunk_bytes <= MIN_MEMORY_BYTES as usize;
    is_plausible.then(|| {
        // The program after exec and started processes use it, too.
        own_descriptors::keep(number);
        if let Some([device, inode]) = identity_of_file(number) {
            LEDGER_FILE[0].store(device, Relaxed);
            LEDGER_FILE[1].store(inode, Relaxed);
            LEDGER_NUMBER.store(number, Release);
        }
        CHUNK_BYTES.store(chunk_bytes, Relaxed);
        *LEDGER.get_or_init(|| ledger)
    })
}

/// Returns device and inode of an open file.
fn identity_of_file(number: i32) -> Option<[u64; 2]> {
    // SAFETY: all-zero is a valid stat to write over.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    let found = issue_call::engine_syscall(
        libc::SYS_fstat,
        [number as usize, &raw mut stat as usize, 0, 0, 0, 0],
    );
    (found == 0).then_some([stat.st_dev, stat.st_ino])
}

/// Returns the descriptor of the ledger, a file that all processes of the tree have open, or
/// `None` without one. The program may have closed it and opened another file under its number.
pub(crate) fn ledger_descriptor() -> Option<i32> {
    let number = LEDGER_NUMBER.load(Acquire);
    let file = LEDGER_FILE.each_ref().map(|word| word.load(Relaxed));
    (number >= 0 && identity_of_file(number) == Some(file)).then_some(number)
}

/// Joins the ledger and returns the first limit in bytes, or `None` if the budget is not shared.
pub(crate) fn join(config: &Config) -> Option<u64> {
    let number = config.ledger_fd?;
    let member = open(number).and_then(|ledger| ledger.join(ProcessIdentity::current()?));
    let Some(member) = member else {
        let share = (config.memory_bytes / FIXED_PART).max(MIN_MEMORY_BYTES);
        report_fixed_share(share as usize, "cannot be used");
        return Some(share);
    };
    let least = minimum_for(config).max(MIN_BYTES.load(Relaxed));
    MIN_BYTES.store(least, Relaxed);
    // Exec does not change the chunks of the process.
    let had = member.held() + member.excess();
    let ledger = member.ledger();
    let part = (ledger.limit() * chunk_bytes() / FIRST_PART).min(FIRST_BYTES);
    let first = chunks_for(part.max(least));
    let wanted = if ledger.free_chunks() > ledger.limit() / 2 { first } else { SMALL_CHUNKS };
    let granted = had + member.take(wanted.saturating_sub(had));
    set_member(&member, granted);
    Some(limit_of(granted) as u64)
}

/// Returns the minimum limit of an engine, which has tables and rings for each area.
fn minimum_for(config: &Config) -> usize {
    let areas_bytes = config.areas.len().saturating_sub(1) * AREA_BYTES;
    (MIN_MEMORY_BYTES as usize + areas_bytes).min(config.memory_bytes as usize)
}

pub(super) fn set_member(member: &Member, granted: usize) {
    GRANTED.store(granted, Relaxed);
    NONE_SINCE.store(0, Relaxed);
    HAS_THREAD.store(false, Relaxed);
    OWNER.store(raw::current_process(), Relaxed);
    MEMBER.store(member.tag(), Release);
    // Until the budget thread runs.
    member.publish(UNAVAILABLE, 0);
    // The figures of the program before exec are not this one's.
    member.publish_counts(&Counts::default());
    member.publish_sizes(&Sizes::default());
    // The program's filter may forbid the call. An engine's thread has a name of its own; the
    // process's was published before.
    if !exemption::is_in_force() && !own_threads::is_this() {
        member.publish_name(threads::own_name());
    }
}

/// Joins the ledger in a sleeping process.
pub(super) fn join_asleep() -> Option<Member> {
    let member = LEDGER.get()?.join(ProcessIdentity::current()?)?;
    set_member(&member, member.held());
    Some(member)
}

/// Forgets the parent's membership in a forked child.
pub(super) fn forget_member() {
    process_identity::forget();
    INHERITS.store(false, Relaxed);
    MIN_BYTES.store(0, Relaxed);
    MEMBER.store(0, Release);
    GRANTED.store(0, Relaxed);
    HAS_THREAD.store(false, Relaxed);
    IS_CHANGING.store(false, Relaxed);
}

/// Returns the chunks that this process holds.
pub(super) fn granted() -> usize {
    GRANTED.load(Relaxed)
}

pub(super) fn grant(chunks: usize) {
    GRANTED.store(chunks, Relaxed);
}

/// Publishes the memory of a sleeping process. Its benefit is unknown: 0 if it can be asked.
pub(super) fn publish_asleep(member: &Member, bytes: usize) {
    member.publish(if has_thread() { 0 } else { UNAVAILABLE }, bytes as u64);
    tree_account::publish_resident(member, bytes as u64);
}

pub(super) fn has_thread() -> bool {
    HAS_THREAD.load(Relaxed)
}

pub(super) fn wake_thread() {
    if let Some(member) = member() {
        member.notify();
    }
}

pub(super) fn set_has_thread(has: bool) {
    HAS_THREAD.store(has, Relaxed);
}

/// Sets the minimum limit of a forked child whose engine is about to start: its inherited memory,
/// for which its parent holds the chunks.
pub(super) fn begin_with(bytes: usize) {
    MIN_BYTES.store(bytes, Relaxed);
    INHERITS.store(true, Relaxed);
}

/// Called once the engine of such a child has charged the inherited memory. Sets the limit as in a
/// child of a process that was awake.
pub(crate) fn inherit_minimum(engine: &Engine) {
    if INHERITS.swap(false, Relaxed) {
        engine.charge_to_parent();
        let granted = GRANTED.load(Relaxed);
        set_minimum(engine, limit_of(granted));
        engine.begin_share(limit_of(granted));
    }
}

/// Sets the minimum limit of a forked child: the engine's own memory and a little.
fn set_minimum(engine: &Engine, limit_of_parent: usize) {
    LIMIT_OF_PARENT.store(limit_of_parent, Relaxed);
    MIN_BYTES.store(engine.used_bytes() + CHILD_BYTES, Relaxed);
    raise_minimum(engine);
}

/// Raises the minimum limit to the parent's if the child has no writable area: it can evict
/// nothing, so any lower limit would stop it.
fn raise_minimum(engine: &Engine) {
    if !engine.may_write() {
        MIN_BYTES.fetch_max(LIMIT_OF_PARENT.load(Relaxed), Relaxed);
    }
}

/// Joins the ledger in a forked child, with free chunks for the engine's own memory. The inherited
/// memory is charged to the parent until the child needs more than a little.
pub(super) fn become_child(engine: &Engine) {
    if MEMBER.swap(0, AcqRel) == 0 {
        return;
    }
    IS_CHANGING.store(false, Relaxed);
    let parent = process_identity::forget();
    // The program's own filter may forbid opening files.
    let me = match exemption::is_in_force() {
        true => parent.map(|it| ProcessIdentity { pid: raw::current_process(), start: 0, ..it }),
        false => ProcessIdentity::current(),
    };
    // Without an identity it keeps its parent's limit.
    let Some(me) = me else { return };
    let Some(member) = LEDGER.get().and_then(|ledger| ledger.join(me)) else { return };
    set_minimum(engine, limit_of(GRANTED.load(Relaxed)));
    let granted = member.take(chunks_for(MIN_BYTES.load(Relaxed)));
    set_member(&member, granted);
    engine.begin_share(limit_of(granted));
}

/// Takes free chunks and raises the limit. Called in faults, so it waits for nothing.
pub(crate) fn grow(raise: &dyn Fn(usize)) -> bool {
    let (Some(member), Some(_lock)) = (member(), GrantLock::try_lock()) else { return false };
    let Some(engine) = instance::engine() else { return false };
    let before = GRANTED.load(Relaxed);
    let limit = limit_of(before);
    raise_minimum(engine);
    let seen = member.ledger().releases().wrapping_add(1);
    let is_raised = limit_of(before) > limit;
    if !is_raised && (NONE_SINCE.load(Relaxed) == seen || !member.is_sound()) {
        if !engine.may_write() {
            // The last request may not have been met.
            member.demand_urgently(URGENT_CHUNKS);
        }
        return false;
    }
    let used_bytes = engine.used_bytes();
    // Above the minimum limit, and above the memory in use.
    let rise = (limit / 4).clamp(2 * chunk_bytes(), MAX_BYTES.max(2 * chunk_bytes()));
    let wanted = chunks_for(limit.max(used_bytes) + rise).saturating_sub(before);
    let got = member.take(wanted);
    if got < wanted {
        NONE_SINCE.store(seen, Relaxed);
        demand(&member, wanted - got, used_bytes);
    }
    GRANTED.store(before + got, Relaxed);
    let limit_then = limit_of(before + got);
    if limit_then > limit {
        raise(limit_then);
    }
    limit_then > limit
}

/// Has chunks requested of other members: by the budget thread, or by `softswap run`.
fn demand(member: &Member, chunks: usize, used_bytes: usize) {
    if HAS_THREAD.load(Relaxed) {
        return member.notify();
    }
    // Inherited memory beyond the limit is charged to the parent.
    let shown_bytes = used_bytes.min(limit_of(GRANTED.load(Relaxed))) as u64;
    member.publish(UNAVAILABLE, shown_bytes);
    let engine = instance::engine();
    engine.iter().for_each(|engine| tree_account::publish_counts(engine, member));
    tree_account::publish_resident(member, shown_bytes);
    match engine.is_some_and(|engine| !engine.may_write()) {
        // It can evict nothing, so it would be stopped.
        true => member.demand_urgently(chunks),
        false => member.demand(chunks),
    }
}

/// Called at exit. Releases a small share; a larger one is reaped once the memory is freed.
pub(crate) fn release_at_exit() {
    let Some(member) = member().filter(|_| OWNER.load(Relaxed) == raw::current_process()) else {
        return;
    };
    instance::engine().iter().for_each(|engine| tree_account::publish_counts(engine, &member));
    if GRANTED.load(Relaxed) <= MAX_LEFT_CHUNKS && MEMBER.swap(0, AcqRel) != 0 {
        member.leave();
    }
}

/// Runs the budget thread while `note_fault_end` returns true.
pub(super) fn run_budget(note_fault_end: fn() -> bool) {
    let Some(engine) = instance::engine() else { return };
    if member().is_none() || !descriptors::unshare_descriptors() {
        return;
    }
    let mut work = Work::default();
    HAS_THREAD.store(true, Relaxed);
    while note_fault_end()
        && let Some(member) = member()
    {
        let seen = member.notifications();
        if !is_consistent(&member) {
            fall_back(&member);
            engine.wake_background();
            return;
        }
        let is_short = work.turn(engine, &member);
        member.await_notification(seen, if is_short { SHORT_INTERVAL_NS } else { INTERVAL_NS / 2 });
    }
    HAS_THREAD.store(false, Relaxed);
    if let Some(member) = member() {
        member.publish(UNAVAILABLE, engine.used_bytes() as u64);
    }
}

/// Returns true if the ledger agrees with the chunks that this process holds.
fn is_consistent(member: &Member) -> bool {
    let _lock = GrantLock::lock();
    member.is_sound() && member.held() + member.excess() == GRANTED.load(Relaxed)
}

/// Leaves an overwritten ledger, and never changes its share again.
fn fall_back(member: &Member) {
    // Another thread may have left it meanwhile.
    if MEMBER.compare_exchange(member.tag(), 0, AcqRel, Relaxed).is_ok() {
        HAS_FALLEN_BACK.store(true, Release);
    }
}

/// Reports a fixed share once. The budget thread cannot: it has its own descriptor table, without
/// the program's standard error.
pub(super) fn report() {
    if HAS_FALLEN_BACK.load(Relaxed) && HAS_FALLEN_BACK.swap(false, AcqRel) {
        report_fixed_share(limit_of(GRANTED.load(Relaxed)), "has been overwritten");
    }
}

fn report_fixed_share(bytes: usize, why: &str) {
    raw::write_stderr(
        format!(
            "softswap: the memory through which processes share a budget {why}: process {} \
             continues with a fixed budget of {} MiB\n",
            raw::current_process(),
            bytes >> 20
        )
        .as_bytes(),
    );
}

#[derive(Default)]
struct Work {
    ticked_at_ns: u64,
    spared_ns: u64,
    benefit: u64,
    pages_out: u64,
}

impl Work {
    /// Makes one round, and returns true if memory is short.
    fn turn(&mut self, engine: &Engine, member: &Member) -> bool {
        move_within(member);
        let beyond = member.excess();
        if beyond > 0 {
            lower(engine, member, GRANTED.load(Relaxed).saturating_sub(beyond));
        }
        if let Some(target) = member.release_target() {
            lower(engine, member, target.keep + member.excess());
            member.end_release(target);
        }
        self.publish(engine, member);
        // Read after the limit was lowered: these evictions do not show a shortage.
        let pages_out = engine.stats().get(Counter::PagesOut);
        let is_short = engine.is_short_of_memory() || pages_out != self.pages_out;
        self.pages_out = pages_out;
        let missing = chunks_for(engine.used_bytes()).saturating_sub(GRANTED.load(Relaxed));
        if is_short || missing > 0 {
            request(engine, member, missing);
        }
        is_short || missing > 0
    }

    /// Publishes the benefit of more memory, and once a second releases unused chunks.
    fn publish(&mut self, engine: &Engine, member: &Member) {
        let now = now_ns();
        let passed_ns = now.saturating_sub(self.ticked_at_ns);
        if passed_ns >= INTERVAL_NS {
            // A child that only writes to inherited memory makes no fault.
            engine.count_inherited();
            let spared_ns = engine.saved_by_mib_ns();
            if self.ticked_at_ns > 0 {
                let rise = spared_ns.saturating_sub(self.spared_ns);
                let in_a_second =
                    u128::from(rise) * u128::from(INTERVAL_NS) / u128::from(passed_ns);
                // Averaged, since one second shows little.
                let rises = in_a_second as u64;
                self.benefit = (self.benefit / 4).saturating_mul(3).saturating_add(rises / 4);
                release_unused(engine, member);
            }
            (self.ticked_at_ns, self.spared_ns) = (now, spared_ns);
            // In case `softswap run` was killed.
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
    GRANTED.store((GRANTED.load(Relaxed) + moved).saturating_sub(given), Relaxed);
}

fn release_unused(engine: &Engine, member: &Member) {
    let used_bytes = engine.used_bytes();
    let kept_bytes = used_bytes + SLACK_BYTES.max(used_bytes / 4);
    let keep = chunks_for(kept_bytes);
    // Lowering the limit has a cost.
    if GRANTED.load(Relaxed) > keep + keep / 8 {
        lower(engine, member, keep);
    }
}

/// Obtains chunks, free ones or those of members with a lower benefit: at least the `missing` ones
/// for the memory in use.
fn request(engine: &Engine, member: &Member, missing: usize) {
    let ledger = member.ledger();
    ledger.reap(|process| process.liveness());
    let granted = GRANTED.load(Relaxed);
    let owed = ledger.floor().saturating_sub(granted);
    let most = (MAX_BYTES / 4 / chunk_bytes()).max(1);
    let need = (granted / 8).max(owed).max(missing).clamp(1, most);
    let got = member.obtain(need, REQUEST_TIMEOUT_NS);
    if got > 0 {
        let _lock = GrantLock::lock();
        let granted = GRANTED.load(Relaxed) + got;
        GRANTED.store(granted, Relaxed);
        // Refused only without address space for larger tables.
        let _ = engine.set_memory_limit(limit_of(granted) as u64);
    }
}

/// Lowers the limit to `keep` chunks, or as few as possible, and releases the other ones in chunks.
fn lower(engine: &Engine, member: &Member, keep: usize) {
    let _lock = GrantLock::lock();
    let mut keep = keep;
    loop {
        let granted = GRANTED.load(Relaxed);
        if granted <= keep {
            return;
        }
        let next = keep.max(granted.saturating_sub((LOWER_BYTES / chunk_bytes()).max(1)));
        match engine.set_memory_limit(limit_of(next) as u64) {
            Ok(()) if is_reached(engine, limit_of(next)) => {
                GRANTED.store(next, Relaxed);
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

/// Waits until the memory in use is within the limit, for [`LOWER_TIMEOUT_NS`] at most.
fn is_reached(engine: &Engine, bytes: usize) -> bool {
    const MOMENT: std::time::Duration = std::time::Duration::from_millis(1);
    let until_ns = now_ns() + LOWER_TIMEOUT_NS;
    while !engine.keeps_limit(bytes) && now_ns() < until_ns {
        std::thread::sleep(MOMENT);
    }
    engine.keeps_limit(bytes)
}
