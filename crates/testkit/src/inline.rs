//! Accesses to managed memory that survive a refused fault: the caller gets `None` or false, and
//! the process continues.
//!
//! [`serve`] resolves a window's faults by a function, through the handler of [`touches`]. That
//! handler passes a fault that it cannot resolve on to this module's handler.

use softswap_engine::api::engine::Engine;
use softswap_engine::base::access::Access;
use softswap_sys::signals::{self, Context, Mask, SIGBUS, SIGSEGV, siginfo_t};
use softswap_sys::touches::{self, Resolver, Served};
use softswap_sys::{PAGE_SIZE, aslr, raw};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Once};

// This module accesses managed memory only in these functions. They use no stack, so after a
// refused fault the handler continues at `softswap_inline_refused`, which returns 0 to their
// caller. Arguments: rdi destination, rsi source or value, rdx length. Result: 1 done, 0 refused.
core::arch::global_asm!(
    ".hidden softswap_inline_load",
    ".globl softswap_inline_load",
    "softswap_inline_load:",
    ".cfi_startproc",
    "mov rax, [rsi]",
    "mov [rdi], rax",
    "mov eax, 1",
    "ret",
    ".hidden softswap_inline_store",
    ".globl softswap_inline_store",
    "softswap_inline_store:",
    "mov [rdi], rsi",
    "mov eax, 1",
    "ret",
    ".hidden softswap_inline_copy",
    ".globl softswap_inline_copy",
    "softswap_inline_copy:",
    "mov rcx, rdx",
    "rep movsb",
    "mov eax, 1",
    "ret",
    ".hidden softswap_inline_refused",
    ".globl softswap_inline_refused",
    "softswap_inline_refused:",
    "xor eax, eax",
    "ret",
    ".cfi_endproc",
);

unsafe extern "C" {
    fn softswap_inline_load(to: *mut u64, from: usize) -> u32;
    fn softswap_inline_store(to: usize, value: u64) -> u32;
    fn softswap_inline_copy(to: usize, from: usize, len: usize) -> u32;
    fn softswap_inline_refused();
}

struct Function<F>(F);

impl<F: Fn(usize, bool) -> bool + Send + Sync> Resolver for Function<F> {
    fn resolve(&self, address: usize, is_write: bool, _open: Mask) -> bool {
        (self.0)(address, is_write)
    }
}

/// Resolves faults on the `len` bytes from `base` until the result is dropped.
///
/// `resolve(address, is_write)` faults the page in and returns true if the access can be retried.
/// It runs in a signal handler, under the rules of [`Resolver::resolve`].
///
/// # Errors
/// Returns the errors of [`touches::serve`].
pub fn serve(
    base: usize,
    len: usize,
    resolve: impl Fn(usize, bool) -> bool + Send + Sync + 'static,
) -> io::Result<Served> {
    static INSTALLED: Once = Once::new();
    // `touches` passes unresolved faults on to the handler installed before it.
    INSTALLED.call_once(|| {
        for signal in [SIGBUS, SIGSEGV] {
            signals::install(signal, on_refused_fault, !0, 0).expect("the signal can be handled");
        }
    });
    touches::serve(base, len, Box::new(Function(resolve)))
}

/// Makes an engine resolve the faults of its window until the result is dropped.
///
/// # Errors
/// Returns the errors of [`touches::serve`].
pub fn serve_engine(engine: &Arc<Engine>) -> io::Result<Served> {
    let ((base, len), engine) = (engine.window(), Arc::clone(engine));
    serve(base, len, move |address, is_write| {
        let access = if is_write { Access::Write } else { Access::Read };
        engine.fault(address, access).is_ok()
    })
}

extern "C" fn on_refused_fault(signal: i32, _info: &mut siginfo_t, context: Context<'_>) {
    if !refuse_access(context) {
        signals::set_default(signal);
        // SAFETY: the default action runs no code of this process.
        unsafe { libc::raise(signal) };
    }
}

/// Returns false if the thread was not in an access of this module.
fn refuse_access(context: Context<'_>) -> bool {
    let first = softswap_inline_load as *const () as usize;
    let refused = softswap_inline_refused as *const () as usize;
    let is_access = (first..refused).contains(&context.register(libc::REG_RIP));
    if is_access {
        // SAFETY: the functions have no stack frame, so the return address is on top of the stack,
        // as at their entry.
        unsafe { context.set_register(libc::REG_RIP, refused) };
    }
    is_access
}

/// A range of managed memory. Offsets are in bytes from its start.
///
/// Ranges may overlap, because accesses are machine instructions, not Rust references. Aligned
/// words are read and written atomically.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    start: usize,
    len: usize,
}

impl Memory {
    /// Returns the `len` bytes at `start`; `None` unless all are at addresses reserved for windows.
    ///
    /// Only windows use these addresses, and no Rust reference points into a window. So a write
    /// changes no Rust object, and an access to unmapped memory is refused.
    #[must_use]
    pub fn new(start: usize, len: usize) -> Option<Memory> {
        let end = start.checked_add(len)?;
        let inside = aslr::RESERVABLE.start <= start && end <= aslr::RESERVABLE.end;
        inside.then_some(Memory { start, len })
    }

    /// Returns the first address.
    #[must_use]
    pub fn address(&self) -> usize {
        self.start
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the range is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of whole pages.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.len / PAGE_SIZE
    }

    /// # Panics
    /// If they are not in the range.
    fn at(&self, offset: usize, len: usize) -> usize {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(inside, "{len} bytes at {offset} are not in {} bytes", self.len);
        self.start + offset
    }

