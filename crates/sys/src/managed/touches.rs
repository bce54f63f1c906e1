//! Touches of managed memory in a program that has asked for it: SIGBUS, or SIGSEGV where faults
//! are taken by page protection. There may be several windows, each with a [`Resolver`] of its own.
//!
//! What is no touch of such a page goes to the handler that was there before, as if this one
//! were not.
//!
//! The handler runs on the stack of whoever touches, not on an alternate one: those that the
//! standard library makes for its threads have 8 KiB, too little for what unpacks a page, and
//! most threads of other languages have none. Managed memory is no stack, so there is one, and
//! the handler needs [`STACK_NEEDED_BYTES`] of it. Where the preloaded runtime has SIGBUS, it
//! calls the handler on its own.

use crate::chained::Before;
use crate::futex;
use crate::raw;
use crate::signals::{self, Mask, SIGBUS, SIGSEGV, siginfo_t};
use std::io;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// What a thread must have left of its stack where it touches managed memory.
pub const STACK_NEEDED_BYTES: usize = 64 << 10;

/// The most windows that a process has at a time.
pub const MOST_WINDOWS: usize = 1024;

/// Brings in pages of one window.
pub trait Resolver: Send + Sync {
    /// Brings in the page at a touched address; whether the touch may be repeated. In a signal
    /// handler, with all signals blocked: of those in `open` the thread would take one that
    /// came. It must not touch managed memory, nor allocate, nor panic.
    fn resolve(&self, address: usize, is_write: bool, open: Mask) -> bool;

    /// Brings pages in and keeps them in DRAM, at their addresses, for a system call that is
    /// given the `len` bytes from `address`. Under the same rules, but with the signals of the
    /// program's open.
    fn hold(&self, _address: usize, _len: usize, _open: Mask) -> Hold {
        Hold::Bytes(0)
    }

    /// Ends what [`Resolver::hold`] began.
    fn let_go(&self, _address: usize, _len: usize) {}
}

/// What became of bytes that were to be kept in DRAM.
///
/// ```
/// use softswap_sys::touches::Hold;
/// let says = |hold| match hold {
///     Hold::Bytes(_) => "give the kernel so many; the rest is another piece, or not mapped",
///     Hold::Signal => "take the signal, then ask again",
///     Hold::Refused(_) => "the call fails with this errno",
/// };
/// assert_eq!(says(Hold::Signal), "take the signal, then ask again");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// So many from the first on are kept.
    Bytes(usize),
    /// None: the thread is to take a signal first.
    Signal,
    /// None, for this reason.
    Refused(i32),
}

struct Window {
    /// 0 where there is none.
    base: AtomicUsize,
    len: AtomicUsize,
    /// Handlers that are about to use the resolver, or do.
    users: AtomicU32,
    resolver: AtomicPtr<Box<dyn Resolver>>,
}

static WINDOWS: [Window; MOST_WINDOWS] = [const {
    Window {
        base: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        users: AtomicU32::new(0),
        resolver: AtomicPtr::new(null_mut()),
    }
}; MOST_WINDOWS];
/// Windows from here on were never used.
static USED: AtomicUsize = AtomicUsize::new(0);

/// The signals whose handlers are in force. Held while windows are added.
static INSTALLED: Mutex<Mask> = Mutex::new(0);
/// The actions that the signals had before.
static BEFORE_SIGBUS: Before = Before::new();
static BEFORE_SIGSEGV: Before = Before::new();

/// A window whose touches are served until this is dropped.
///
/// ```no_run
/// use softswap_sys::signals::Mask;
/// use softswap_sys::touches::{self, Resolver};
/// use softswap_sys::window::{Window, Writes};
///
/// struct Sevens(Window);
/// impl Resolver for Sevens {
///     fn resolve(&self, address: usize, _is_write: bool, _open: Mask) -> bool {
///         let page = (address - self.0.base()) as u64 / 4096;
///         self.0.install(page, &[7; 4096], Writes::Allowed).error.is_none()
///     }
/// }
/// let window = Window::reserve(1, false)?;
/// let (base, len) = (window.base(), window.len_bytes());
/// let served = touches::serve(base, len, Box::new(Sevens(window)))?;
/// // Reads of memory in the window find sevens.
/// drop(served);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Served {
    index: usize,
    process: u32,
}

/// Has touches of the `len` bytes from `base` resolved. Who forks has the child call
/// [`in_child`].
///
/// # Errors
/// `QuotaExceeded` where there are [`MOST_WINDOWS`] already; otherwise the kernel's refusal.
pub fn serve(base: usize, len: usize, resolver: Box<dyn Resolver>) -> io::Result<Served> {
    let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    for (signal, before) in [(SIGBUS, &BEFORE_SIGBUS), (SIGSEGV, &BEFORE_SIGSEGV)] {
        if signals::never_blocked() & !*installed & signals::bit(signal) != 0 {
            // Everything is blocked while a page comes in: a handler of the program's that
            // touched the same page would wait for itself.
            before.install(signal, on_fault, !0, 0)?;
            *installed |= signals::bit(signal);
        }
    }
    let free = |window: &Window| window.base.load(Ordering::Relaxed) == 0;
    let index = WINDOWS.iter().position(free).ok_or(io::ErrorKind::QuotaExceeded)?;
    let window = &WINDOWS[index];
    window.resolver.store(Box::into_raw(Box::new(resolver)), Ordering::Relaxed);
    window.len.store(len, Ordering::Relaxed);
    window.base.store(base, Ordering::Release);
    USED.fetch_max(index + 1, Ordering::Release);
    Ok(Served { index, process: raw::current_process() })
}

