//! The engine's own threads: background reclaim, read-ahead, the control socket, the shared budget.
//! Before a call that changes a thread's rights, or that requires a single-threaded process, they
//! exit ([`without`]). They start again after it, with the caller's credentials, namespaces and
//! descriptors.
//!
//! Without them, as in a forked child, faulting threads reclaim. If they cannot start again, or if
//! the program makes such calls very often, the process runs without them permanently.
//!
//! A child that shares this memory (`vfork`) must not end them.
//!
//! A sleeping process has no engine threads, unless it holds a large part of a shared budget: then
//! one thread waits for requests of other members ([`serve_while_asleep`]).

use super::own_threads::{self, COUNT, RUNNING};
use super::program_threads::Start;
use super::{
    budget_thread, control_thread, forked_children, program_threads, thread_exit, tree, tree_asleep,
};
use crate::base::cancellation::uncancelled;
use crate::base::instance;
use crate::memory::other_malloc;
use crate::signals::sets::INTERNAL;
use softswap_sys::locked::Locked;
use softswap_sys::threads as kernel;
use softswap_sys::{futex, signals};
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

/// Index of the shared budget's thread, which only exists if the budget is shared.
const TREE: usize = COUNT - 2;
const CONTROL: usize = COUNT - 1;
const MAX_RESTARTS: u32 = 256;
const WAKE_NS: u64 = 1_000_000;

static KEEP_RUNNING: AtomicBool = AtomicBool::new(true);

struct State {
    threads: [Option<libc::pthread_t>; COUNT],
    /// Calls in progress that require no engine threads.
    calls: usize,
    restarts: u32,
    for_good: bool,
}

impl State {
    const FIRST: State = State { threads: [None; COUNT], calls: 0, restarts: 0, for_good: false };
}

/// No signal handler takes this lock.
static STATE: Locked<State> = Locked::new(State::FIRST);

/// Another thread of the parent may have held the lock during the fork.
pub(super) fn become_child() {
    own_threads::disown();
    // SAFETY: a forked child has one thread, which was in the C library's `fork`.
    unsafe { STATE.renew(State::FIRST) };
}

fn work_of(index: usize) -> Start {
    match index {
        0 => reclaim,
        TREE => serve_requests,
        CONTROL => control,
        _ => read_ahead,
    }
}

fn should_run() -> bool {
    KEEP_RUNNING.load(Ordering::Relaxed)
}

extern "C" fn reclaim(_index: *mut c_void) -> *mut c_void {
    let _ = rustix::thread::set_name(c"softswap");
    if let Some(engine) = instance::engine() {
        engine.run_reclaim(|| {
            forked_children::reap(engine);
            thread_exit::release_exited(engine);
            tree::report();
            should_run()
        });
    }
    std::ptr::null_mut()
}

extern "C" fn read_ahead(index: *mut c_void) -> *mut c_void {
    let _ = rustix::thread::set_name(c"softswap-ahead");
    if let Some(engine) = instance::engine() {
        engine.run_prefetch(index.addr() - 1, should_run);
    }
    std::ptr::null_mut()
}

extern "C" fn serve_requests(_index: *mut c_void) -> *mut c_void {
    let _ = rustix::thread::set_name(c"softswap-tree");
    tree_asleep::await_request(should_run);
    budget_thread::run_budget(should_run);
    std::ptr::null_mut()
}

extern "C" fn control(_index: *mut c_void) -> *mut c_void {
    let _ = rustix::thread::set_name(c"softswap-ctl");
    control_thread::serve(should_run);
    std::ptr::null_mut()
}

extern "C" fn run(index: *mut c_void) -> *mut c_void {
    let at = index.addr();
    own_threads::begin(at);
    other_malloc::without_program_malloc(|| work_of(at)(index));
    RUNNING[at].store(0, Ordering::Release);
    futex::wake_all(&RUNNING[at]);
    std::ptr::null_mut()
}

