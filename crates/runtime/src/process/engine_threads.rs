//! The engine's own threads: background reclaim, read-ahead, the control
//! socket. The program knows nothing of them, so a call that changes what a
//! thread may do, or that only a process of one thread may make, finds none:
//! they end before it ([`without`]) and start again after it, and so have
//! what the caller has then: credentials, namespaces, descriptors.
//!
//! Meanwhile, and for good where they cannot start again, the engine does
//! without, as in a forked child: what needs room makes it itself. A program
//! that makes such calls all the time goes without them, too, rather than wait
//! for them each time.
//!
//! Only the process that started them ends them: a child that shares memory
//! (`vfork`) or has a copy of it (`fork`) has none.
//!
//! A process that sleeps has none, but where its tree shares a budget and it holds much of that:
//! then one waits until others ask for it ([`attend_asleep`]).

use super::own_threads::{self, COUNT};
use super::program_threads::Start;
use super::{control_thread, forked_children, program_threads, thread_end, tree, tree_asleep};
use crate::base::cancellation::uncancelled;
use crate::base::instance;
use crate::memory::other_malloc;
use crate::signals::sets::INTERNAL;
use softswap_sys::locked::Locked;
use softswap_sys::threads as kernel;
use softswap_sys::{futex, signals};
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Which of them the shared budget's is: none where it is not shared.
const TREE: usize = COUNT - 2;
/// Which of them the control socket's is.
const CONTROL: usize = COUNT - 1;
/// So often they start again.
const MOST_RESTARTS: u32 = 256;
/// Between two attempts to wake one of them.
const WAKE_NS: u64 = 1_000_000;

/// Whether they are to go on.
static GO_ON: AtomicBool = AtomicBool::new(true);
/// 1 while one of them runs.
static RUNNING: [AtomicU32; COUNT] = [const { AtomicU32::new(0) }; COUNT];

struct State {
    threads: [Option<libc::pthread_t>; COUNT],
    /// Calls under way that want none of them.
    calls: usize,
    restarts: u32,
    /// Whether they stay ended.
    for_good: bool,
}

impl State {
    const FIRST: State = State { threads: [None; COUNT], calls: 0, restarts: 0, for_good: false };
}

/// No handler of the program's or ours asks for it.
static STATE: Locked<State> = Locked::new(State::FIRST);

/// In a forked child, which has none of them: another thread of the parent may have been about
/// to start one.
pub(super) fn become_child() {
    own_threads::forget_all();
    // SAFETY: a forked child has one thread, which was in the C library's `fork`.
    unsafe { STATE.renew(State::FIRST) };
}

/// What each of them does.
fn work_of(index: usize) -> Start {
    match index {
        0 => reclaim,
        TREE => attend,
        CONTROL => control,
        _ => read_ahead,
    }
}

fn go_on() -> bool {
    GO_ON.load(Ordering::Relaxed)
}

extern "C" fn reclaim(_index: *mut c_void) -> *mut c_void {
    let _ = rustix::thread::set_name(c"softswap");
    if let Some(engine) = instance::engine() {
        engine.run_reclaim(|| {
            forked_children::reap(engine);
            thread_end::release_gone(engine);
            tree::report();
            go_on()
        });
    }
    std::ptr::null_mut()
}

extern "C" fn read_ahead(index: *mut c_void) -> *mut c_void {
    let _ = rustix::thread::set_name(c"softswap-ahead");
    if let Some(engine) = instance::engine() {
        engine.run_prefetch(index.addr() - 1, go_on);
    }
    std::ptr::null_mut()
}

extern "C" fn attend(_index: *mut c_void) -> *mut c_void {
    let _ = rustix::thread::set_name(c"softswap-tree");
    tree_asleep::await_request(go_on);
    tree::run_budget(go_on);
    std::ptr::null_mut()
}

