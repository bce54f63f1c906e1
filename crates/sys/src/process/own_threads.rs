//! Threads that are begun by the C library's functions alone.
//!
//! The standard library has every thread of its own take a lock when it begins. A process that
//! forks just then leaves that lock held in its child for ever, and the child's threads, begun by
//! the standard library, wait for it.

use std::ffi::CStr;
use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;

/// As much as the standard library gives its own.
const STACK_BYTES: usize = 2 << 20;

type Body = Box<dyn FnOnce() + Send>;

/// A thread that is to be joined. One that is dropped goes on.
///
/// ```
/// use softswap_sys::own_threads::Thread;
/// use std::sync::atomic::{AtomicBool, Ordering};
///
/// static HAS_RUN: AtomicBool = AtomicBool::new(false);
/// let thread = Thread::begin(c"example", || HAS_RUN.store(true, Ordering::Relaxed))?;
/// thread.join();
/// assert!(HAS_RUN.load(Ordering::Relaxed));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Thread(libc::pthread_t);

impl Thread {
    /// Begins a thread with this name, of which 15 bytes count. A panic there ends it, and is told
    /// on standard error.
    ///
    /// # Errors
    /// The C library's refusal, `EAGAIN` most likely.
    pub fn begin(name: &'static CStr, body: impl FnOnce() + Send + 'static) -> io::Result<Thread> {
        let named = move || {
            // SAFETY: the name is the kernel's to read, which cuts it off where it is too long.
            unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
            if catch_unwind(AssertUnwindSafe(body)).is_err() {
                // The hook has told what, but knows no name.
                let name = name.to_string_lossy();
                let _ = writeln!(io::stderr(), "softswap: that was the thread {name}");
            }
        };
        let argument: *mut Body = Box::into_raw(Box::new(Box::new(named)));
        create(argument).map(Thread).inspect_err(|_| {
            // SAFETY: made above, and there is no thread that would use it.
            drop(unsafe { Box::from_raw(argument) });
        })
    }

    /// Waits until it has ended. In a forked child, which has no such thread, it must not be
    /// called.
    pub fn join(self) {
        // SAFETY: the thread was made to be joined, and is joined once, as this takes `self`.
        unsafe { libc::pthread_join(self.0, null_mut()) };
    }
}

fn create(argument: *mut Body) -> io::Result<libc::pthread_t> {
    let check = |errno: i32| match errno {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    };
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let attributes = attributes.as_mut_ptr();
    // SAFETY: the attributes are a local, which this makes ready to be used.
    check(unsafe { libc::pthread_attr_init(attributes) })?;
    let mut thread = 0;
    // SAFETY: the attributes were made ready, and are ended here. `run` gets an argument of the
    // type that it asks for, and is the only one to use it.
    let begun = unsafe {
        let sized = check(libc::pthread_attr_setstacksize(attributes, STACK_BYTES));
        let created = sized.and_then(|()| {
            check(libc::pthread_create(&raw mut thread, attributes, run, argument.cast()))
        });
        libc::pthread_attr_destroy(attributes);
        created
    };
    begun.map(|()| thread)
}

extern "C" fn run(argument: *mut libc::c_void) -> *mut libc::c_void {
    // SAFETY: `begin` has made it by `into_raw` for this thread alone.
    let body = unsafe { Box::from_raw(argument.cast::<Body>()) };
    body();
    null_mut()
}
