//! `pthread_create`: every thread gets a signal stack of the engine's, so that
//! a page can be brought in even when the thread's own stack is managed memory
//! (a coroutine's, say) or nearly used up.

use crate::heap::outside_the_window;
use crate::masks::INTERNAL;
use crate::pinned::Pinned;
use crate::real::real;
use crate::start;
use softswap_engine::engine::Engine;
use softswap_sys::alloc::HEAP;
use softswap_sys::signals;
use std::cell::Cell;
use std::ffi::c_void;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

pub(crate) type Start = extern "C" fn(*mut c_void) -> *mut c_void;

/// What a new thread is to run; in engine memory.
#[repr(C)]
struct Job {
    start: Start,
    argument: *mut c_void,
}

/// Key whose destructor takes a thread's signal stack away; 0 before there is one.
static KEY: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// The alternate stack the program believes it has.
    static BELIEVED: Cell<Option<Believed>> = const { Cell::new(None) };
    /// Whether this thread has the engine's.
    static HAS_OURS: Cell<bool> = const { Cell::new(false) };
}

/// A `stack_t` the program asked for.
#[derive(Clone, Copy)]
struct Believed {
    base: usize,
    flags: i32,
    len: usize,
}

pub(crate) fn adopt_main() -> io::Result<()> {
    let mut key = 0;
    // SAFETY: valid out-pointer; the destructor has the right signature.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(take_stack)) } == 0 {
        KEY.store(key + 1, Ordering::Relaxed);
    }
    signals::install_stack()?;
    HAS_OURS.set(true);
    Ok(())
}

extern "C" fn take_stack(base: *mut c_void) {
    HAS_OURS.set(false);
    // SAFETY: the value was stored by this thread when the stack was made, and
    // destructors run on the thread's ordinary stack.
    unsafe { signals::remove_stack(base as usize) };
}

fn give_stack() {
    let Ok(base) = signals::install_stack() else { return };
    HAS_OURS.set(true);
    if let Some(key) = KEY.load(Ordering::Relaxed).checked_sub(1) {
        // SAFETY: a live key of this library's.
        unsafe { libc::pthread_setspecific(key, base as *const c_void) };
    }
}

extern "C" fn begin(job: *mut c_void) -> *mut c_void {
    give_stack();
    // By the C library's own a `setuid` reaches all threads, and waits for them.
    let unblocked = signals::NEVER_BLOCKED | INTERNAL;
    signals::set_mask(signals::block_all() & !unblocked);
    // SAFETY: `pthread_create` below wrote a Job there for this thread alone.
    let Job { start, argument } = unsafe { job.cast::<Job>().read() };
    // SAFETY: it came from the engine's heap and is not used again.
    unsafe { HEAP.release(job.cast()) };
    start(argument)
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
    type Out = *mut libc::pthread_t;
    type Attributes = *const libc::pthread_attr_t;
    real!(pthread_create: fn(Out, Attributes, Start, *mut c_void) -> i32);
    let Some(engine) = start::engine() else {
        // SAFETY: the caller's promise.
        return unsafe { pthread_create()(thread, attributes, start, argument) };
    };
    let job = HEAP.allocate(size_of::<Job>(), align_of::<Job>(), false).cast::<Job>();
    if job.is_null() {
        return libc::EAGAIN;
    }
    // SAFETY: fresh memory of the right size and alignment.
    unsafe { job.write(Job { start, argument }) };
    // The C library reads the attributes and writes the result with all
    // signals blocked, when nothing can be brought in.
    let mut made: libc::pthread_t = 0;
    let own_stack = without_managed_stack(engine, attributes);
    let attributes = own_stack.as_ref().map_or(attributes, std::ptr::from_ref);
    let pinned = (!attributes.is_null()).then(|| pin_attributes(engine, attributes));
    // SAFETY: `begin` takes the Job; the rest is the caller's promise.
    let result = unsafe { pthread_create()(&raw mut made, attributes, begin, job.cast()) };
    drop(pinned);
    if result == 0 {
        // SAFETY: the caller's pointer is valid.
        unsafe { thread.write(made) };
    } else {
        // SAFETY: no thread was made that would take it.
        unsafe { HEAP.release(job.cast()) };
    }
    result
}