impl Drop for Served {
    fn drop(&mut self) {
        // A forked child has no windows.
        if self.process != raw::current_process() {
            return;
        }
        let _adding = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
        let window = &WINDOWS[self.index];
        let resolver = window.resolver.swap(null_mut(), Ordering::SeqCst);
        let mut turns = 0;
        while window.users.load(Ordering::SeqCst) > 0 {
            futex::relax(&mut turns);
        }
        window.base.store(0, Ordering::Release);
        // SAFETY: `serve` has made it by `into_raw`; it is in the table no more, and who found
        // it there has done with it.
        drop(unsafe { Box::from_raw(resolver) });
    }
}

/// In a forked child, before anything else there: it has no windows, and what it maps may lie where
/// they are in its parent.
pub fn in_child() {
    for window in &WINDOWS[..USED.load(Ordering::Relaxed)] {
        window.resolver.store(null_mut(), Ordering::Relaxed);
        window.users.store(0, Ordering::Relaxed);
        window.base.store(0, Ordering::Relaxed);
    }
}

extern "C" fn on_fault(signal: i32, info: *mut siginfo_t, context: *mut libc::c_void) {
    raw::preserving_errno(|| {
        // SAFETY: `info` is what this handler of a fault was given.
        let (address, code) = unsafe { (signals::fault_address(info), (*info).si_code) };
        // SAFETY: `context` is what this handler was given; nobody else has it.
        let (is_write, blocked) =
            unsafe { (signals::fault_is_write(context), *signals::interrupted_mask(context)) };
        let is_touch = if signal == SIGBUS { code > 0 } else { signals::is_touch(code) };
        if is_touch && resolve(address, is_write, !blocked) {
            return;
        }
        let before = if signal == SIGBUS { &BEFORE_SIGBUS } else { &BEFORE_SIGSEGV };
        // SAFETY: both are what this handler was given.
        unsafe { before.pass_on(signal, info, context, true) };
    });
}

/// Whether the touched address is in a window, and its page came in.
fn resolve(address: usize, is_write: bool, open: Mask) -> bool {
    with_resolver(address, |resolver| resolver.resolve(address, is_write, open)) == Some(true)
}

/// Calls `body` with whoever brings in the pages of the window that an address lies in.
pub(crate) fn with_resolver<R>(address: usize, body: impl FnOnce(&dyn Resolver) -> R) -> Option<R> {
    let is_in = |window: &&Window| {
        let base = window.base.load(Ordering::Acquire);
        base != 0 && address.wrapping_sub(base) < window.len.load(Ordering::Relaxed)
    };
    let window = WINDOWS[..USED.load(Ordering::Acquire)].iter().find(is_in)?;
    window.users.fetch_add(1, Ordering::SeqCst);
    // SAFETY: null, or what `serve` has put there. Who takes it out waits for `users` before
    // freeing it, and that was counted up before this load.
    let resolver = unsafe { window.resolver.load(Ordering::SeqCst).as_ref() };
    // It may have become another window meanwhile, and now stays what it is.
    let resolver = resolver.filter(|_| is_in(&window));
    let result = resolver.map(|resolver| body(resolver.as_ref()));
    window.users.fetch_sub(1, Ordering::SeqCst);
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PAGE_SIZE;
    use crate::faults::{self, Faults};
    use crate::window::{Window, Writes};
    use std::sync::atomic::AtomicU64;

    struct Filled(Window, u8);

    impl Resolver for Filled {
        fn resolve(&self, address: usize, _is_write: bool, _open: Mask) -> bool {
            let page = ((address - self.0.base()) / PAGE_SIZE) as u64;
            page < 4 && self.0.install(page, &[self.1; PAGE_SIZE], Writes::Allowed).error.is_none()
        }
    }

    static PASSED_ON: AtomicU64 = AtomicU64::new(0);

    extern "C" fn programs(_signal: i32, info: *mut siginfo_t, _context: *mut libc::c_void) {
        // SAFETY: `info` is what the kernel gave this handler.
        PASSED_ON.store(1 + unsafe { (*info).si_code } as u64, Ordering::Relaxed);
    }

    fn served(content: u8, faults: Faults) -> (Served, *const u8) {
        let window = faults::taken(faults, || Window::reserve(1, false)).unwrap();
        let (base, len) = (window.base(), window.len_bytes());
        (serve(base, len, Box::new(Filled(window, content))).unwrap(), base as *const u8)
    }

    // One test, because the signal is the process's.
    #[test]
    fn each_window_has_its_resolver_and_the_rest_is_the_programs() {
        for signal in [SIGBUS, SIGSEGV] {
            signals::install(signal, programs, 0, 0).unwrap();
        }
        let (one, ones) = served(1, Faults::Userfaultfd);
        let (two, twos) = served(2, Faults::Protection);
        // SAFETY: pages of the windows, which are brought in.
        let seen = unsafe { [ones.read_volatile(), twos.add(PAGE_SIZE).read_volatile()] };
        assert_eq!(seen, [1, 2]);
        drop(one);
        let address = twos as usize;
        let other = std::thread::spawn(move || {
            // SAFETY: a page of the second window, which is brought in.
            unsafe { (address as *const u8).read_volatile() }
        });
        assert_eq!(other.join().unwrap(), 2);
        drop(two);

        for signal in [SIGBUS, SIGSEGV] {
            PASSED_ON.store(0, Ordering::Relaxed);
            // SAFETY: a handler is there.
            unsafe { libc::raise(signal) };
            assert_eq!(PASSED_ON.load(Ordering::Relaxed) as i32, 1 + libc::SI_TKILL);
        }
    }
}
