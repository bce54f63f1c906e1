//! `pthread_create`: every thread gets a signal stack of the engine's, so that
//! a page can be brought in even when the thread's own stack is managed memory
//! (a coroutine's, say) or nearly used up.

use super::thread_end;
use crate::base::instance;
use crate::base::real::real;
use crate::base::resident::ResidentRanges;
use crate::memory::libc_memory::outside_the_window;
use crate::memory::{pins, sleep_gate};
use crate::signals::sets::INTERNAL;
use crate::signals::{lifecycle, virtual_mask};
use softswap_engine::door::engine::Engine;
use softswap_sys::alloc::HEAP;
use softswap_sys::signals;
use std::cell::Cell;
use std::ffi::c_void;
use std::io;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

pub(crate) type Start = extern "C" fn(*mut c_void) -> *mut c_void;

/// What a new thread is to run; in engine memory.
#[repr(C)]
struct Job {
    start: Start,
    argument: *mut c_void,
    /// What it blocks of the engine's signals, as the program knows it.
    blocked: signals::Mask,
    /// Whether it is a thread of the engine's.
    is_own: bool,
}

/// Key whose destructor takes a thread's signal stack away; 0 before there is one.
static KEY: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// How often [`take_stack`] has been called.
    static ROUND: Cell<u8> = const { Cell::new(0) };
}

/// Makes the key. While loading, so that it is one of the first, whose values glibc
/// keeps in the thread itself.
pub(crate) fn set_up() {
    let mut key = 0;
    // SAFETY: valid out-pointer; the destructor has the right signature.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(take_stack)) } == 0 {
        KEY.store(key + 1, Ordering::Relaxed);
    }
}

/// Gives the only thread that there is its signal stack.
pub(crate) fn adopt_main() -> io::Result<()> {
    let base = signals::install_stack()?;
    pins::keep_pins(base);
    if keep_stack(base) {
        lifecycle::enter(base);
    }
    Ok(())
}

/// How often the C library calls the destructors of a thread's keys, as long as
/// these set some anew: <limits.h>.
const ROUNDS: u8 = 4;

/// The destructor of [`KEY`]. It waits for the last round, because until then
/// destructors of the program's touch managed memory.
extern "C" fn take_stack(base: *mut c_void) {
    let round = ROUND.get() + 1;
    ROUND.set(round);
    if round < ROUNDS && keep_stack(base as usize) {
        return;
    }
    lifecycle::leave();
    pins::forget_pins();
    if let Some(engine) = instance::engine() {
        thread_end::prepare(engine);
    }
    // SAFETY: the value was stored by this thread when the stack was made, and
    // destructors run on the thread's ordinary stack.
    unsafe { signals::remove_stack(base as usize) };
}

/// Gives this thread its stack: where, if it is taken away when the thread ends.
fn give_stack() -> Option<usize> {
    let base = signals::install_stack().ok()?;
    pins::keep_pins(base);
    if keep_stack(base) {
        return Some(base);
    }
    pins::forget_pins();
    // SAFETY: it was installed on this thread just now, which runs on its ordinary stack, and
    // nobody uses its room any more.
    unsafe { signals::remove_stack(base) };
    None
}

/// Has this thread's stack taken away when it ends.
fn keep_stack(base: usize) -> bool {
    KEY.load(Ordering::Relaxed).checked_sub(1).is_some_and(|key| {
        // SAFETY: a live key of this library's.
        unsafe { libc::pthread_setspecific(key, base as *const c_void) == 0 }
    })
}

extern "C" fn begin(job: *mut c_void) -> *mut c_void {
    // By the C library's own a `setuid` reaches all threads, and waits for them.
    let unblocked = signals::never_blocked() | INTERNAL;
    // First: a handler of the program's would run by what this thread does not block as yet.
    // Nothing that is managed is touched meanwhile, for which a signal would have to come: not
    // this stack (`without_managed_stack`), nor by the C library, which keeps the value of one
    // of the first keys in the thread itself.
    let given = signals::block_all();
    // SAFETY: `pthread_create` below wrote a Job there for this thread alone.
    let Job { start, argument, blocked, is_own } = unsafe { job.cast::<Job>().read() };
    // Before the mask opens: what was sent to the process comes to any thread that opens it,
    // and one of the engine's must not run the program's handler. What is blocked is so by
    // the thread's maker, or by its attributes.
    virtual_mask::inherit(blocked | given);
    if is_own {
        lifecycle::be_engines();
    }
    let stack = give_stack();
    signals::set_mask(given & !unblocked);
    if let Some(stack) = stack.filter(|_| !is_own) {
        lifecycle::enter(stack);
    }
    // SAFETY: it came from the engine's heap and is not used again.
    unsafe { HEAP.release(job.cast()) };
    let result = start(argument);
    if is_own && let Some(count) = count() {
        count.fetch_add(1, Ordering::AcqRel);
    }
    result
}

