//! Handles faults of pools: SIGBUS, or SIGSEGV with page protection. Passes other signals on.
//!
//! The handler runs on the faulting thread's own stack and needs [`STACK_NEEDED_BYTES`] of it.
//! Alternate stacks do not suffice: the standard library's have 8 KiB, too little to decompress a
//! page, and most threads of other languages have none. A preloaded runtime that handles SIGBUS
//! calls this handler on the runtime's stack.

use crate::chained::Before;
use crate::futex;
use crate::raw;
use crate::signals::{self, Context, Mask, SIGBUS, SIGSEGV, siginfo_t};
use std::io;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

pub const STACK_NEEDED_BYTES: usize = 64 << 10;

pub const MAX_WINDOWS: usize = 1024;

pub trait Resolver: Send + Sync {
    /// Faults the page at `address` in; returns true if the access can be retried. Called in a
    /// signal handler with all signals blocked: must not touch managed memory, allocate, or panic.
    /// `open` are the signals that the thread itself does not block.
    fn resolve(&self, address: usize, is_write: bool, open: Mask) -> bool;

    /// Faults in and pins pages of the `len` bytes from `address`, for a system call. The rules of
    /// [`Resolver::resolve`] apply, except that the program's signals are not blocked.
    fn hold(&self, _address: usize, _len: usize, _open: Mask) -> Hold {
        Hold::Bytes(0)
    }

    fn release(&self, _address: usize, _len: usize) {}
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// This many bytes from the start of the range are pinned.
    Bytes(usize),
    /// Nothing is pinned: the thread must handle a signal first.
    Signal,
    /// Nothing is pinned, for this errno.
    Refused(i32),
}

struct Registration {
    /// First address; 0 in an unused entry.
    base: AtomicUsize,
    len: AtomicUsize,
    /// Number of handlers that use the resolver, or are about to.
    users: AtomicU32,
    resolver: AtomicPtr<Box<dyn Resolver>>,
}

static WINDOWS: [Registration; MAX_WINDOWS] = [const {
    Registration {
        base: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        users: AtomicU32::new(0),
        resolver: AtomicPtr::new(null_mut()),
    }
}; MAX_WINDOWS];
static USED: AtomicUsize = AtomicUsize::new(0);

/// Signals whose handlers are installed. Locked while windows are added or removed.
static INSTALLED: Mutex<Mask> = Mutex::new(0);
static BEFORE_SIGBUS: Before = Before::new();
static BEFORE_SIGSEGV: Before = Before::new();

/// Handles a window's faults until it is dropped.
#[derive(Debug)]
pub struct Served {
    index: usize,
    process: u32,
}

/// Handles faults of a window. A program that forks must call [`in_child`] in the child.
pub fn serve(base: usize, len: usize, resolver: Box<dyn Resolver>) -> io::Result<Served> {
    let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    for (signal, before) in [(SIGBUS, &BEFORE_SIGBUS), (SIGSEGV, &BEFORE_SIGSEGV)] {
        if signals::never_blocked() & !*installed & signals::bit(signal) != 0 {
            // All signals are blocked during a fault: a handler of the program that touched the
            // same page would wait for its own thread.
            before.install(signal, on_fault, !0, 0)?;
            *installed |= signals::bit(signal);
        }
    }
    let free = |window: &Registration| window.base.load(Ordering::Relaxed) == 0;
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
        let _guard = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
        let window = &WINDOWS[self.index];
        let resolver = window.resolver.swap(null_mut(), Ordering::SeqCst);
        let mut turns = 0;
        while window.users.load(Ordering::SeqCst) > 0 {
            futex::relax(&mut turns);
        }
        window.base.store(0, Ordering::Release);
        // SAFETY: `serve` created the pointer by `into_raw`. The swap above removed it from the
        // table, and all handlers that had found it there have finished.
        drop(unsafe { Box::from_raw(resolver) });
    }
}

/// Clears the table, first of all, in a forked child: it may map other memory at the addresses.
pub fn in_child() {
    for window in &WINDOWS[..USED.load(Ordering::Relaxed)] {
        window.resolver.store(null_mut(), Ordering::Relaxed);
        window.users.store(0, Ordering::Relaxed);
        window.base.store(0, Ordering::Relaxed);
    }
}

extern "C" fn on_fault(signal: i32, info: &mut siginfo_t, context: Context<'_>) {
    raw::preserving_errno(|| {
        let code = info.si_code;
        let is_touch = if signal == SIGBUS { code > 0 } else { signals::is_touch(code) };
        let address = signals::fault_address(info);
        if is_touch && resolve(address, context.fault_is_write(), !context.mask()) {
            return;
        }
        let before = if signal == SIGBUS { &BEFORE_SIGBUS } else { &BEFORE_SIGSEGV };
        before.pass_on(signal, info, context, true);
    });
}

fn resolve(address: usize, is_write: bool, open: Mask) -> bool {
    with_resolver(address, |resolver| resolver.resolve(address, is_write, open)) == Some(true)
}

pub(crate) fn with_resolver<R>(address: usize, body: impl FnOnce(&dyn Resolver) -> R) -> Option<R> {
    let is_in = |window: &&Registration| {
        let base = window.base.load(Ordering::Acquire);
        base != 0 && address.wrapping_sub(base) < window.len.load(Ordering::Relaxed)
    };
    let window = WINDOWS[..USED.load(Ordering::Acquire)].iter().find(is_in)?;
    window.users.fetch_add(1, Ordering::SeqCst);
    // SAFETY: the pointer is null or from `serve`. The thread that removes it waits for
    // `users`, which was incremented before this load, before it frees the value.
    let resolver = unsafe { window.resolver.load(Ordering::SeqCst).as_ref() };
    // The entry may have been reused before `users` was incremented. It cannot change now.
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

    static FORWARDED_CODE: AtomicU64 = AtomicU64::new(0);

    extern "C" fn program_handler(_signal: i32, info: &mut siginfo_t, _context: Context<'_>) {
        FORWARDED_CODE.store(1 + info.si_code as u64, Ordering::Relaxed);
    }

    fn served(content: u8, faults: Faults) -> (Served, *const u8) {
        let window = faults::taken(faults, || Window::reserve(1, false)).unwrap();
        let (base, len) = (window.base(), window.len_bytes());
        (serve(base, len, Box::new(Filled(window, content))).unwrap(), base as *const u8)
    }

    // One test, because the signals belong to the process.
    #[test]
    fn windows_have_own_resolvers() {
        for signal in [SIGBUS, SIGSEGV] {
            signals::install(signal, program_handler, 0, 0).unwrap();
        }
        let (one, ones) = served(1, Faults::Userfaultfd);
        let (two, twos) = served(2, Faults::Protection);
        // SAFETY: the pages are in the windows, and the resolvers fault them in.
        let seen = unsafe { [ones.read_volatile(), twos.add(PAGE_SIZE).read_volatile()] };
        assert_eq!(seen, [1, 2]);
        drop(one);
        let address = twos as usize;
        let other = std::thread::spawn(move || {
            // SAFETY: the page is in the second window, and its resolver faults it in.
            unsafe { (address as *const u8).read_volatile() }
        });
        assert_eq!(other.join().unwrap(), 2);
        drop(two);

        for signal in [SIGBUS, SIGSEGV] {
            FORWARDED_CODE.store(0, Ordering::Relaxed);
            // SAFETY: the signals have handlers.
            unsafe { libc::raise(signal) };
            assert_eq!(FORWARDED_CODE.load(Ordering::Relaxed) as i32, 1 + libc::SI_TKILL);
        }
    }
}
