//! Share of a sleeping process in its tree's budget.
//!
//! A sleeping process holds chunks for the memory that it commits, touched or not. The first
//! megabyte needs none, so most processes never join the ledger.
//!
//! A small process also takes chunks by requests to other members, and receives no requests itself.
//! A large one takes only free chunks, and wakes if there are too few. Its budget thread wakes it
//! on a request; a process that is alone with a fixed budget has no such thread. A large forked
//! child has none, either: it takes chunks only while an eighth of the budget is free.

use super::statistics;
use super::tree::{self, CHILD_BYTES, GrantLock};
use crate::base::cancellation::uncancelled;
use crate::base::instance;
use crate::memory::asleep::{self, Share};
use crate::memory::libc_memory::outside_the_window;
use softswap_engine::api::settings::Config;
use softswap_shared::ledger::{Eviction, Ledger, Member};
use softswap_sys::process_identity::ProcessIdentity;
use softswap_sys::{raw, signals};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Committed memory that needs no chunks.
const UNCOUNTED_BYTES: usize = 1 << 20;
/// Divisor: small processes take up to this part of the budget, or up to [`SMALL_BYTES`] if that is
/// more, because their engine would take as much.
const SMALL_DIVISOR: usize = 16;
const SMALL_BYTES: usize = 8 << 20;
/// Committed memory from which also a small process has a thread, so that it can be parked.
const PARKABLE_BYTES: usize = 64 << 20;
/// Divisor: large processes without a budget thread leave an eighth of the budget free.
const RESERVED_DIVISOR: usize = 8;
/// Divisor: a process takes chunks for an eighth more than it needs, at most [`HEADROOM_BYTES`].
const HEADROOM_DIVISOR: usize = 8;
const HEADROOM_BYTES: usize = 32 << 20;
/// Time that a small process waits for chunks of other members, in nanoseconds.
const REQUEST_TIMEOUT_NS: u64 = 200_000_000;
/// Minimum time between two checks for a shortage in a large process, in nanoseconds.
const SHORT_INTERVAL_NS: u64 = 10_000_000;

const INTERVAL_NS: u64 = 10_000_000_000;
/// Longest wait of the thread after it could not wake the process, in nanoseconds.
const RETRY_NS: u64 = 100_000_000;

static LAST_CHECK_NS: AtomicU64 = AtomicU64::new(0);
static LEFT_BYTES: AtomicUsize = AtomicUsize::new(0);
static SERVE_REQUESTS: OnceLock<fn() -> bool> = OnceLock::new();
static NEEDS_THREAD: AtomicBool = AtomicBool::new(false);
static HAS_NO_THREAD: AtomicBool = AtomicBool::new(false);
/// True if this is the only process of its tree, and the budget is fixed.
static IS_ONLY_PROCESS: AtomicBool = AtomicBool::new(false);

/// Returns how many bytes this process may commit at first, or `None` without a usable ledger.
/// After an exec, releases the previous program's chunks. `serve_requests`: false on failure.
pub(crate) fn begin(
    config: &Config,
    left_for_engine: usize,
    serve_requests: fn() -> bool,
) -> Option<usize> {
    SERVE_REQUESTS.get_or_init(|| serve_requests);
    LEFT_BYTES.store(left_for_engine, Relaxed);
    let may_be_alone = statistics::is_supervised(config) && !config.is_moving;
    IS_ONLY_PROCESS.store(may_be_alone && !raw::has_children(), Relaxed);
    let ledger = tree::open(config.ledger_fd?)?;
    if ledger.has_member(raw::current_process()) {
        let member = ledger.join(ProcessIdentity::current()?)?;
        member.release(member.total());
        // Requests to the previous program are void, too.
        member.release_target().into_iter().for_each(|target| member.end_release(target));
        member.demand(0);
        tree::set_member(&member, 0, Eviction::None);
    }
    let needs_thread = || NEEDS_THREAD.load(Relaxed);
    asleep::set_share(Share { grow, shrink, needs_thread, start_thread, is_short, spare_bytes });
    Some(UNCOUNTED_BYTES)
}

