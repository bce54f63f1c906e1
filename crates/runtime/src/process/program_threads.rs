//! `pthread_create`: gives every thread a signal stack of the engine, so that a page can be faulted
//! in even if the thread's own stack is managed memory (a coroutine's) or nearly full.

use super::thread_exit;
use crate::base::instance;
use crate::base::real::real;
use crate::base::resident::ResidentRanges;
use crate::memory::libc_memory::outside_the_window;
use crate::memory::{pins, sleep_gate};
use crate::signals::sets::INTERNAL;
use crate::signals::{lifecycle, pending, virtual_mask};
use softswap_sys::alloc::HEAP;
use softswap_sys::signals::{self, SIGSEGV};
use std::cell::Cell;
use std::ffi::c_void;
use std::io;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

pub(crate) type Start = extern "C" fn(*mut c_void) -> *mut c_void;

/// Start function of a new thread; in engine memory.
#[repr(C)]
struct Job {
    start: Start,
    argument: *mut c_void,
    /// Engine signals that the program blocks in the new thread.
    blocked: signals::Mask,
    is_own: bool,
}

/// Key, plus one, whose destructor removes a thread's signal stack; 0: none yet.
static KEY: AtomicU32 = AtomicU32::new(0);

thread_local! {
    static ROUND: Cell<u8> = const { Cell::new(0) };
}

/// Called while the library loads: glibc stores the values of the first keys in the thread itself.
pub(crate) fn set_up() {
    let mut key = 0;
    // SAFETY: `key` is valid to write to; the destructor has the right signature.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(remove_signal_stack)) } == 0 {
        KEY.store(key + 1, Ordering::Relaxed);
    }
}

pub(crate) fn adopt_main() -> io::Result<()> {
    let base = signals::install_stack()?;
    pins::register_table(base);
    if arrange_removal(base) {
        lifecycle::enter(base);
    }
    Ok(())
}

/// Rounds in which the C library calls the destructors of a thread's keys: <limits.h>.
const ROUNDS: u8 = 4;

/// Removes the stack in the last round: the program's destructors touch managed memory until then.
extern "C" fn remove_signal_stack(base: *mut c_void) {
    let round = ROUND.get() + 1;
    ROUND.set(round);
    if round < ROUNDS && arrange_removal(base as usize) {
        return;
    }
    lifecycle::unregister_thread();
    pins::forget_pins();
    if let Some(engine) = instance::engine() {
        thread_exit::prepare(engine);
    }
    // SAFETY: this thread stored the value when it created the stack, and destructors run on the
    // thread's ordinary stack.
    unsafe { signals::remove_stack(base as usize) };
}

fn install_signal_stack() -> Option<usize> {
    let base = signals::install_stack().ok()?;
    pins::register_table(base);
    if arrange_removal(base) {
        return Some(base);
    }
    pins::forget_pins();
    // SAFETY: the signal stack was just installed on this thread, which runs on its ordinary stack;
    // nothing uses the signal stack any more.
    unsafe { signals::remove_stack(base) };
    None
}

fn arrange_removal(base: usize) -> bool {
    KEY.load(Ordering::Relaxed).checked_sub(1).is_some_and(|key| {
        // SAFETY: `key` is a valid key of this library.
        unsafe { libc::pthread_setspecific(key, base as *const c_void) == 0 }
    })
}

extern "C" fn begin(job: *mut c_void) -> *mut c_void {
    // The C library's signals stay unblocked: `setuid` sends one to each thread and waits for it.
    let unblocked = signals::never_blocked() | INTERNAL;
    // Block signals first: a handler of the program could run otherwise. No managed memory is
    // touched meanwhile: this stack is unmanaged (`without_managed_stack`), and the C library
    // stores the values of the first keys in the thread itself.
    let initial_mask = signals::block_all();
    // SAFETY: `pthread_create` below wrote a Job there for this thread alone.
    let Job { start, argument, blocked, is_own } = unsafe { job.cast::<Job>().read() };
    // Set the emulated mask before unblocking signals: an engine thread must not run the program's
    // handler for a signal sent to the process.
    virtual_mask::inherit(blocked | initial_mask);
    if is_own {
        pending::mark_engine_thread();
    }
    let stack = install_signal_stack();
    signals::set_mask(initial_mask & !unblocked);
    if let Some(stack) = stack.filter(|_| !is_own) {
        lifecycle::enter(stack);
    }
    // SAFETY: `job` came from the engine's heap and is not used again.
    unsafe { HEAP.release(job.cast()) };
    let result = start(argument);
    if is_own && let Some(count) = count() {
        count.fetch_add(1, Ordering::AcqRel);
    }
    result
}

