//! This process's share of its tree's budget.
//!
//! The process is a member of the ledger that `softswap run` created, and its limit is the chunks
//! that it holds. If memory is short it takes free chunks, also in a fault. The budget thread does
//! the rest.
//!
//! Without that thread (in a forked child, or under the program's own filter) a process takes free
//! chunks, but releases none and is asked last. `softswap run` requests chunks for it.
//!
//! An engine may use its minimum without chunks, so that it can start immediately.

use super::{own_threads, tree_account};
use crate::base::instance;
use softswap_engine::api::engine::Engine;
use softswap_engine::api::settings::{Config, MIN_MEMORY_BYTES};
use softswap_shared::ledger::{Claim, Counts, Eviction, Ledger, Member, SHAPE, Sizes};
use softswap_sys::file::identity_of;
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
const AREA_BYTES: usize = 512 << 10;
/// Memory that a forked child may add without chunks: enough to reach exec.
pub(super) const CHILD_BYTES: usize = 4 << 20;
/// Larger processes stay in the ledger at exit, and are reaped once their memory is freed.
const MAX_LEFT_CHUNKS: usize = 8;
/// Chunks that a process without a writable area requests again if it still lacks memory.
const URGENT_CHUNKS: usize = 2;
pub(super) const MAX_BYTES: usize = 256 << 20;
/// Benefit published by a process that cannot release memory, so that it is asked last.
pub(super) const UNAVAILABLE: u64 = u64::MAX;

static LEDGER: OnceLock<Ledger> = OnceLock::new();
/// Descriptor of the ledger, or -1, and the device and inode of its file.
static LEDGER_NUMBER: AtomicI32 = AtomicI32::new(-1);
static LEDGER_FILE: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// Tag of the member, 0 if there is none, and the PID with which it joined.
static MEMBER: AtomicU64 = AtomicU64::new(0);
static OWNER: AtomicU32 = AtomicU32::new(0);
static CHUNK_BYTES: AtomicUsize = AtomicUsize::new(0);
static GRANTED: AtomicUsize = AtomicUsize::new(0);
static MIN_BYTES: AtomicUsize = AtomicUsize::new(0);
/// True if the engine about to start is a forked child's.
static INHERITS: AtomicBool = AtomicBool::new(false);
static LIMIT_OF_PARENT: AtomicUsize = AtomicUsize::new(0);
static IS_CHANGING: AtomicBool = AtomicBool::new(false);
/// True if the process has stopped using an overwritten ledger, and has not reported that yet.
static HAS_FALLEN_BACK: AtomicBool = AtomicBool::new(false);
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

/// Resident, compressed and on the disk; other processes' memory as they last published it.
pub(crate) fn used_bytes_of_all() -> Option<u64> {
    // A process without a budget thread, such as a forked child, counts no inherited memory.
    if let (Some(engine), Some(member), true) = (instance::engine(), member(), has_thread()) {
        tree_account::publish_sizes(engine, &member);
    }
    let members = LEDGER.get()?.members().into_iter();
    Some(members.fold(0, |sum: u64, member| sum.saturating_add(member.sizes.used_bytes())))
}

pub(super) fn chunk_bytes() -> usize {
    CHUNK_BYTES.load(Relaxed)
}

pub(super) fn limit_of(chunks: usize) -> usize {
    (chunks * chunk_bytes()).max(MIN_BYTES.load(Relaxed))
}

pub(super) fn chunks_for(bytes: usize) -> usize {
    bytes.div_ceil(chunk_bytes())
}

pub(super) fn now_ms() -> u64 {
    now_ns() / 1_000_000
}

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