fn is_small(ledger: &Ledger, bytes: usize) -> bool {
    bytes <= (ledger.limit() * tree::chunk_bytes() / SMALL_DIVISOR).max(SMALL_BYTES)
}

/// The process can then join the ledger later without opening a file.
pub(crate) fn prepare_for_threads() {
    if asleep::is_shared() {
        let _ = ProcessIdentity::current();
    }
}

fn spare_chunks(ledger: &Ledger) -> usize {
    let left = match tree::has_thread() || IS_ONLY_PROCESS.load(Relaxed) {
        true => tree::chunks_for(LEFT_BYTES.load(Relaxed)),
        false => ledger.limit() / RESERVED_DIVISOR,
    };
    ledger.free_chunks().saturating_sub(left)
}

fn spare_bytes() -> usize {
    tree::member().map_or(0, |member| spare_chunks(member.ledger()) * tree::chunk_bytes())
}

/// For bodies that take the [`GrantLock`]. Does nothing in the child of a `vfork` or of a raw
/// `clone`: the membership is its parent's.
fn uninterrupted(body: impl FnOnce()) {
    if asleep::is_owner() {
        raw::preserving_errno(|| uncancelled(|| signals::with_all_blocked(body)));
    }
}

fn grow(bytes: usize) {
    uninterrupted(|| take(bytes, REQUEST_TIMEOUT_NS));
}

fn take(bytes: usize, timeout_ns: u64) {
    let _lock = GrantLock::lock();
    let Some(member) = tree::member().or_else(tree::join_asleep) else { return };
    let headroom = (bytes / HEADROOM_DIVISOR).min(HEADROOM_BYTES);
    let granted = tree::granted();
    let [missing, wanted] = [bytes, bytes.saturating_add(headroom)]
        .map(|bytes| tree::chunks_for(bytes).saturating_sub(granted));
    let got = if is_small(member.ledger(), bytes) {
        let got = member.take(wanted);
        got + member.obtain(missing.saturating_sub(got), timeout_ns)
    } else {
        // Take at least `missing` chunks, or none. With none the commit fails, so the process
        // starts its engine.
        let spare = spare_chunks(member.ledger());
        if missing > spare { 0 } else { member.take(wanted.min(spare)) }
    };
    set_granted(&member, granted + got, bytes);
}

fn shrink() {
    uninterrupted(|| {
        let _lock = GrantLock::lock();
        let Some(member) = tree::member() else { return };
        let bytes = asleep::committed_bytes();
        let headroom = (bytes / HEADROOM_DIVISOR).min(HEADROOM_BYTES);
        let granted = tree::granted();
        let released = member.release(granted.saturating_sub(tree::chunks_for(bytes + headroom)));
        set_granted(&member, granted - released, bytes);
    });
}

fn set_granted(member: &Member, granted: usize, used_bytes: usize) {
    tree::grant(granted);
    let limit_bytes = (granted * tree::chunk_bytes()).max(UNCOUNTED_BYTES);
    // A commit beyond the limit fails, so do not publish it.
    let used_bytes = used_bytes.min(limit_bytes);
    tree::publish_asleep(member, used_bytes);
    NEEDS_THREAD.store(needs_thread(member, used_bytes), Relaxed);
    asleep::set_limit(limit_bytes);
}

fn needs_thread(member: &Member, used_bytes: usize) -> bool {
    let may_be_wanted = !tree::has_thread() && !HAS_NO_THREAD.load(Relaxed);
    let is_small = used_bytes < PARKABLE_BYTES && is_small(member.ledger(), used_bytes);
    may_be_wanted && !IS_ONLY_PROCESS.load(Relaxed) && !is_small
}

