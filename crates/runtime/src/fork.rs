//! What a forked child needs to see its data.
//!
//! On fork the kernel drops the registration of the child's memory: a page that
//! is out would read as zeroes there, silently. So the engine is brought to
//! rest before, and in the child userfaultfd is opened again before any of the
//! program's code runs. The child reads its parent's swap area, whose slots
//! the parent keeps until the child is gone or has called exec; it has no
//! area of its own yet, so what it changes stays in DRAM or in the pool.

use crate::library::outside_the_window;
use crate::pinned::Pinned;
use crate::start;
use rustix::fd::OwnedFd;
use softswap_engine::engine::{AtRest, Engine};
use softswap_sys::alloc::HEAP;
use softswap_sys::descriptor::{move_high, release as release_descriptor};
use softswap_sys::signals::{self, Mask, NEVER_BLOCKED};
use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Children that still read this process's slots: a pipe's read end each, at
/// its end when the child has exited or called exec.
static CHILDREN: Mutex<Vec<OwnedFd>> = Mutex::new(Vec::new());

/// What the fork under way holds, from `prepare` to `parent` or `child`.
struct Forking {
    at_rest: AtRest<'static>,
    children: MutexGuard<'static, Vec<OwnedFd>>,
    pipe: Option<(OwnedFd, OwnedFd)>,
    heap_break: MutexGuard<'static, crate::mappings::Break>,
    mask: Mask,
    /// Pages the C library touches between fork and our handler.
    pinned: Pinned<'static>,
}

struct Slot(UnsafeCell<Option<Forking>>);

// SAFETY: touched only by the thread that forks, between `prepare` and
// `parent` or `child`; `AtRest` keeps a second fork out meanwhile, and the
// child has that one thread only.
unsafe impl Sync for Slot {}

static FORKING: Slot = Slot(UnsafeCell::new(None));

type Handler = Option<extern "C" fn()>;

unsafe extern "C" {
    // The C library's list of open streams and its lock, exported for its own
    // tools. The lock may be taken twice by one thread.
    fn _IO_iter_begin() -> *mut c_void;
    fn _IO_iter_end() -> *mut c_void;
    fn _IO_iter_next(at: *mut c_void) -> *mut c_void;
    fn _IO_iter_file(at: *mut c_void) -> *mut c_void;
    fn _IO_list_lock();
    fn _IO_list_unlock();
    fn _IO_list_resetlock();
}

/// Whether our handlers are registered.
static REGISTERED: AtomicBool = AtomicBool::new(false);