pub(super) fn open(number: i32) -> Option<Ledger> {
    // SAFETY: borrowed for this call only; the call rejects a wrong number.
    let fd = unsafe { BorrowedFd::borrow_raw(number) };
    let ledger = Ledger::open(shared::open(fd, SHAPE.words()).ok()?, SHAPE)?;
    let chunk_bytes = usize::try_from(ledger.chunk_bytes()).ok()?;
    let is_plausible = chunk_bytes.is_power_of_two() && chunk_bytes <= MIN_MEMORY_BYTES as usize;
    is_plausible.then(|| {
        // The program after exec and started processes use the descriptor, too.
        own_descriptors::keep(number);
        if let Some((device, inode)) = identity_of(number) {
            LEDGER_FILE[0].store(device, Relaxed);
            LEDGER_FILE[1].store(inode, Relaxed);
            LEDGER_NUMBER.store(number, Release);
        }
        CHUNK_BYTES.store(chunk_bytes, Relaxed);
        *LEDGER.get_or_init(|| ledger)
    })
}

/// The program may have closed the descriptor and opened another file under its number.
pub(crate) fn ledger_descriptor() -> Option<i32> {
    let number = LEDGER_NUMBER.load(Acquire);
    let file = LEDGER_FILE.each_ref().map(|word| word.load(Relaxed));
    (identity_of(number) == Some(file.into())).then_some(number)
}

/// Returns the first limit in bytes; `None` without a ledger. If joining fails, reports that and
/// returns a fixed share.
pub(crate) fn join(config: &Config) -> Option<u64> {
    let number = config.ledger_fd?;
    let member = open(number).and_then(|ledger| ledger.join(ProcessIdentity::current()?));
    let Some(member) = member else {
        let share = (config.memory_bytes / FIXED_PART).max(MIN_MEMORY_BYTES);
        report_fixed_share(share as usize, "cannot be used", NOT_JOINED);
        return Some(share);
    };
    let least = minimum_for(config).max(MIN_BYTES.load(Relaxed));
    MIN_BYTES.store(least, Relaxed);
    // Exec does not change the chunks of the process.
    let had = member.total();
    let ledger = member.ledger();
    let part = (ledger.limit() * chunk_bytes() / FIRST_PART).min(FIRST_BYTES);
    let first = chunks_for(part.max(least));
    let wanted = if ledger.free_chunks() > ledger.limit() / 2 { first } else { SMALL_CHUNKS };
    let granted = had + member.take(wanted.saturating_sub(had));
    // In a parked tree the budget thread evicts as soon as it runs. Until then `softswap run` must
    // not stop the process. Under the program's own filter there is no such thread.
    let will_evict = ledger.is_parked(now_ms()) && !exemption::is_in_force();
    set_member(&member, granted, if will_evict { Eviction::Running } else { Eviction::None });
    Some(limit_of(granted) as u64)
}

/// Returns the minimum limit of an engine, which has tables and rings for each area.
fn minimum_for(config: &Config) -> usize {
    let areas_bytes = config.areas.len().saturating_sub(1) * AREA_BYTES;
    (MIN_MEMORY_BYTES as usize + areas_bytes).min(config.memory_bytes as usize)
}

pub(super) fn set_member(member: &Member, granted: usize, eviction: Eviction) {
    GRANTED.store(granted, Relaxed);
    NONE_SINCE.store(0, Relaxed);
    HAS_THREAD.store(false, Relaxed);
    OWNER.store(raw::current_process(), Relaxed);
    MEMBER.store(member.tag(), Release);
    // The benefit is unknown until the budget thread runs.
    member.publish(UNAVAILABLE, 0);
    // Discard the figures of the program before exec.
    member.publish_claim(now_ms(), Claim::default());
    member.publish_counts(&Counts::default());
    member.publish_sizes(&Sizes::default());
    member.publish_eviction(eviction);
    // The program's filter may forbid the call. An engine's thread has a different name.
    if !exemption::is_in_force() && !own_threads::is_this() {
        member.publish_name(threads::own_name());
    }
}

/// Tells `softswap run` not to wait until this process has evicted its memory: it cannot.
pub(crate) fn end_eviction() {
    if let Some(member) = member() {
        member.publish_eviction(Eviction::None);
    }
}

pub(super) fn join_asleep() -> Option<Member> {
    let member = LEDGER.get()?.join(ProcessIdentity::current()?)?;
    set_member(&member, member.held(), Eviction::None);
    Some(member)
}