extern "C" fn control(_index: *mut c_void) -> *mut c_void {
    let _ = rustix::thread::set_name(c"softswap-ctl");
    control_thread::serve(go_on);
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

/// Starts all of them that are not there, or none where the kernel refuses one: a process may
/// have a new process name space before it, where its children go but no thread of its own.
/// Whether they are there. Nothing is put into words here: for that the C library allocates, and
/// it may be under [`undisturbed`], where no page can be brought in.
fn start_all(state: &mut State) -> bool {
    GO_ON.store(true, Ordering::Relaxed);
    let has_engine = instance::engine().is_some();
    for at in 0..COUNT {
        let is_wanted = if at == TREE { tree::is_shared() } else { has_engine };
        // `stat` and `ctl` are no condition.
        if is_wanted && state.threads[at].is_none() && !start_one(state, at) && at < TREE {
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
    state.threads[at] = started.ok();
    state.threads[at].is_some()
}

/// Asks all of them to end, and waits until the kernel knows none of them.
fn end_all(state: &mut State) {
    GO_ON.store(false, Ordering::Relaxed);
    if let Some(engine) = instance::engine() {
        engine.wake_background();
    }
    let own = softswap_sys::raw::current_thread();
    for (at, thread) in state.threads.iter_mut().enumerate() {
        // One that could not start others ends by itself, and is joined by whoever comes next.
        let Some(thread) = thread.take_if(|_| own_threads::number(at) != own) else { continue };
        while RUNNING[at].load(Ordering::Acquire) == 1 {
            if at >= TREE {
                // They sleep until a client comes, or somebody asks, or a signal.
                kernel::interrupt(own_threads::number(at));
            }
            futex::wait(&RUNNING[at], 1, Some(WAKE_NS));
        }
        // SAFETY: a thread that was started joinable, and is joined once.
        unsafe { libc::pthread_join(thread, std::ptr::null_mut()) };
        // A thread is joined a moment before it is gone.
        kernel::wait_until_gone(own_threads::number(at));
    }
}

/// Starts them, or goes on without for good.
pub(crate) fn start() {
    if own_threads::is_this() {
        return start_beside();
    }
    undisturbed(start_with);
}

fn start_with(state: &mut State) {
    own_threads::own();
    state.for_good = !start_all(state);
    // One that has waited while this process slept has more to do.
    tree::wake_thread();
}

/// The same, in one of them. Who ends them has the lock, and waits for this one; it starts all
/// of them again.
fn start_beside() {
    while go_on() && STATE.try_with_mask_as_is(start_with).is_none() {
        futex::sleep_a_moment();
    }
}

/// Starts the one that waits in a process that sleeps until its part of the budget is asked for.
/// Not in a forked child, which has none of them. Whether it is there.
pub(crate) fn attend_asleep() -> bool {
    let is_forked = || own_threads::owner() != 0 && !has_them();
    undisturbed(|state| {
        if is_forked() || state.calls > 0 || state.for_good {
            return false;
        }
        own_threads::own();
        GO_ON.store(true, Ordering::Relaxed);
        state.threads[TREE].is_some() || start_one(state, TREE)
    })
}

/// Whether this process is the one that has them.
fn has_them() -> bool {
    own_threads::owner() == softswap_sys::raw::current_process()
}

/// Runs `body` with signals blocked, where this thread is not cancelled. By the C library's own
/// signals a `setuid` reaches all threads, and has a lock meanwhile that starting and ending
/// one need.
fn undisturbed<R>(body: impl FnOnce(&mut State) -> R) -> R {
    uncancelled(|| signals::with_blocked(!INTERNAL, || STATE.with_mask_as_is(body)))
}

/// Runs `call` while there are none of them.
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
        // In a child that a handler has forked meanwhile.
        return result;
    }
    undisturbed(|state| {
        state.calls -= 1;
        state.restarts += 1;
        if state.calls == 0 && !state.for_good && state.restarts < MOST_RESTARTS {
            start_all(state);
        }
    });
    result
}

/// They do not start again: the program's own filter may forbid what they do.
pub(crate) fn stay_ended() {
    if has_them() {
        STATE.with(|state| state.for_good = true);
    }
}