/// Address of the C library's count of threads, or null. The process exits with the last of them.
static COUNT: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());

/// If the count is unknown (before glibc 2.34), engine threads keep the process alive after the
/// program's last thread has exited by `pthread_exit`.
fn count() -> Option<&'static AtomicU32> {
    // SAFETY: the pointer is null, or points to an unsigned int of the C library, which changes it
    // by atomic operations.
    unsafe { COUNT.load(Ordering::Relaxed).as_ref() }
}

type Out = *mut libc::pthread_t;
type Attributes = *const libc::pthread_attr_t;
type Create = unsafe extern "C" fn(Out, Attributes, Start, *mut c_void) -> i32;

fn really_create() -> Create {
    real!(pthread_create: fn(Out, Attributes, Start, *mut c_void) -> i32);
    pthread_create()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: Start,
    argument: *mut c_void,
) -> i32 {
    instance::prepare_for_threads();
    if !instance::emulates_signals() {
        // SAFETY: this is the C library's function of this name; the program passes the arguments.
        let create = || unsafe { really_create()(thread, attributes, start, argument) };
        return if instance::is_loaded() { create() } else { with_page_faults_unblocked(create) };
    }
    // SAFETY: the program passes valid or null attributes, and a writable thread ID.
    unsafe {
        let job = Job { start, argument, blocked: virtual_mask::get(), is_own: false };
        create(thread, attributes, job)
    }
}

/// The new thread inherits the mask. A library initialized before this one may block all signals in
/// its thread, as heaptrack's does, and use managed memory later.
fn with_page_faults_unblocked<R>(create: impl FnOnce() -> R) -> R {
    let mask = signals::current_mask();
    signals::set_mask(mask & !(signals::never_blocked() | signals::bit(SIGSEGV)));
    let result = create();
    signals::set_mask(mask);
    result
}

#[repr(C)]
struct C11Job {
    start: extern "C" fn(*mut c_void) -> i32,
    argument: *mut c_void,
}

extern "C" fn begin_c11(job: *mut c_void) -> *mut c_void {
    // SAFETY: `thrd_create` below wrote a C11Job there for this thread alone.
    let C11Job { start, argument } = unsafe { job.cast::<C11Job>().read() };
    // SAFETY: `job` came from the engine's heap and is not used again.
    unsafe { HEAP.release(job.cast()) };
    std::ptr::without_provenance_mut(start(argument) as isize as usize)
}

/// The C library would call its own `pthread_create`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thrd_create(
    thread: *mut libc::pthread_t,
    start: extern "C" fn(*mut c_void) -> i32,
    argument: *mut c_void,
) -> i32 {
    /// `thrd_error` and `thrd_nomem` of <threads.h>.
    const ERROR: i32 = 2;
    const NO_MEMORY: i32 = 3;
    let job = HEAP.allocate(size_of::<C11Job>(), align_of::<C11Job>(), false).cast::<C11Job>();
    if job.is_null() {
        return NO_MEMORY;
    }
    // SAFETY: fresh memory of the right size and alignment; the program's pointer for the ID.
    unsafe {
        job.write(C11Job { start, argument });
        match pthread_create(thread, std::ptr::null(), begin_c11, job.cast()) {
            0 => 0,
            error => {
                HEAP.release(job.cast());
                if error == libc::ENOMEM { NO_MEMORY } else { ERROR }
            }
        }
    }
}

/// # Safety
/// The rules of `pthread_create(3)` apply, for the function of the job.
unsafe fn create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    mut job_values: Job,
) -> i32 {
    job_values.blocked = inherited_mask(job_values.blocked, attributes);
    let job = HEAP.allocate(size_of::<Job>(), align_of::<Job>(), false).cast::<Job>();
    if job.is_null() {
        return libc::EAGAIN;
    }
    // SAFETY: fresh memory of the right size and alignment.
    unsafe { job.write(job_values) };
    // The C library reads the attributes and writes the result with all signals blocked.
    let mut made: libc::pthread_t = 0;
    let inside = sleep_gate::enter();
    let own_stack = without_managed_stack(attributes);
    let attributes = own_stack.as_ref().map_or(attributes, std::ptr::from_ref);
    let pinned = instance::engine().map(|engine| {
        let mut pinned = ResidentRanges::new(engine);
        pin_attributes(&mut pinned, attributes);
        // The arguments of `clone3`.
        pinned.add_next_frames();
        pinned
    });
    // Outside the window: the C library reads its copy of the default attributes with signals
    // blocked, too.
    // SAFETY: `begin` takes the Job; the attributes are valid or null, the ID is written to a
    // local.
    let result = outside_the_window(|| unsafe {
        really_create()(&raw mut made, attributes, begin, job.cast())
    });
    drop((pinned, inside));
    if result == 0 {
        // SAFETY: the caller's pointer is valid.
        unsafe { thread.write(made) };
    } else {
        // SAFETY: no thread was created that would use the job.
        unsafe { HEAP.release(job.cast()) };
    }
    result
}