/// Notes that this process is no longer alone. Called before and after it starts a child.
pub(crate) fn note_child_created() {
    if !IS_ONLY_PROCESS.load(Relaxed) || !asleep::is_owner() {
        return;
    }
    IS_ONLY_PROCESS.store(false, Relaxed);
    if instance::is_asleep()
        && let Some(member) = tree::member()
        && needs_thread(&member, asleep::committed_bytes())
    {
        start_thread();
    }
}

/// If the process cannot have threads yet, the next commit retries.
fn start_thread() {
    // The child of a `vfork` shares this memory.
    if !asleep::is_owner() {
        return;
    }
    NEEDS_THREAD.store(false, Relaxed);
    let serve_requests = || SERVE_REQUESTS.get().is_some_and(|serve_requests| serve_requests());
    raw::preserving_errno(|| {
        instance::prepare_for_threads();
        if instance::emulates_signals() && !uncancelled(|| outside_the_window(serve_requests)) {
            HAS_NO_THREAD.store(true, Relaxed);
        }
    });
}

pub(super) fn await_request(keep_running: fn() -> bool) {
    while keep_running()
        && let Some(member) = tree::member()
    {
        // Read this before `may_wake`: a thread that wakes the process notifies afterwards.
        let seen = member.notifications();
        if !instance::may_wake() {
            break;
        }
        tree::set_has_thread(true);
        tree::publish_asleep(&member, asleep::committed_bytes());
        let mut pause_ns = INTERVAL_NS;
        let is_parked = member.ledger().is_parked(tree::now_ms());
        if is_parked {
            member.publish_eviction(Eviction::Running);
        }
        if is_parked || member.excess() > 0 || member.release_target().is_some() {
            if instance::awake().is_some() {
                return;
            }
            pause_ns = RETRY_NS;
        }
        member.await_notification(seen, pause_ns);
    }
    tree::set_has_thread(false);
    if let Some(member) = tree::member().filter(|_| instance::engine().is_none()) {
        // The published benefit is now that of a process without a thread.
        tree::publish_asleep(&member, asleep::committed_bytes());
    }
}

/// A large process without a budget thread must wake if other members need the reserved part of the
/// budget, or if the limit was lowered.
fn is_short(bytes: usize) -> bool {
    if tree::has_thread() || !asleep::is_owner() {
        return false;
    }
    let Some(member) = tree::member() else { return false };
    let now_ns = raw::now_ns();
    let last_check_ns = LAST_CHECK_NS.load(Relaxed);
    if is_small(member.ledger(), bytes) || now_ns < last_check_ns + SHORT_INTERVAL_NS {
        return false;
    }
    LAST_CHECK_NS.store(now_ns, Relaxed);
    member.excess() > 0 || !IS_ONLY_PROCESS.load(Relaxed) && spare_chunks(member.ledger()) == 0
}

/// Takes chunks for all inherited memory, because a forked child may write to it. A child with at
/// most [`CHILD_BYTES`] joins at its next commit: it may be about to exec. Returns false if there
/// are too few chunks: then the child must wake.
pub(super) fn become_child() -> bool {
    if !asleep::is_shared() {
        return true;
    }
    tree::forget_member();
    if instance::emulates_signals() {
        // The parent was prepared for threads.
        prepare_for_threads();
    }
    NEEDS_THREAD.store(false, Relaxed);
    HAS_NO_THREAD.store(false, Relaxed);
    IS_ONLY_PROCESS.store(false, Relaxed);
    let inherited = asleep::committed_bytes();
    if inherited <= CHILD_BYTES {
        asleep::set_limit(inherited + UNCOUNTED_BYTES);
        return true;
    }
    asleep::set_limit(0);
    // Do not wait for other members, because the child may be about to exec.
    uninterrupted(|| take(inherited, 0));
    let may_sleep = asleep::limit_bytes() >= inherited;
    if !may_sleep {
        tree::begin_with(inherited + CHILD_BYTES);
    }
    may_sleep
}