/// Starts all missing threads, or none if the kernel refuses one, as after `unshare(CLONE_NEWPID)`.
/// Formats no message: the C library would allocate for that, and no page can be faulted in under
/// [`undisturbed`].
fn start_all(state: &mut State) -> bool {
    KEEP_RUNNING.store(true, Ordering::Relaxed);
    let has_engine = instance::engine().is_some();
    for at in 0..COUNT {
        let is_wanted = if at == TREE { tree::is_shared() } else { has_engine };
        if !is_wanted || state.threads[at].is_some() || start_one(state, at) {
            continue;
        }
        if at <= TREE {
            tree::end_eviction();
        }
        // The threads from `TREE` on are not required.
        if at < TREE {
            end_all(state);
            return false;
        }
    }
    true
}

fn start_one(state: &mut State, at: usize) -> bool {
    own_threads::forget(at);
    RUNNING[at].store(1, Ordering::Relaxed);
    let started = program_threads::start_own(run, std::ptr::without_provenance_mut(at));
    if started.is_err() {
        RUNNING[at].store(0, Ordering::Relaxed);
    }
    state.threads[at] = started.ok();
    state.threads[at].is_some()
}

fn end_all(state: &mut State) {
    KEEP_RUNNING.store(false, Ordering::Relaxed);
    if let Some(engine) = instance::engine() {
        engine.wake_background();
    }
    let own = softswap_sys::raw::current_thread();
    for (at, thread) in state.threads.iter_mut().enumerate() {
        // A thread that could not start the others exits by itself; the next caller joins it.
        let Some(thread) = thread.take_if(|_| own_threads::number(at) != own) else { continue };
        while RUNNING[at].load(Ordering::Acquire) == 1 {
            if at >= TREE {
                // These threads sleep in system calls, which a signal interrupts.
                kernel::interrupt(own_threads::number(at));
            }
            futex::wait(&RUNNING[at], 1, Some(WAKE_NS));
        }
        // SAFETY: the thread was started joinable and is joined once.
        unsafe { libc::pthread_join(thread, std::ptr::null_mut()) };
        // `pthread_join` may return shortly before the kernel removes the thread.
        kernel::wait_until_exited(own_threads::number(at));
    }
}

pub(crate) fn start() {
    if own_threads::is_this() {
        return start_from_engine_thread();
    }
    undisturbed(start_with);
}

fn start_with(state: &mut State) {
    own_threads::own();
    state.for_good = !start_all(state);
    // The thread that has waited while this process slept has new work.
    tree::wake_thread();
}

/// Only tries the lock: its holder may be waiting in `end_all` for this thread to exit.
fn start_from_engine_thread() {
    while should_run() && STATE.try_with_mask_as_is(start_with).is_none() {
        futex::sleep_a_moment();
    }
}

/// Fails in a forked child. Returns true if the thread runs.
pub(crate) fn serve_while_asleep() -> bool {
    let is_forked = || own_threads::owner() != 0 && !has_them();
    undisturbed(|state| {
        if is_forked() || state.calls > 0 || state.for_good {
            return false;
        }
        own_threads::own();
        KEEP_RUNNING.store(true, Ordering::Relaxed);
        state.threads[TREE].is_some() || start_one(state, TREE)
    })
}

fn has_them() -> bool {
    own_threads::owner() == softswap_sys::raw::current_process()
}

/// Blocks signals and cancellation under the lock. The C library's own signals stay unblocked: a
/// `setuid` reaches all threads by them, while it holds a lock that is needed for starting and
/// ending threads.
fn undisturbed<R>(body: impl FnOnce(&mut State) -> R) -> R {
    uncancelled(|| signals::with_blocked(!INTERNAL, || STATE.with_mask_as_is(body)))
}

pub(crate) fn without<R>(call: impl FnOnce() -> R) -> R {
    if !has_them() {
        return call();
    }
    undisturbed(|state| {
        state.calls += 1;
        if state.calls == 1 {
            end_all(state);
        }
    });
    let result = call();
    if !has_them() {
        // This is a child that a signal handler has forked during the call.
        return result;
    }
    undisturbed(|state| {
        state.calls -= 1;
        state.restarts += 1;
        if state.calls == 0 && !state.for_good && state.restarts < MAX_RESTARTS {
            start_all(state);
        }
    });
    result
}

/// Prevents further starts: the program's own filter may forbid the threads' calls.
pub(crate) fn forbid_restart() {
    if has_them() {
        STATE.with(|state| state.for_good = true);
    }
}
