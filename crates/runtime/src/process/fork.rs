//! Makes managed memory available in forked children.
//!
//! On fork the kernel drops the userfaultfd registration of the child's memory, so absent pages
//! would silently read as zeroes. Therefore the engine is quiesced before the fork, and the child
//! registers its memory again before any of the program's code runs. The child reads its parent's
//! swap area, whose slots the parent keeps ([`forked_children`]), and writes changed pages to areas
//! that it opens itself when needed.
//!
//! A fork opens no descriptor in the parent and changes no limit: other threads continue.
//!
//! Children are forked by `fork` and functions that call it, by `_Fork`, or by the calls in
//! [`super::clone`].

use super::forked_children::{ChildMark, ForkedChildren};
use super::{
    aio, engine_threads, file_write_locks, forked_children, named_memory, statistics, thread_exit,
    tree, tree_asleep,
};
use crate::base::errno::fail;
use crate::base::instance;
use crate::base::real::{Real, real};
use crate::base::resident::ResidentRanges;
use crate::memory::asleep;
use crate::memory::libc_memory::outside_the_window;
use crate::memory::mappings::program_break;
use crate::memory::mappings::program_break::Break;
use crate::memory::pins;
use crate::memory::sleep_gate::{self, Inside};
use crate::signals::{lifecycle, pending, program_actions, virtual_mask};
use softswap_engine::api::engine::Engine;
use softswap_engine::api::engine::forking::Quiesced;
use softswap_sys::alloc::HEAP;
use softswap_sys::exemption;
use softswap_sys::raw;
use softswap_sys::signals::{self, Mask, never_blocked, with_engine_stack};
use std::cell::UnsafeCell;
use std::ffi::{c_char, c_void};
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicBool, Ordering};

struct Forking {
    quiesced: Quiesced<'static>,
    children: MutexGuard<'static, ForkedChildren>,
    /// `None` if the child reads none of this process's slots.
    mark: Option<ChildMark>,
    heap_break: MutexGuard<'static, Break>,
    mask: Mask,
    /// Pages that the C library touches in the child before the runtime's handler runs.
    pinned: ResidentRanges<'static>,
}

/// For a process without an engine (asleep, or waking failed) that has had several threads.
struct ForkingAsleep {
    heap_break: MutexGuard<'static, Break>,
    mask: Mask,
    /// Delays waking; `None` if the process never wakes.
    inside: Option<Inside>,
}

enum Held {
    Awake(Forking),
    Asleep(ForkingAsleep),
}

struct HeldCell(UnsafeCell<Option<Held>>);

// SAFETY: accessed only by the forking thread, between `prepare` and `parent` or `child`;
// `Quiesced` excludes a second fork meanwhile, and the child has only that thread.
unsafe impl Sync for HeldCell {}

static FORKING: HeldCell = HeldCell(UnsafeCell::new(None));

type Handler = Option<extern "C" fn()>;

unsafe extern "C" {
    // The C library's list of open streams, and the list's recursive lock.
    fn _IO_iter_begin() -> *mut c_void;
    fn _IO_iter_end() -> *mut c_void;
    fn _IO_iter_next(at: *mut c_void) -> *mut c_void;
    fn _IO_iter_file(at: *mut c_void) -> *mut c_void;
    fn _IO_list_lock();
    fn _IO_list_unlock();
    fn _IO_list_resetlock();
}

static REGISTERED: AtomicBool = AtomicBool::new(false);

/// The runtime registers its handlers first, so its `prepare` runs last and its `child` and
/// `parent` run first: the program's handlers run only while pages can be faulted in.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __register_atfork(
    before: Handler,
    in_parent: Handler,
    in_child: Handler,
    library: *mut c_void,
) -> i32 {
    real!(__register_atfork: fn(Handler, Handler, Handler, *mut c_void) -> i32);
    if !REGISTERED.swap(true, Ordering::AcqRel) {
        // SAFETY: the handlers have the right signatures. A null library is never unloaded.
        let result = outside_the_window(|| unsafe {
            __register_atfork()(Some(prepare), Some(parent), Some(child), std::ptr::null_mut())
        });
        if result != 0 {
            REGISTERED.store(false, Ordering::Release);
            return result;
        }
    }
    if before.is_none() && in_parent.is_none() && in_child.is_none() {
        return 0;
    }
    // Outside the window: the child reads the list of handlers before it can fault in pages.
    // SAFETY: this is the C library's function of this name; the program passes the arguments.
    outside_the_window(|| unsafe { __register_atfork()(before, in_parent, in_child, library) })
}

pub(crate) fn install() -> Result<(), String> {
    // SAFETY: registers the runtime's handlers, unless a library's constructor already has.
    let result = unsafe { __register_atfork(None, None, None, std::ptr::null_mut()) };
    if result == 0 { Ok(()) } else { Err("no memory for the fork handlers".into()) }
}