/// Starts a thread of the engine's own through the above: the C library may
/// allocate in it, and that memory is managed. Not through std, which
/// allocates from the program's heap before it blocks anything.
pub(crate) fn start_own(start: Start, argument: *mut c_void) -> io::Result<libc::pthread_t> {
    let mut thread = 0;
    // With signals blocked: the program's signals are the program's.
    // SAFETY: a valid out-pointer and a function of the right type.
    let result = signals::with_all_blocked(|| unsafe {
        pthread_create(&raw mut thread, std::ptr::null(), start, argument)
    });
    if result == 0 { Ok(thread) } else { Err(io::Error::from_raw_os_error(result)) }
}

/// What of an attribute object's extension is read, and a little more.
const REFERRED_BYTES: usize = 256;

/// Keeps the attributes in memory, and what they refer to.
fn pin_attributes(
    engine: &'static Engine,
    attributes: *const libc::pthread_attr_t,
) -> Pinned<'static> {
    let mut pinned = Pinned::new(engine);
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
fn without_managed_stack(
    engine: &Engine,
    attributes: *const libc::pthread_attr_t,
) -> Option<libc::pthread_attr_t> {
    if attributes.is_null() {
        return None;
    }
    let (mut base, mut len) = (std::ptr::null_mut(), 0);
    // SAFETY: a valid attribute object and out-pointers.
    let found = unsafe { libc::pthread_attr_getstack(attributes, &raw mut base, &raw mut len) };
    if found != 0 || len == 0 || !engine.contains(base as usize) {
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

/// Defines a function that allocates what `pthread_create` later hands to the
/// kernel with all signals blocked.
macro_rules! extending {
    ($($name:ident($($arg:ident: $ty:ty),*);)*) => {$(
        /// # Safety
        /// As the C library's function of the same name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> i32 {
            real!($name: fn($($ty),*) -> i32);
            // SAFETY: the caller's promise.
            outside_the_window(|| unsafe { $name()($($arg),*) })
        }
    )*};
}

extending! {
    pthread_attr_setaffinity_np(attributes: *mut libc::pthread_attr_t, len: usize, cpus: *const c_void);
    pthread_attr_setsigmask_np(attributes: *mut libc::pthread_attr_t, mask: *const libc::sigset_t);
    pthread_getattr_np(thread: libc::pthread_t, attributes: *mut libc::pthread_attr_t);
}

/// # Safety
/// As `sigaltstack(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaltstack(new: *const libc::stack_t, old: *mut libc::stack_t) -> i32 {
    if start::engine().is_none() || !HAS_OURS.get() {
        let args = [new as usize, old as usize, 0, 0, 0, 0];
        // SAFETY: the caller's promise.
        let result = unsafe { softswap_sys::raw::syscall(libc::SYS_sigaltstack, args) };
        return crate::real::c_result(result) as i32;
    }
    let before = BELIEVED.get();
    // SAFETY: the caller's pointer is valid or null.
    if let Some(new) = unsafe { new.as_ref() } {
        const SMALLEST: usize = 2048;
        let disables = new.ss_flags & libc::SS_DISABLE != 0;
        if !disables && new.ss_size < SMALLEST {
            softswap_sys::raw::set_errno(libc::ENOMEM);
            return -1;
        }
        BELIEVED.set((!disables).then_some(Believed {
            base: new.ss_sp as usize,
            flags: new.ss_flags,
            len: new.ss_size,
        }));
    }
    // SAFETY: likewise.
    if let Some(old) = unsafe { old.as_mut() } {
        *old = match before {
            Some(b) => {
                libc::stack_t { ss_sp: b.base as *mut c_void, ss_flags: b.flags, ss_size: b.len }
            }
            None => libc::stack_t {
                ss_sp: std::ptr::null_mut(),
                ss_flags: libc::SS_DISABLE,
                ss_size: 0,
            },
        };
    }
    0
}