/// Returns no signals if the attributes contain a mask.
fn inherited_mask(
    blocked: signals::Mask,
    attributes: *const libc::pthread_attr_t,
) -> signals::Mask {
    type GetMask = unsafe extern "C" fn(*const libc::pthread_attr_t, *mut libc::sigset_t) -> i32;
    if blocked == 0 || attributes.is_null() {
        return blocked;
    }
    // The function exists since glibc 2.32.
    // SAFETY: the name is a C string.
    let get = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"pthread_attr_getsigmask_np".as_ptr()) };
    if get.is_null() {
        return blocked;
    }
    // SAFETY: the function of that name has this type.
    let get = unsafe { std::mem::transmute::<*mut c_void, GetMask>(get) };
    let mut mask = softswap_sys::AnyBits::zeroed();
    // SAFETY: `attributes` is a valid object, and `mask` is a local.
    if unsafe { get(attributes, &raw mut mask) } == 0 { 0 } else { blocked }
}

/// Engine threads are set up like the program's: the C library may allocate managed memory in them.
/// `std::thread` would allocate from the program's heap before it blocks signals.
pub(crate) fn start_own(start: Start, argument: *mut c_void) -> io::Result<libc::pthread_t> {
    let mut thread = 0;
    let job = Job { start, argument, blocked: 0, is_own: true };
    // SAFETY: the name is a C string.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__nptl_nthreads".as_ptr()) };
    COUNT.store(found.cast(), Ordering::Relaxed);
    // Block the program's signals, which its own threads must handle. Leave the C library's
    // unblocked: a `setuid` in progress holds a lock that thread creation needs.
    // SAFETY: `thread` is a local, and `job` has a function of the right type.
    let result = signals::with_blocked(!INTERNAL, || unsafe {
        create(&raw mut thread, std::ptr::null(), job)
    });
    if result != 0 {
        return Err(io::Error::from_raw_os_error(result));
    }
    // An engine thread must not keep the process alive.
    count().inspect(|count| {
        count.fetch_sub(1, Ordering::AcqRel);
    });
    Ok(thread)
}

/// Upper bound of the bytes that the C library reads from an attribute object's extension.
const EXTENSION_BYTES: usize = 256;

fn pin_attributes(pinned: &mut ResidentRanges<'_>, attributes: *const libc::pthread_attr_t) {
    if attributes.is_null() {
        return;
    }
    pinned.add(attributes as usize, size_of::<libc::pthread_attr_t>());
    // glibc stores a pointer to further attributes in one of the words. Pin behind every word:
    // `add` skips values that are not managed addresses.
    for word in 0..size_of::<libc::pthread_attr_t>() / size_of::<usize>() {
        // SAFETY: the word is within the attribute object, which the program passes as valid.
        let value = unsafe { attributes.cast::<usize>().add(word).read_volatile() };
        pinned.add(value, EXTENSION_BYTES);
    }
}

/// Removes a managed stack from the attributes; the C library then allocates one of the same size.
/// A thread cannot run on a managed stack: the kernel writes to the data that glibc stores at its
/// top, and the thread exits with signals blocked.
fn without_managed_stack(attributes: *const libc::pthread_attr_t) -> Option<libc::pthread_attr_t> {
    if attributes.is_null() {
        return None;
    }
    let (mut base, mut len) = (std::ptr::null_mut(), 0);
    // SAFETY: `attributes` is a valid object; `base` and `len` are locals.
    let found = unsafe { libc::pthread_attr_getstack(attributes, &raw mut base, &raw mut len) };
    if found != 0 || len == 0 || !instance::is_in_window(base as usize) {
        return None;
    }
    // In glibc the object is plain data; this flag indicates that a stack is set.
    const STACK_ADDRESS_SET: i32 = 8;
    const FLAGS_AT: usize = 8;
    const STACK_ADDRESS_AT: usize = 24;
    // SAFETY: `attributes` is a valid object. The bitwise copy shares its pointers with the
    // original, which outlives the call.
    let mut copy = unsafe { attributes.read() };
    let bytes = (&raw mut copy).cast::<u8>();
    // SAFETY: both fields are within the object.
    unsafe {
        let flags = bytes.add(FLAGS_AT).cast::<i32>();
        flags.write(flags.read() & !STACK_ADDRESS_SET);
        bytes.add(STACK_ADDRESS_AT).cast::<usize>().write(0);
    }
    Some(copy)
}