    /// Reads a word. Returns `None` if the fault is refused.
    #[must_use]
    pub fn read(&self, offset: usize) -> Option<u64> {
        let mut word = 0;
        let from = self.at(offset, size_of::<u64>());
        // SAFETY: the function writes `word`, and reads eight bytes at addresses of windows, to
        // which no Rust reference exists. A refused read returns 0.
        let done = unsafe { softswap_inline_load(&raw mut word, from) };
        (done == 1).then_some(word)
    }

    /// Writes a word. Returns false if the fault is refused.
    #[must_use]
    pub fn write(&self, offset: usize, word: u64) -> bool {
        let to = self.at(offset, size_of::<u64>());
        // SAFETY: the function writes eight bytes at addresses of windows, to which no Rust
        // reference exists. A refused write returns 0.
        unsafe { softswap_inline_store(to, word) == 1 }
    }

    /// Reads `bytes`. Returns false at a refused fault, with only the bytes before that page read.
    #[must_use]
    pub fn read_bytes(&self, offset: usize, bytes: &mut [u8]) -> bool {
        let from = self.at(offset, bytes.len());
        // SAFETY: the function writes the exclusively borrowed `bytes`, and reads as many bytes at
        // addresses of windows. A refused read returns 0.
        unsafe { softswap_inline_copy(bytes.as_mut_ptr() as usize, from, bytes.len()) == 1 }
    }

    /// Writes `bytes`. Returns false at a refused fault; only bytes before that page are written.
    #[must_use]
    pub fn write_bytes(&self, offset: usize, bytes: &[u8]) -> bool {
        let to = self.at(offset, bytes.len());
        // SAFETY: the function reads `bytes`, and writes as many bytes at addresses of windows, to
        // which no Rust reference exists. A refused write returns 0.
        unsafe { softswap_inline_copy(to, bytes.as_ptr() as usize, bytes.len()) == 1 }
    }

    /// Makes the kernel read from a descriptor into the range. Returns the number of bytes.
    ///
    /// # Errors
    /// Returns the kernel's error: EFAULT if a page is not resident or not writable.
    pub fn read_from(&self, descriptor: &impl AsRawFd) -> io::Result<usize> {
        let args = [descriptor.as_raw_fd() as usize, self.start, self.len, 0, 0, 0];
        // SAFETY: the kernel writes at addresses of windows, to which no Rust reference exists. It
        // fails with EFAULT at unmapped addresses.
        raw::check(unsafe { raw::syscall(libc::SYS_read, args) })
    }

    /// Returns the `len` bytes at `offset`.
    ///
    /// # Panics
    /// If they are not in the range.
    #[must_use]
    pub fn part(&self, offset: usize, len: usize) -> Memory {
        Memory { start: self.at(offset, len), len }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use softswap_sys::window::{Window, Writes};
    use std::sync::Mutex;

    static CONTENT: [u8; PAGE_SIZE] = [0x5a; PAGE_SIZE];
    const WORD: u64 = 0x5a5a_5a5a_5a5a_5a5a;

    #[test]
    fn touches_are_resolved_or_rejected() {
        let window = Arc::new(Window::reserve(1, false).unwrap());
        let touches = Arc::new(Mutex::new(Vec::new()));
        let resolve = {
            let (window, touches) = (window.clone(), touches.clone());
            move |address: usize, is_write| {
                let page = (address - window.base()) / PAGE_SIZE;
                touches.lock().unwrap().push((page, is_write));
                page < 16 && window.install(page as u64, &CONTENT, Writes::Allowed).error.is_none()
            }
        };
        let _served = serve(window.base(), window.len_bytes(), resolve).unwrap();
        let memory = Memory::new(window.base(), 32 * PAGE_SIZE).unwrap();

        assert_eq!(memory.read(PAGE_SIZE + 8), Some(WORD));
        assert!(memory.write(2 * PAGE_SIZE, 7));
        assert_eq!(memory.read(2 * PAGE_SIZE), Some(7));
        assert_eq!(*touches.lock().unwrap(), [(1, false), (2, true)]);

        let mut bytes = [0; 2 * PAGE_SIZE];
        assert!(memory.read_bytes(3 * PAGE_SIZE + 100, &mut bytes));
        assert!(bytes.iter().all(|byte| *byte == 0x5a));
        assert!(!memory.read_bytes(15 * PAGE_SIZE, &mut bytes));
        assert!(memory.write_bytes(6 * PAGE_SIZE - 2, b"abcd"));
        assert_eq!(memory.read(20 * PAGE_SIZE), None);
        assert!(!memory.write(20 * PAGE_SIZE, 1));

        window.protect(1, 1, libc::PROT_READ).unwrap();
        assert!(!memory.write(PAGE_SIZE, 1));
        assert_eq!(memory.read(PAGE_SIZE), Some(WORD));

        let other = std::thread::spawn(move || memory.read(9 * PAGE_SIZE));
        assert_eq!(other.join().unwrap(), Some(WORD));
    }

    #[test]
    fn only_addresses_of_windows_are_accepted() {
        let local = 0u64;
        assert_eq!(Memory::new(&raw const local as usize, 8), None);
        assert_eq!(Memory::new(aslr::RESERVABLE.end - 8, 16), None);
        assert_eq!(Memory::new(aslr::RESERVABLE.start, usize::MAX), None);
        assert!(Memory::new(aslr::RESERVABLE.start, 16).is_some());
    }

    #[test]
    #[should_panic(expected = "are not in")]
    fn an_access_outside_the_range_panics() {
        let memory = Memory::new(aslr::RESERVABLE.start, 16).unwrap();
        let _ = memory.read(9);
    }
}