/// The C library's count of threads: the last one to end ends the process.
static COUNT: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());

/// That count, if it is known. Where it is not (before glibc 2.34), a program whose
/// main thread ends by `pthread_exit` must be ended by another of its threads.
fn count() -> Option<&'static AtomicU32> {
    // SAFETY: null, or an unsigned int of the C library's, which changes it by
    // atomic operations.
    unsafe { COUNT.load(Ordering::Relaxed).as_ref() }
}

type Out = *mut libc::pthread_t;
type Attributes = *const libc::pthread_attr_t;
type Create = unsafe extern "C" fn(Out, Attributes, Start, *mut c_void) -> i32;

fn really_create() -> Create {
    real!(pthread_create: fn(Out, Attributes, Start, *mut c_void) -> i32);
    pthread_create()
}

/// # Safety
/// As `pthread_create(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: Start,
    argument: *mut c_void,
) -> i32 {
    instance::prepare_for_threads();
    if !instance::emulates_signals() {
        // SAFETY: the C library's function of this name, with the program's arguments.
        return unsafe { really_create()(thread, attributes, start, argument) };
    }
    // SAFETY: the program's attributes, valid or null, and room for a thread's number.
    unsafe {
        let job = Job { start, argument, blocked: virtual_mask::get(), is_own: false };
        create(thread, attributes, job)
    }
}

/// What a thread of C11 is to run.
#[repr(C)]
struct C11Job {
    start: extern "C" fn(*mut c_void) -> i32,
    argument: *mut c_void,
}

extern "C" fn begin_c11(job: *mut c_void) -> *mut c_void {
    // SAFETY: `thrd_create` below wrote it there for this thread alone.
    let C11Job { start, argument } = unsafe { job.cast::<C11Job>().read() };
    // SAFETY: it came from the engine's heap and is not used again.
    unsafe { HEAP.release(job.cast()) };
    std::ptr::without_provenance_mut(start(argument) as isize as usize)
}

/// `thrd_create(3)`. The C library makes such a thread by its own `pthread_create`, and its
/// result as that of any other.
///
/// # Safety
/// As `thrd_create(3)`.
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
    // SAFETY: fresh memory of the right size and alignment; the program's number.
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
/// As `pthread_create(3)`, for what the job says.
unsafe fn create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    mut what: Job,
) -> i32 {
    what.blocked = inherited_mask(what.blocked, attributes);
    let job = HEAP.allocate(size_of::<Job>(), align_of::<Job>(), false).cast::<Job>();
    if job.is_null() {
        return libc::EAGAIN;
    }
    // SAFETY: fresh memory of the right size and alignment.
    unsafe { job.write(what) };
    // The C library reads the attributes and writes the result with all
    // signals blocked, when nothing can be brought in.
    let mut made: libc::pthread_t = 0;
    let inside = sleep_gate::enter();
    let own_stack = without_managed_stack(attributes);
    let attributes = own_stack.as_ref().map_or(attributes, std::ptr::from_ref);
    let engine = instance::engine().filter(|_| !attributes.is_null());
    let pinned = engine.map(|engine| pin_attributes(engine, attributes));
    // What it makes of the default attributes is read with signals blocked, too.
    // SAFETY: `begin` takes the Job; the attributes are valid or null, the number goes to a local.
    let result = outside_the_window(|| unsafe {
        really_create()(&raw mut made, attributes, begin, job.cast())
    });
    drop((pinned, inside));
    if result == 0 {
        // SAFETY: the caller's pointer is valid.
        unsafe { thread.write(made) };
    } else {
        // SAFETY: no thread was made that would take it.
        unsafe { HEAP.release(job.cast()) };
    }
    result
}