pub(super) fn forget_member() {
    process_identity::forget();
    INHERITS.store(false, Relaxed);
    MIN_BYTES.store(0, Relaxed);
    MEMBER.store(0, Release);
    GRANTED.store(0, Relaxed);
    HAS_THREAD.store(false, Relaxed);
    IS_CHANGING.store(false, Relaxed);
}

pub(super) fn granted() -> usize {
    GRANTED.load(Relaxed)
}

pub(super) fn grant(chunks: usize) {
    GRANTED.store(chunks, Relaxed);
}

/// The benefit is unknown: 0 if a thread can answer requests.
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

/// Sets the minimum limit of a forked child whose engine is about to start: its inherited memory.
pub(super) fn begin_with(bytes: usize) {
    MIN_BYTES.store(bytes, Relaxed);
    INHERITS.store(true, Relaxed);
}

/// Called once the engine of a child of [`begin_with`] has charged the inherited memory. Then the
/// limit is that of a child of an awake process.
pub(crate) fn inherit_minimum(engine: &Engine) {
    if INHERITS.swap(false, Relaxed) {
        engine.charge_to_parent();
        let granted = GRANTED.load(Relaxed);
        set_minimum(engine, limit_of(granted));
        engine.begin_share(limit_of(granted));
    }
}

fn set_minimum(engine: &Engine, limit_of_parent: usize) {
    LIMIT_OF_PARENT.store(limit_of_parent, Relaxed);
    MIN_BYTES.store(engine.used_bytes() + CHILD_BYTES, Relaxed);
    raise_minimum(engine);
}

/// A child without a writable area can evict nothing, so a limit below the parent's would stop it.
fn raise_minimum(engine: &Engine) {
    if !engine.may_write() {
        MIN_BYTES.fetch_max(LIMIT_OF_PARENT.load(Relaxed), Relaxed);
    }
}

/// Takes free chunks for the engine's own memory. The inherited memory is charged to the parent
/// until the child needs more than a little.
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
    // Without an identity the child keeps its parent's limit.
    let Some(me) = me else { return };
    let Some(member) = LEDGER.get().and_then(|ledger| ledger.join(me)) else { return };
    set_minimum(engine, limit_of(GRANTED.load(Relaxed)));
    let granted = member.take(chunks_for(MIN_BYTES.load(Relaxed)));
    set_member(&member, granted, Eviction::None);
    engine.begin_share(limit_of(granted));
}

/// Takes free chunks and raises the limit. Called in faults, so it waits for nothing.
pub(crate) fn grow(raise: &dyn Fn(usize)) -> bool {
    let (Some(member), Some(_lock)) = (member(), GrantLock::try_lock()) else { return false };
    let Some(engine) = instance::kept() else { return false };
    if member.must_wait(now_ms()) {
        return false;
    }
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
        // A process that can evict nothing would be stopped.
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
    member.end_claim(now_ms());
    if GRANTED.load(Relaxed) <= MAX_LEFT_CHUNKS && MEMBER.swap(0, AcqRel) != 0 {
        member.release_entry();
    }
}

/// Leaves an overwritten ledger. The share of this process never changes again.
pub(super) fn fall_back(member: &Member) {
    // Another thread may have left the ledger already.
    if MEMBER.compare_exchange(member.tag(), 0, AcqRel, Relaxed).is_ok() {
        HAS_FALLEN_BACK.store(true, Release);
    }
}

/// The budget thread cannot report: it has its own descriptor table, without standard error.
pub(super) fn report() {
    if HAS_FALLEN_BACK.load(Relaxed) && HAS_FALLEN_BACK.swap(false, AcqRel) {
        report_fixed_share(limit_of(GRANTED.load(Relaxed)), "has been overwritten", "");
    }
}

const NOT_JOINED: &str = " in addition to it: 1,024 processes have joined, or a parent process has \
     closed softswap's descriptors; start fewer processes, or keep these descriptors open";

fn report_fixed_share(bytes: usize, why: &str, more: &str) {
    raw::write_stderr(
        format!(
            "softswap: the memory through which processes share a budget {why}: process {} \
             continues with a fixed budget of {} MiB{more}\n",
            raw::current_process(),
            bytes >> 20
        )
        .as_bytes(),
    );
}
