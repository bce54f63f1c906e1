//! What a forked child needs to see its data.
//!
//! On fork the kernel drops the registration of the child's memory: a page that
//! is out would read as zeroes there, silently. So the engine is brought to
//! rest before, and in the child userfaultfd is opened again before any of the
//! program's code runs. The child reads its parent's swap area, whose slots
//! the parent keeps until the child is gone or has called exec ([`heirs`]); it
//! has no area of its own yet, so what it changes stays in DRAM or in the pool.
//!
//! Fork opens no descriptor in the parent and changes no limit: other threads of
//! the program's run on, and start programs meanwhile.
//!
//! A child is forked by `fork`, by `_Fork`, by a raw call made through the C
//! library, or by `clone` without CLONE_VM, on a stack of its own.

use crate::guard::{Arguments, issue};
use crate::heirs::{self, Heir, Heirs};
use crate::library::outside_the_window;
use crate::pinned::Pinned;
use crate::real::{Real, c_result, real};
use crate::start;
use softswap_engine::door::engine::{AtRest, Engine};
use softswap_sys::alloc::HEAP;
use softswap_sys::raw;
use softswap_sys::signals::{self, Mask, NEVER_BLOCKED};
use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicBool, Ordering};

/// What the fork under way holds, from `prepare` to `parent` or `child`.
struct Forking {
    at_rest: AtRest<'static>,
    heirs: MutexGuard<'static, Heirs>,
    /// `None` where the child reads none of this process's slots.
    heir: Option<Heir>,
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
    crate::masks::begin_fork();
    // What the C library does between here and the fork may touch managed
    // memory (the name-service database, say): this thread can still fault.
    signals::set_mask(!NEVER_BLOCKED);
    // Before the engine rests: a thread that has this lock may need a page.
    // SAFETY: released in `parent`, made new in `child`.
    unsafe { _IO_list_lock() };
    let pinned = pin_streams(engine);
    let mut heirs = heirs::lock();
    if crate::filters::has_own() {
        // No thread does it now and then.
        heirs.reap(engine);
    }
    let heap_break = crate::mappings::lock_break();
    crate::masks::lock_for_fork();
    crate::thread_end::lock_for_fork();
    crate::asynchronous::lock_for_fork();
    crate::pins::lock_for_fork();
    let at_rest = engine.rest();
    // If refused, the child has no window at all: it faults where it would
    // otherwise have read zeroes.
    let _ = engine.before_fork(&at_rest);
    let heir = engine.leaves_slots(&at_rest).then(|| heirs.make());
    let forking = Forking { at_rest, heirs, heir, heap_break, mask, pinned };
    // SAFETY: see `Slot`.
    unsafe { *FORKING.0.get() = Some(forking) };
    // Last: nothing is allocated or freed until after the fork.
    HEAP.lock();
}

fn take() -> Option<Forking> {
    start::engine()?;
    HEAP.unlock();
    crate::asynchronous::unlock_after_fork();
    crate::pins::unlock_after_fork();
    crate::thread_end::unlock_after_fork();
    crate::masks::unlock_after_fork();
    // SAFETY: see `Slot`.
    unsafe { (*FORKING.0.get()).take() }
}

extern "C" fn parent() {
    let (Some(engine), Some(mut forking)) = (start::engine(), take()) else { return };
    engine.child_made(&forking.at_rest, forking.heir.is_some());
    // Also when fork has failed: then it shows that nobody is there.
    if let Some(heir) = forking.heir {
        forking.heirs.made(heir);
    }
    drop(forking.heap_break);
    drop(forking.heirs);
    drop(forking.at_rest);
    engine.end_fork();
    // SAFETY: taken in `prepare` by this thread.
    unsafe { _IO_list_unlock() };
    drop(forking.pinned);
    end(forking.mask);
}

extern "C" fn child() {
    let (Some(engine), Some(mut forking)) = (start::engine(), take()) else { return };
    if let Err(error) = engine.become_child(&mut forking.at_rest) {
        stop_child(&error);
    }
    start::leave_statistics();
    crate::masks::become_child();
    crate::asynchronous::become_child();
    crate::pins::become_child(engine);
    drop(forking.heap_break);
    drop(forking.at_rest);
    if let Some(heir) = forking.heir {
        heir.keep();
    }
    // The parent's other children are not ours to wait for.
    forking.heirs.forget();
    drop(forking.heirs);
    engine.end_fork();
    // SAFETY: the child has one thread, and nobody else has the lock.
    unsafe { _IO_list_resetlock() };
    drop(forking.pinned);
    end(forking.mask);
}