/// What a new thread blocks because its maker does: nothing where its
/// attributes have a mask.
fn inherited_mask(
    blocked: signals::Mask,
    attributes: *const libc::pthread_attr_t,
) -> signals::Mask {
    type GetMask = unsafe extern "C" fn(*const libc::pthread_attr_t, *mut libc::sigset_t) -> i32;
    if blocked == 0 || attributes.is_null() {
        return blocked;
    }
    // SAFETY: a C string; the C library has it from 2.32 on.
    let get = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"pthread_attr_getsigmask_np".as_ptr()) };
    if get.is_null() {
        return blocked;
    }
    // SAFETY: the function of that name.
    let get = unsafe { std::mem::transmute::<*mut c_void, GetMask>(get) };
    // SAFETY: all-zero is a valid set to write over.
    let mut mask = unsafe { std::mem::zeroed() };
    // SAFETY: a valid attribute object, and a local.
    if unsafe { get(attributes, &raw mut mask) } == 0 { 0 } else { blocked }
}

/// Starts a thread of the engine's own through the above: the C library may
/// allocate in it, and that memory is managed. Not through std, which
/// allocates from the program's heap before it blocks anything.
pub(crate) fn start_own(start: Start, argument: *mut c_void) -> io::Result<libc::pthread_t> {
    let mut thread = 0;
    let job = Job { start, argument, blocked: 0, is_own: true };
    // SAFETY: a valid C string.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__nptl_nthreads".as_ptr()) };
    COUNT.store(found.cast(), Ordering::Relaxed);
    // With signals blocked: the program's signals are the program's. Not the C
    // library's own: a `setuid` under way has a lock that is needed here.
    // SAFETY: a valid out-pointer and a function of the right type.
    let result = signals::with_blocked(!INTERNAL, || unsafe {
        create(&raw mut thread, std::ptr::null(), job)
    });
    if result != 0 {
        return Err(io::Error::from_raw_os_error(result));
    }
    // It keeps no program from ending.
    count().inspect(|count| {
        count.fetch_sub(1, Ordering::AcqRel);
    });
    Ok(thread)
}

/// What of an attribute object's extension is read, and a little more.
const REFERRED_BYTES: usize = 256;

/// Keeps the attributes in memory, and what they refer to.
fn pin_attributes(
    engine: &'static Engine,
    attributes: *const libc::pthread_attr_t,
) -> ResidentRanges<'static> {
    let mut pinned = ResidentRanges::new(engine);
    pinned.add(attributes as usize, size_of::<libc::pthread_attr_t>());
    // glibc keeps a pointer to further attributes (mask, affinity) in its
    // eighth word; whatever lies there is only read if it is managed memory.
    for word in 0..size_of::<libc::pthread_attr_t>() / size_of::<usize>() {
        // SAFETY: within the attribute object, which the caller vouches for.
        let value = unsafe { attributes.cast::<usize>().add(word).read_volatile() };
        pinned.add(value, REFERRED_BYTES);
    }
    pinned
}

/// A thread cannot live on a managed stack: the kernel itself writes to what
/// glibc keeps at its top, and the thread ends with signals blocked. It gets a
/// stack of the C library's of the same size; the other attributes stay.
fn without_managed_stack(attributes: *const libc::pthread_attr_t) -> Option<libc::pthread_attr_t> {
    if attributes.is_null() {
        return None;
    }
    let (mut base, mut len) = (std::ptr::null_mut(), 0);
    // SAFETY: a valid attribute object and out-pointers.
    let found = unsafe { libc::pthread_attr_getstack(attributes, &raw mut base, &raw mut len) };
    if found != 0 || len == 0 || !instance::is_in_window(base as usize) {
        return None;
    }
    // In glibc the object is plain data; the flag says that a stack was set.
    const STACK_ADDRESS_SET: i32 = 8;
    const FLAGS_AT: usize = 8;
    const STACK_ADDRESS_AT: usize = 24;
    // SAFETY: a valid object, copied bit by bit: what it points to is shared
    // with the original, which outlives the call.
    let mut copy = unsafe { attributes.read() };
    let bytes = (&raw mut copy).cast::<u8>();
    // SAFETY: both fields lie within the object.
    unsafe {
        let flags = bytes.add(FLAGS_AT).cast::<i32>();
        flags.write(flags.read() & !STACK_ADDRESS_SET);
        bytes.add(STACK_ADDRESS_AT).cast::<usize>().write(0);
    }
    Some(copy)
}