/// What `pthread_atfork` calls. Ours come before everybody else's, so that
/// `prepare` runs last and the others first: handlers of the program's and of
/// its libraries always see their memory.
///
/// # Safety
/// As `pthread_atfork(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __register_atfork(
    before: Handler,
    in_parent: Handler,
    in_child: Handler,
    library: *mut c_void,
) -> i32 {
    crate::real::real!(__register_atfork: fn(Handler, Handler, Handler, *mut c_void) -> i32);
    if !REGISTERED.swap(true, Ordering::AcqRel) {
        // SAFETY: the handlers have the right signatures; null: never unloaded.
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
    // A child finds our handler in the list, before it can find anything that is out.
    // SAFETY: the caller's promise.
    outside_the_window(|| unsafe { __register_atfork()(before, in_parent, in_child, library) })
}

pub(crate) fn install() -> Result<(), String> {
    // SAFETY: registers ours, if no library's constructor has yet.
    let result = unsafe { __register_atfork(None, None, None, std::ptr::null_mut()) };
    if result == 0 { Ok(()) } else { Err("no memory for the fork handlers".into()) }
}

extern "C" fn prepare() {
    let Some(engine) = start::engine() else { return };
    let mask = signals::block_all();
    // What the C library does between here and the fork may touch managed
    // memory (the name-service database, say): this thread can still fault.
    signals::set_mask(!NEVER_BLOCKED);
    // Before the engine rests: a thread that has this lock may need a page.
    // SAFETY: released in `parent`, made new in `child`.
    unsafe { _IO_list_lock() };
    let pinned = pin_streams(engine);
    let pipe = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
        .ok()
        .map(|(read, write)| (move_high(read), move_high(write)));
    let children = CHILDREN.lock().unwrap_or_else(PoisonError::into_inner);
    let heap_break = crate::mappings::lock_break();
    crate::masks::lock_for_fork();
    crate::thread_end::lock_for_fork();
    let at_rest = engine.rest();
    // If refused, the child has no window at all: it faults where it would
    // otherwise have read zeroes.
    let _ = engine.before_fork(&at_rest);
    let forking = Forking { at_rest, children, pipe, heap_break, mask, pinned };
    // SAFETY: see `Slot`.
    unsafe { *FORKING.0.get() = Some(forking) };
    // Last: nothing is allocated or freed until after the fork.
    HEAP.lock();
}

fn take() -> Option<Forking> {
    start::engine()?;
    HEAP.unlock();
    crate::thread_end::unlock_after_fork();
    crate::masks::unlock_after_fork();
    // SAFETY: see `Slot`.
    unsafe { (*FORKING.0.get()).take() }
}

extern "C" fn parent() {
    let (Some(engine), Some(mut forking)) = (start::engine(), take()) else { return };
    // Also when fork has failed: then the pipe's end shows at once.
    if let Some((read, write)) = forking.pipe {
        engine.child_made(&forking.at_rest);
        release_descriptor(write);
        forking.children.push(read);
    } else {
        // Without a pipe nobody can tell when the child is gone: keep for good.
        engine.child_made(&forking.at_rest);
    }
    drop(forking.heap_break);
    drop(forking.children);
    drop(forking.at_rest);
    engine.end_fork();
    // SAFETY: taken in `prepare` by this thread.
    unsafe { _IO_list_unlock() };
    drop(forking.pinned);
    signals::set_mask(forking.mask);
}

extern "C" fn child() {
    let (Some(engine), Some(mut forking)) = (start::engine(), take()) else { return };
    if let Err(error) = engine.become_child(&mut forking.at_rest) {
        stop_child(&error);
    }
    start::no_background_reclaim();
    crate::masks::become_child();
    drop(forking.heap_break);
    drop(forking.at_rest);
    if let Some((read, write)) = forking.pipe {
        release_descriptor(read);
        // Open until this process is gone: that is its only purpose.
        std::mem::forget(write);
    }
    // The parent's other children are not ours to wait for.
    forking.children.drain(..).for_each(release_descriptor);
    drop(forking.children);
    engine.end_fork();
    // SAFETY: the child has one thread, and nobody else has the lock.
    unsafe { _IO_list_resetlock() };
    drop(forking.pinned);
    signals::set_mask(forking.mask);
}

/// glibc's `_Fork` runs no handlers: a child of it would be without its data.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "glibc's name")]
pub extern "C" fn _Fork() -> libc::pid_t {
    crate::real::real!(_Fork: fn() -> libc::pid_t);
    prepare();
    // SAFETY: no preconditions; what the child may do is the caller's matter.
    let pid = unsafe { _Fork()() };
    if pid == 0 {
        child()
    } else {
        parent()
    }
    pid
}

fn stop_child(error: &std::io::Error) -> ! {
    use softswap_sys::raw::write_stderr;
    write_stderr(
        format!(
            "softswap: stopping a forked child: its swapped-out memory cannot be reached \
             (userfaultfd: {error}); raise the limit on open files, or start the child with exec\n"
        )
        .as_bytes(),
    );
    // SAFETY: ends the child before any of its code sees a page of zeroes.
    unsafe { libc::_exit(125) }
}

/// In a child with several threads the C library resets the locks of all open
/// streams before our handler runs: those must be in memory.
fn pin_streams(engine: &'static Engine) -> Pinned<'static> {
    // Bytes of a stream that are touched (the whole structure), and where in
    // it the pointer to its lock is: <bits/types/struct_FILE.h>.
    const STREAM_BYTES: usize = 216;
    const LOCK_AT: usize = 136;
    const LOCK_BYTES: usize = 16;
    let mut pinned = Pinned::new(engine);
    // SAFETY: the iteration follows the C library's own protocol; each stream
    // is pinned before it is read.
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

/// Gives back the slots kept for children that are gone. Called now and then.
pub(crate) fn reap(engine: &Engine) {
    let Ok(mut children) = CHILDREN.try_lock() else { return };
    let mut index = 0;
    while index < children.len() {
        if is_at_end(&children[index]) {
            release_descriptor(children.swap_remove(index));
            engine.child_gone();
        } else {
            index += 1;
        }
    }
}

fn is_at_end(pipe: &OwnedFd) -> bool {
    let mut fds = [rustix::event::PollFd::new(pipe, rustix::event::PollFlags::IN)];
    let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(rustix::event::poll(&mut fds, Some(&now)), Ok(ready) if ready > 0)
}