/// All is as it was before: what was sent to this process meanwhile is taken now.
fn end(mask: Mask) {
    crate::masks::end_fork();
    signals::set_mask(mask);
    crate::masks::look();
}

/// Forks by `make`, which no handlers of the C library's surround.
fn forked(make: impl FnOnce() -> isize) -> isize {
    prepare();
    let pid = make();
    raw::preserving_errno(|| if pid == 0 { child() } else { parent() });
    pid
}

/// glibc's `_Fork` runs no handlers: a child of it would be without its data.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "glibc's name")]
pub extern "C" fn _Fork() -> libc::pid_t {
    real!(_Fork: fn() -> libc::pid_t);
    // SAFETY: no preconditions; what the child may do is the caller's matter.
    forked(|| unsafe { _Fork()() } as isize) as libc::pid_t
}

/// What of a child's is copied, not shared, so that it is a fork: the memory.
/// A table of descriptors in common cannot be: the engine's mean other things
/// in the child.
fn is_fork(flags: usize) -> bool {
    flags & libc::CLONE_VM as usize == 0
}

fn shares_descriptors(flags: usize) -> bool {
    flags & libc::CLONE_FILES as usize != 0
}

/// A call that makes a child with a copy of the memory. `words` is where the
/// kernel writes numbers to, in the parent and in the child.
fn answer(number: i64, arguments: Arguments, flags: usize, words: &[(usize, usize)]) -> isize {
    let Some(engine) = start::engine() else { return issue(number, arguments) };
    if shares_descriptors(flags) {
        return -(libc::EINVAL as isize);
    }
    let mut pinned = Pinned::new(engine);
    words.iter().for_each(|(word, len)| pinned.add(*word, *len));
    forked(|| issue(number, arguments))
}

/// `fork`, and `vfork`, whose child would return into a frame that its parent
/// has left: it gets a copy instead.
fn answer_fork(_arguments: Arguments) -> isize {
    answer(libc::SYS_fork, [0; 6], 0, &[])
}

fn answer_clone(arguments: Arguments) -> isize {
    const NUMBER: usize = size_of::<libc::pid_t>();
    let [flags, _, in_parent, in_child, ..] = arguments;
    answer(libc::SYS_clone, arguments, flags, &[(in_parent, NUMBER), (in_child, NUMBER)])
}

/// `clone3`'s arguments, the first ones of them.
#[repr(C)]
#[derive(Clone, Copy)]
struct CloneArguments {
    flags: u64,
    pidfd: usize,
    child_tid: usize,
    parent_tid: usize,
    exit_signal: u64,
    stack: usize,
    stack_size: u64,
    tls: u64,
    set_tid: usize,
    set_tid_size: usize,
    cgroup: u64,
}

/// Reads `clone3`'s arguments; `None` where the kernel is to say what is wrong
/// with them.
fn clone_arguments(at: usize, len: usize) -> Option<CloneArguments> {
    if len != size_of::<CloneArguments>() || start::engine().is_none() {
        return None;
    }
    let mut bytes = [0; size_of::<CloneArguments>()];
    // SAFETY: as many bytes, of integers.
    crate::reading::read(at, &mut bytes).then(|| unsafe { std::mem::transmute(bytes) })
}

fn answer_clone3(arguments: Arguments) -> isize {
    const NUMBER: usize = size_of::<libc::pid_t>();
    let Some(asked) = clone_arguments(arguments[0], arguments[1]) else {
        return issue(libc::SYS_clone3, arguments);
    };
    let words = [
        (asked.pidfd, NUMBER),
        (asked.child_tid, NUMBER),
        (asked.parent_tid, NUMBER),
        (asked.set_tid, asked.set_tid_size.min(32) * NUMBER),
    ];
    let arguments = [&raw const asked as usize, arguments[1], 0, 0, 0, 0];
    answer(libc::SYS_clone3, arguments, asked.flags as usize, &words)
}

/// The answer to raw calls that fork, with a child that goes on where its
/// parent is. One with a stack of its own would return on that from the C
/// library's `syscall` and not come by here: it is left without managed memory.
pub(crate) fn room_of(number: i64, a: usize, b: usize) -> Option<fn(Arguments) -> isize> {
    match number {
        libc::SYS_fork | libc::SYS_vfork => Some(answer_fork),
        libc::SYS_clone if is_fork(a) && b == 0 => Some(answer_clone),
        libc::SYS_clone3 => {
            let asked = clone_arguments(a, b)?;
            (is_fork(asked.flags as usize) && asked.stack == 0).then_some(answer_clone3)
        }
        _ => None,
    }
}