fn lock_for_fork() {
    program_actions::lock_for_fork();
    thread_exit::lock_for_fork();
    named_memory::NAMED.lock_for_fork();
    aio::queue::lock_for_fork();
    pins::TABLES.lock_for_fork();
    pins::UNDIVIDED.lock_for_fork();
}

fn prepare_asleep(inside: Option<Inside>) {
    let mask = signals::block_all();
    pending::begin_fork();
    let heap_break = program_break::lock_break();
    lock_for_fork();
    hold(Held::Asleep(ForkingAsleep { heap_break, mask, inside }));
}

/// Locks the engine's heap last: nothing can be allocated or freed until the fork.
fn hold(held: Held) {
    // SAFETY: accessed only by the forking thread, between `prepare` and `parent` or `child`.
    unsafe { *FORKING.0.get() = Some(held) };
    HEAP.lock();
}

pub(super) extern "C" fn prepare() {
    if !instance::emulates_signals() {
        return;
    }
    let inside = sleep_gate::enter();
    let Some(engine) = instance::engine() else { return prepare_asleep(inside) };
    let mask = signals::block_all();
    pending::begin_fork();
    // The C library may still touch managed memory before the fork (the name-service database, for
    // example), so this thread must be able to fault.
    signals::set_mask(!never_blocked());
    // Before the engine is quiesced: a thread that holds this lock may need a page.
    // SAFETY: released in `parent`, reset in `child`.
    unsafe { _IO_list_lock() };
    let pinned = pin_streams(engine);
    let mut children = forked_children::lock();
    if exemption::is_in_force() || !engine.has_background() {
        // No background thread reaps exited children.
        children.reap(engine);
    }
    let heap_break = program_break::lock_break();
    lock_for_fork();
    let quiesced = engine.quiesce();
    // On failure the window is not mapped in the child: the child faults instead of reading zeroes.
    let _ = engine.before_fork(&quiesced);
    let mark = engine.child_reads_slots(&quiesced).then(|| children.make());
    hold(Held::Awake(Forking { quiesced, children, mark, heap_break, mask, pinned }));
}

fn take() -> Option<Held> {
    if !instance::emulates_signals() {
        return None;
    }
    HEAP.unlock();
    aio::queue::unlock_after_fork();
    pins::UNDIVIDED.unlock_after_fork();
    pins::TABLES.unlock_after_fork();
    named_memory::NAMED.unlock_after_fork();
    thread_exit::LIST.unlock_after_fork();
    program_actions::unlock_after_fork();
    // SAFETY: accessed only by the forking thread, between `prepare` and `parent` or `child`.
    unsafe { (*FORKING.0.get()).take() }
}

pub(super) extern "C" fn parent() {
    match take() {
        Some(Held::Awake(forking)) => parent_awake(forking),
        Some(Held::Asleep(forking)) => {
            drop((forking.heap_break, forking.inside));
            end(forking.mask);
        }
        None => {}
    }
    tree_asleep::note_child_created();
}

fn parent_awake(mut forking: Forking) {
    let Some(engine) = instance::engine() else { return };
    engine.child_made(&forking.quiesced, forking.mark.is_some());
    // Also runs after a failed fork, when no process is attached.
    if let Some(mark) = forking.mark {
        forking.children.record(mark);
    }
    drop(forking.heap_break);
    drop(forking.children);
    drop(forking.quiesced);
    // SAFETY: taken in `prepare` by this thread.
    unsafe { _IO_list_unlock() };
    drop(forking.pinned);
    end(forking.mask);
}

pub(super) extern "C" fn child() {
    engine_threads::become_child();
    match take() {
        Some(Held::Awake(forking)) => child_awake(forking),
        Some(Held::Asleep(forking)) => child_asleep(forking),
        None if instance::is_asleep() && !sleep_on() => {
            instance::awake();
        }
        None => {}
    }
}

/// Returns false if the child must wake.
fn sleep_on() -> bool {
    statistics::detach();
    asleep::become_child();
    tree_asleep::become_child()
}

fn child_asleep(forking: ForkingAsleep) {
    let may_sleep = match forking.inside {
        Some(_) => {
            // The parent's thread that wakes the process does not exist in the child.
            instance::sleep_on();
            sleep_gate::become_child();
            sleep_on()
        }
        None => {
            statistics::detach();
            true
        }
    };
    virtual_mask::become_owner();
    aio::queue::become_child();
    pins::forget_other_threads();
    drop((forking.heap_break, forking.inside));
    end(forking.mask);
    if !may_sleep {
        instance::awake();
    }
}

