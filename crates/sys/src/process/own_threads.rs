//! Threads created by the C library's functions alone. Each thread of the standard library takes a
//! lock at its start: after a fork at that moment, the child's threads would block on it for ever.

use std::ffi::CStr;
use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;

/// Stack size in bytes: the standard library's default.
const STACK_BYTES: usize = 2 << 20;

type Body = Box<dyn FnOnce() + Send>;

/// A joinable thread. Dropping the value does not stop the thread.
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
    /// Starts a thread. The kernel keeps 15 bytes of its name. A panic ends it and is reported.
    pub fn begin(name: &'static CStr, body: impl FnOnce() + Send + 'static) -> io::Result<Thread> {
        let named = move || {
            // SAFETY: the kernel reads the name, a C string, and truncates it.
            unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
            if catch_unwind(AssertUnwindSafe(body)).is_err() {
                // The panic hook has reported the message, but does not know the name.
                let name = name.to_string_lossy();
                let _ = writeln!(
                    io::stderr(),
                    "softswap: the thread {name} has panicked; please report it"
                );
            }
        };
        let argument: *mut Body = Box::into_raw(Box::new(Box::new(named)));
        create(argument).map(Thread).inspect_err(|_| {
            // SAFETY: `argument` was created above, and no thread exists that uses it.
            drop(unsafe { Box::from_raw(argument) });
        })
    }

    /// Waits for the thread. Not for a forked child, which does not have it.
    pub fn join(self) {
        // SAFETY: the thread is joinable. It is joined once, because the method takes `self`.
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
    // SAFETY: the call initializes the attributes, a local.
    check(unsafe { libc::pthread_attr_init(attributes) })?;
    let mut thread = 0;
    // SAFETY: the attributes are initialized, and destroyed here; `thread` is a local. `run` gets
    // an argument of the type that it expects, and no other code uses the argument.
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
    // SAFETY: `begin` created `argument` by `into_raw` for this thread alone.
    let body = unsafe { Box::from_raw(argument.cast::<Body>()) };
    body();
    null_mut()
}