/// What a child made by `clone` begins with, and what it is to do then.
#[repr(C)]
struct Beginning {
    body: unsafe extern "C" fn(*mut c_void) -> i32,
    argument: *mut c_void,
}

/// Where a child becomes one: its own stack may be managed memory.
const CHILD_STACK_BYTES: usize = 256 << 10;
#[repr(align(16))]
struct ChildStack(UnsafeCell<[u8; CHILD_STACK_BYTES]>);
// SAFETY: used by the one thread of a forked child, in its own copy.
unsafe impl Sync for ChildStack {}
static CHILD_STACK: ChildStack = ChildStack(UnsafeCell::new([0; CHILD_STACK_BYTES]));

extern "C" fn child_stack_end() -> usize {
    CHILD_STACK.0.get() as usize + CHILD_STACK_BYTES
}

/// The first function of a child made by `clone`: becomes a child on another
/// stack, and goes on with the program's on its own.
#[unsafe(naked)]
unsafe extern "C" fn begin(_beginning: *mut Beginning) -> i32 {
    core::arch::naked_asm!(
        "push rbx",
        "push rbp",
        "push r12",
        "mov rbx, rdi",
        "mov rbp, rsp",
        "call {stack_end}",
        "mov rsp, rax",
        "call {child}",
        "mov rdi, [rbx + 8]",
        "mov rax, [rbx]",
        "mov rsp, rbp",
        "call rax",
        "pop r12",
        "pop rbp",
        "pop rbx",
        "ret",
        stack_end = sym child_stack_end,
        child = sym child,
    )
}

type Clone = unsafe extern "C" fn(
    unsafe extern "C" fn(*mut c_void) -> i32,
    *mut c_void,
    i32,
    *mut c_void,
    usize,
    usize,
    usize,
) -> i32;
static CLONE: Real = Real::new(c"clone");

/// glibc's `clone`: without CLONE_VM a fork whose child has a stack of its own.
/// The arguments that a variadic call leaves out are whatever is there.
///
/// # Safety
/// As `clone(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clone(
    body: Option<unsafe extern "C" fn(*mut c_void) -> i32>,
    stack: *mut c_void,
    flags: i32,
    argument: *mut c_void,
    in_parent: usize,
    tls: usize,
    in_child: usize,
) -> i32 {
    // SAFETY: the C library's function of that name.
    let real = unsafe { std::mem::transmute::<*mut c_void, Clone>(CLONE.get()) };
    let (Some(body), false) = (body, stack.is_null()) else {
        return c_result(-(libc::EINVAL as isize)) as i32;
    };
    let engine = start::engine().filter(|_| is_fork(flags as usize));
    let Some(engine) = engine else {
        // SAFETY: the caller's promise.
        return unsafe { real(body, stack, flags, argument, in_parent, tls, in_child) };
    };
    if shares_descriptors(flags as usize) {
        return c_result(-(libc::EINVAL as isize)) as i32;
    }
    let mut pinned = Pinned::new(engine);
    for (word, flag) in [
        (in_parent, libc::CLONE_PARENT_SETTID | libc::CLONE_PIDFD),
        (in_child, libc::CLONE_CHILD_SETTID | libc::CLONE_CHILD_CLEARTID),
    ] {
        if flags & flag != 0 {
            pinned.add(word, size_of::<libc::pid_t>());
        }
    }
    // The top of the stack, where the C library and `begin` put a few words.
    const TOP_BYTES: usize = 256;
    let top = stack as usize;
    pinned.add(top - TOP_BYTES, TOP_BYTES);
    let mut beginning = Beginning { body, argument };
    let beginning = (&raw mut beginning).cast::<c_void>();
    prepare();
    // SAFETY: `begin` has the signature of a child's first function; it never
    // comes back here in the child. The caller's promise for the rest.
    let pid = unsafe {
        let begin = begin as unsafe extern "C" fn(*mut Beginning) -> i32;
        let begin = std::mem::transmute::<
            unsafe extern "C" fn(*mut Beginning) -> i32,
            unsafe extern "C" fn(*mut c_void) -> i32,
        >(begin);
        real(begin, stack, flags, beginning, in_parent, tls, in_child)
    };
    raw::preserving_errno(|| parent());
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