fn child_awake(mut forking: Forking) {
    let Some(engine) = instance::engine() else { return };
    if let Err(error) = engine.become_child(&mut forking.quiesced) {
        stop_child(&error);
    }
    statistics::detach();
    tree::become_child(engine);
    virtual_mask::become_owner();
    aio::queue::become_child();
    pins::become_child(engine);
    file_write_locks::become_child();
    thread_exit::become_child();
    named_memory::become_child(engine);
    drop(forking.heap_break);
    drop(forking.quiesced);
    if let Some(mark) = forking.mark {
        mark.keep();
    }
    forking.children.forget();
    drop(forking.children);
    // SAFETY: the child has one thread, so no other thread holds the lock.
    unsafe { _IO_list_resetlock() };
    drop(forking.pinned);
    end(forking.mask);
}

fn end(mask: Mask) {
    pending::end_fork();
    signals::set_mask(mask);
    lifecycle::deliver_held();
}

/// Forks by `make`, a call that does not run the registered fork handlers.
pub(super) fn forked(make: impl FnOnce() -> isize) -> isize {
    with_engine_stack(|| {
        prepare();
        let pid = make();
        raw::preserving_errno(|| if pid == 0 { child() } else { parent() });
        pid
    })
}

/// No page can be faulted in while the engine is quiesced, so this runs on the engine's stack.
#[unsafe(no_mangle)]
pub extern "C" fn fork() -> libc::pid_t {
    real!(fork: fn() -> libc::pid_t);
    // SAFETY: no preconditions; the caller is responsible for what the child does.
    with_engine_stack(|| unsafe { fork()() })
}

/// `_Fork(3)`. glibc's function runs no fork handlers, so the runtime's are called here.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "glibc's name")]
pub extern "C" fn _Fork() -> libc::pid_t {
    real!(_Fork: fn() -> libc::pid_t);
    let fork = _Fork();
    // SAFETY: no preconditions; the caller is responsible for what the child does.
    forked(move || unsafe { fork() } as isize) as libc::pid_t
}

/// The C library forks on the caller's stack, so all of this runs on the engine's.
#[unsafe(no_mangle)]
pub extern "C" fn daemon(keeps_directory: i32, keeps_streams: i32) -> i32 {
    real!(daemon: fn(i32, i32) -> i32);
    // SAFETY: no preconditions; the caller is responsible for what the child does.
    with_engine_stack(move || unsafe { daemon()(keeps_directory, keeps_streams) })
}

type ForkPty = unsafe extern "C" fn(
    *mut i32,
    *mut c_char,
    *const libc::termios,
    *const libc::winsize,
) -> libc::pid_t;
static FORKPTY: Real = Real::new(c"forkpty");

/// `forkpty(3)`, for the same reason as [`daemon`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forkpty(
    terminal: *mut i32,
    name: *mut c_char,
    attributes: *const libc::termios,
    size: *const libc::winsize,
) -> libc::pid_t {
    // Before glibc 2.34 the function is in a library that may have been opened locally.
    let Some(found) = FORKPTY.find().or_else(|| FORKPTY.find_in(&[c"libutil.so.1"])) else {
        return fail(libc::ENOSYS);
    };
    // SAFETY: the C library's `forkpty` has this type.
    let forkpty = unsafe { std::mem::transmute::<*mut c_void, ForkPty>(found) };
    // SAFETY: this is the C library's function of this name; the program passes the arguments.
    with_engine_stack(move || unsafe { forkpty(terminal, name, attributes, size) })
}

fn stop_child(error: &std::io::Error) -> ! {
    use softswap_sys::raw::write_stderr;
    write_stderr(
        format!(
            "softswap: stopping a forked child: it cannot access its swapped-out memory ({error}); \
             raise the limit of open files (`ulimit -n`), or start the child by exec\n"
        )
        .as_bytes(),
    );
    // SAFETY: no preconditions. The child exits before it reads zeroes instead of its data.
    unsafe { libc::_exit(125) }
}

/// The C library resets these locks in the child before the runtime's handler runs.
fn pin_streams(engine: &'static Engine) -> ResidentRanges<'static> {
    // Size of a stream, and offset of the pointer to its lock: <bits/types/struct_FILE.h>.
    const STREAM_BYTES: usize = 216;
    const LOCK_AT: usize = 136;
    const LOCK_BYTES: usize = 16;
    let mut pinned = ResidentRanges::new(engine);
    // SAFETY: this thread holds the lock of the list; each stream is pinned before it is read.
    unsafe {
        let mut at = _IO_iter_begin();
        while at != _IO_iter_end() {
            let stream = _IO_iter_file(at) as usize;
            pinned.add(stream, STREAM_BYTES);
            pinned.add(*((stream + LOCK_AT) as *const usize), LOCK_BYTES);
            at = _IO_iter_next(at);
        }
    }
    pinned
}
