//! Starts the engine of a sleeping process.
//!
//! A process *sleeps* while its committed memory fits the budget. It then has no engine, no
//! handlers, no filter and no engine threads, and the kernel handles its memory calls ([`asleep`]).
//! It *wakes* (starts the engine) when a commit would exceed the budget, or before the program
//! makes a call that would prevent waking later: installing a filter, dropping rights.
//!
//! Signal emulation starts before the process has a second thread ([`prepare`]), because only a
//! thread itself can set its signal stack and mask.
//!
//! Waking runs while other threads run ([`wake`]):
//!
//! 1. Memory calls and forks wait ([`sleep_gate`]).
//! 2. The filter is installed. Calls with pointers into the window wait in its handler. Buffers of
//!    calls already in the kernel stay resident ([`calls_in_progress`]).
//! 3. The window is registered. A thread that touches an absent page waits in the SIGBUS handler.
//! 4. All present pages are found and charged.
//! 5. The engine is published and the waiting threads continue.

use crate::base::cancellation::uncancelled;
use crate::base::{instance, signal_stack};
use crate::bring_up;
use crate::guard::sigsys;
use crate::memory::libc_memory::outside_the_window;
use crate::memory::mappings::program_break;
use crate::memory::{asleep, sleep_gate};
use crate::process::{
    calls_in_progress, engine_threads, own_threads, shared_areas, statistics, tree, tree_asleep,
};
use crate::signals::{alternate_stack, lifecycle, page_fault};
use softswap_engine::api::engine::waking::Before;
use softswap_engine::api::settings::{AreaSpec, Config, Inherited, SPARE_BYTES, SPARE_PART};
use softswap_engine::base::stats::Counter;
use softswap_sys::descriptor::with_raised_limit;
use softswap_sys::file::may_make_files;
use softswap_sys::linked::{is_go_program, is_single_threaded};
use softswap_sys::window::{max_len_at, place_gate};
use softswap_sys::{exemption, raw, signals, threads};
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

static CONFIG: OnceLock<Config> = OnceLock::new();

/// Estimates the bytes that an engine needs. A sleeping process keeps them free in the budget.
fn left_for_engine(memory_bytes: usize) -> usize {
    SPARE_BYTES as usize + memory_bytes / SPARE_PART as usize
}

pub(crate) fn fall_asleep(config: &Config) -> bool {
    let memory_bytes = usize::try_from(config.memory_bytes).unwrap_or(usize::MAX);
    let mut limit_bytes = memory_bytes.saturating_sub(left_for_engine(memory_bytes));
    let Some(bases) = config.bases else { return false };
    // A swap file or device for this process alone must be opened at the start, so a process with
    // one does not sleep. If an area cannot be used, starting the engine reports the error.
    let has_files = |area: &AreaSpec| area.path.is_dir() && may_make_files(&area.path).is_ok();
    let is_usable = |area: &AreaSpec| match area.inherited {
        Some(mirror @ Inherited::Mirror(_)) => {
            // The mirror is optional.
            shared_areas::keep_descriptor(config, mirror);
            has_files(area)
        }
        Some(inherited) => shared_areas::keep_descriptor(config, inherited),
        None => has_files(area),
    };
    let are_usable = || config.areas.iter().all(is_usable);
    if config.awake
        || !config.record.is_empty()
        || limit_bytes == 0
        || exemption::is_in_force()
        || !is_single_threaded()
        // Go programs issue system-call instructions, which only the filter sees.
        || is_go_program()
        || !are_usable()
        || config.faults.check().is_err()
    {
        return false;
    }
    // A program inherits the filter of an awake process that starts it. The filter must not trap
    // memory calls of a sleeping process, so use the first window that no inherited filter traps.
    let is_free = |range: &Range<usize>| !sigsys::is_trapped(range.start);
    let Some(range) = bases.windows().find(is_free) else { return false };
    let Some(len) = max_len_at(&range) else { return false };
    if config.ledger_fd.is_some() {
        let left_bytes = left_for_engine(memory_bytes);
        let serve_requests = engine_threads::serve_while_asleep;
        let first_bytes = tree_asleep::begin(config, left_bytes, serve_requests);
        let Some(first_bytes) = first_bytes else { return false };
        limit_bytes = first_bytes;
    }
    asleep::set_up(limit_bytes);
    statistics::mark_asleep(config);
    CONFIG.get_or_init(|| config.clone());
    instance::fall_asleep(range.start, len, wake, prepare);
    true
}

/// Starts signal emulation in the only thread. Does nothing in the child of a `vfork`, or in a
/// handler on an alternate stack, which the kernel does not replace while it is in use.
fn prepare() {
    let stack = alternate_stack::in_force();
    if !asleep::is_owner() || stack.ss_flags & libc::SS_ONSTACK != 0 {
        return;
    }
    let prepared = raw::preserving_errno(|| {
        outside_the_window(|| signals::with_all_blocked(bring_up::take_signals))
    });
    match prepared {
        Ok(()) => {
            alternate_stack::remember(stack);
            instance::emulate_signals();
            lifecycle::adopt();
            tree_asleep::prepare_for_threads();
        }
        Err(why) => run_unmanaged(&why),
    }
}

/// The program may exceed its budget, but is not killed.
fn run_unmanaged(why: &str) {
    instance::set_managed(false);
    tree::end_eviction();
    raw::write_stderr(
        format!(
            "softswap: process {} cannot be managed: {why}; it continues without a budget; to \
             start the engine with the program, set SOFTSWAP_AWAKE=1\n",
            raw::current_process()
        )
        .as_bytes(),
    );
}

/// Wakes this process, or waits for another thread that does. Does nothing if [`prepare`] does
/// nothing, or inside an operation that waking would wait for; the next commit retries.
fn wake() {
    // A cancelled thread would leave the others waiting.
    uncancelled(try_to_wake);
}

fn try_to_wake() {
    let (Some(config), Some((base, len))) = (CONFIG.get(), instance::window()) else { return };
    if !asleep::is_owner() || sleep_gate::is_inside() || !may_try_now() {
        return;
    }
    if !instance::emulates_signals() {
        if !has_no_other_thread() {
            // Another thread was created when signal emulation could not start.
            run_unmanaged("it has threads that existed before libsoftswap.so was initialized");
            return;
        }
        prepare();
        if !instance::emulates_signals() {
            return;
        }
    }
    let local = 0_u8;
    if !signal_stack::contains(&raw const local as usize) && !own_threads::is_this() {
        // This stack may be small, or part of the window. Continue in a signal handler.
        threads::request_to_wake();
        return;
    }
    // Block signals: a handler of the program could run here and wait for this waking forever.
    let is_first = raw::preserving_errno(|| {
        signals::with_all_blocked(|| {
            let is_first = instance::begin_waking();
            if is_first {
                finish_attempt(outside_the_window(|| {
                    with_raised_limit(|| start_engine(config, base, len))
                }));
            }
            is_first
        })
    });
    if !is_first {
        instance::await_waking();
    } else {
        start_managing();
    }
}

fn has_no_other_thread() -> bool {
    outside_the_window(threads::all).is_ok_and(|all| all.len() == 1)
}

/// Attempts that found a thread that blocks the engine's signals or does not leave the kernel.
static POSTPONED: AtomicU32 = AtomicU32::new(0);
const TRIES_BEFORE_MESSAGE: u32 = 3;
const NOT_YET: &str = "cannot be managed yet: a thread blocks SIGBUS or SIGSYS, or is in a long \
     system call; until that changes, the process may exceed its budget; to start the engine with \
     the program, set SOFTSWAP_AWAKE=1";

/// Time of [`raw::now_ns`] before which no attempt is made; 0: none.
static RETRY_AT_NS: AtomicU64 = AtomicU64::new(0);

fn may_try_now() -> bool {
    let retry_at_ns = RETRY_AT_NS.load(Ordering::Relaxed);
    retry_at_ns == 0 || raw::now_ns() >= retry_at_ns
}

enum Attempt {
    IsUp,
    /// A thread cannot be waited for; retry later.
    Later,
}

fn finish_attempt(attempt: Result<Attempt, String>) {
    const PAUSE_NS: u64 = 1_000_000_000;
    match attempt {
        Ok(Attempt::IsUp) => instance::set_managed(true),
        Ok(Attempt::Later) => {
            if POSTPONED.fetch_add(1, Ordering::Relaxed) + 1 == TRIES_BEFORE_MESSAGE {
                let process = raw::current_process();
                raw::write_stderr_fmt(format_args!("softswap: process {process} {NOT_YET}\n"));
            }
            RETRY_AT_NS.store(raw::now_ns() + PAUSE_NS, Ordering::Relaxed);
            instance::sleep_on();
        }
        Err(why) => run_unmanaged(&why),
    }
}

/// A failed attempt leaves the filter installed.
static HAS_FILTER: AtomicBool = AtomicBool::new(false);

/// Runs with all signals blocked, while other threads run.
fn start_engine(config: &Config, base: usize, len: usize) -> Result<Attempt, String> {
    if !sleep_gate::drain() || !calls_in_progress::all_have_entered() {
        return Ok(Attempt::Later);
    }
    if !HAS_FILTER.load(Ordering::Relaxed) {
        place_gate();
        bring_up::install_filter(base, len)?;
        HAS_FILTER.store(true, Ordering::Relaxed);
    }
    // Buffers of calls in progress become pinned pages; limit them to half of the budget.
    let most_bytes = usize::try_from(config.memory_bytes / 2).unwrap_or(usize::MAX);
    let handler = |error| format!("cannot handle SIGBUS: {error}");
    page_fault::set_call_restart(true).map_err(handler)?;
    let buffers = calls_in_progress::find(most_bytes);
    page_fault::set_call_restart(false).map_err(handler)?;
    let Ok(buffers) = buffers else { return Ok(Attempt::Later) };
    let reserved = program_break::reserved();
    let before = Before { base, len, reserved, is_odd: asleep::is_odd() };
    bring_up::bring_up(config, Some(&before))?;
    if let Some(engine) = instance::kept() {
        calls_in_progress::pin_buffers(engine, &buffers);
    }
    Ok(Attempt::IsUp)
}

fn start_managing() {
    let Some(engine) = instance::engine() else { return };
    outside_the_window(bring_up::start_threads);
    signals::with_all_blocked(|| engine.fit());
    // The engine publishes its own memory figures from now on.
    engine.stats().set(Counter::Asleep, 0);
}
