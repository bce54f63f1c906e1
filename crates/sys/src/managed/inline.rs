//! The engine inside one's own process: faults arrive by SIGBUS in the
//! touching thread, and managed memory is reached through [`Memory`].
//!
//! The preloaded runtime does the same for programs that know nothing of it.
//! This is for those that do: tests, benchmarks, libraries. They register one
//! resolver, which brings a page in, and read and write through accesses that
//! survive a refusal: a page that cannot be had is a `None` instead of the end
//! of the process.

use crate::memory::PAGE_SIZE;
use crate::signals::{self, Action, SIGBUS, SIGSEGV, siginfo_t};
use crate::{aslr, raw};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::OnceLock;

/// Brings in the page at an address that was touched (`true`: for writing).
/// It says whether the touch may be repeated. It runs in a signal handler, so
/// it must not touch managed memory or take a lock that a toucher may hold.
///
/// ```no_run
/// use softswap_sys::inline::{self, Resolver};
///
/// let refuse: Resolver = |_address, _is_write| false;
/// inline::install(refuse)?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub type Resolver = fn(address: usize, is_write: bool) -> bool;

// Every access to managed memory by this module is one of these instructions.
// They keep nothing on the stack, so a handler that refuses the touch can send
// the thread to `softswap_inline_refused`, which returns for them. Arguments:
// rdi to, rsi from or value, rdx length. Result: 1 done, 0 refused.
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

/// The resolver, and the handlers there were before ours.
struct Installed {
    resolver: Resolver,
    before: [Action; 2],
}

static INSTALLED: OnceLock<Installed> = OnceLock::new();

/// Registers the process's one resolver and handles SIGBUS and SIGSEGV.
/// Faults that are nobody's go to whoever handled them before.
///
/// # Errors
/// `AlreadyExists` when there is a resolver; otherwise the kernel's refusal.
pub fn install(resolver: Resolver) -> io::Result<()> {
    let before = [signals::action_of(SIGBUS)?, signals::action_of(SIGSEGV)?];
    if INSTALLED.set(Installed { resolver, before }).is_err() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    // Everything is blocked while a page comes in: a handler of the program's
    // that touched the same page would wait for itself.
    signals::install(SIGBUS, on_fault, !0, 0)?;
    // A touch against a range's protection is the kernel's to refuse.
    signals::install(SIGSEGV, on_fault, !0, 0).map(drop)
}

extern "C" fn on_fault(signal: i32, info: *mut siginfo_t, context: *mut libc::c_void) {
    raw::preserving_errno(|| {
        let Some(installed) = INSTALLED.get() else { return };
        // SAFETY: `info` is what the kernel gave this handler of SIGBUS and SIGSEGV.
        let (address, code) = unsafe { (signals::fault_address(info), (*info).si_code) };
        // SAFETY: `context` is what the kernel gave this handler.
        let is_write = unsafe { signals::fault_is_write(context) };
        if signal == SIGBUS && code > 0 && (installed.resolver)(address, is_write) {
            return;
        }
        // SAFETY: `context` is what the kernel gave this handler, which is running.
        if code > 0 && unsafe { refuse_access(context) } {
            return;
        }
        let before = &installed.before[usize::from(signal == SIGSEGV)];
        // The instruction is repeated and strikes again, then there.
        // Refused only for what is no signal.
        // SAFETY: the action was in force before, so whoever set it has seen to it that its
        // handler is a function for signals.
        let _ = unsafe { signals::change_action(signal, Some(before)) };
        if code <= 0 {
            // Sent, not struck: nothing would repeat it. If that fails the
            // signal is lost, which its sender must reckon with anyway.
            // SAFETY: `info` is what the kernel gave this handler.
            let _ = unsafe { signals::raise_with(signal, info) };
        }
    });
}

/// If the thread was in one of this module's accesses, makes that return 0.
///
/// # Safety
/// `context` is the running handler's.
unsafe fn refuse_access(context: *mut libc::c_void) -> bool {
    let first = softswap_inline_load as *const () as usize;
    let refused = softswap_inline_refused as *const () as usize;
    // SAFETY: the running handler's context is a `ucontext_t`, which nobody else refers
    // to meanwhile.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let at = registers[libc::REG_RIP as usize] as usize;
    if !(first..refused).contains(&at) {
        return false;
    }
    // The accesses have no frame, so the return address is on top of the stack
    // throughout and the refusal returns to the access's caller.
    registers[libc::REG_RIP as usize] = refused as i64;
    true
}

thread_local! {
    static STACK: Stack = Stack::new();
}

/// The signal stack of one thread, for as long as the thread lives.
struct Stack(usize);

impl Stack {
    fn new() -> Stack {
        match signals::install_stack() {
            Ok(base) => Stack(base),
            Err(error) => panic!("no memory for a signal stack: {error}"),
        }
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: `install_stack` has made it on this thread, whose destructors do not run
        // on it, and which handles no fault of this module's any more.
        unsafe { signals::remove_stack(self.0) };
    }
}

/// Gives the calling thread the signal stack that faults are handled on. The
/// accesses of [`Memory`] see to it themselves; calling it first keeps the
/// cost out of a measurement.
pub fn prepare_thread() {
    STACK.with(|_| ());
}

/// A view of managed memory. Offsets are in bytes from its start.
///
/// Any number of views of the same memory may exist: accesses through them are
/// the hardware's, not Rust's, and words that are aligned are read and written
/// whole.
///
/// ```
/// use softswap_sys::inline::Memory;
///
/// // Not where windows lie.
/// assert_eq!(Memory::new(0x1000, 4096), None);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    start: usize,
    len: usize,
}

impl Memory {
    /// The `len` bytes at `start`; `None` unless all of them lie where managed
    /// windows do.
    ///
    /// Nothing else lies there, and no Rust reference ever points into a
    /// window. So whatever is written through a view, no object of the program
    /// changes, and where nothing is mapped (any more) an access is refused.
    #[must_use]
    pub fn new(start: usize, len: usize) -> Option<Memory> {
        let end = start.checked_add(len)?;
        let inside = aslr::RESERVABLE.start <= start && end <= aslr::RESERVABLE.end;
        inside.then_some(Memory { start, len })
    }

    /// First address.
    #[must_use]
    pub fn address(&self) -> usize {
        self.start
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the view is of nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whole pages in the view.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.len / PAGE_SIZE
    }

    /// The address of `len` bytes at `offset`.
    ///
    /// # Panics
    /// When they do not lie in the view.
    fn at(&self, offset: usize, len: usize) -> usize {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(inside, "{len} bytes at {offset} do not lie in {} bytes", self.len);
        prepare_thread();
        self.start + offset
    }

    /// Reads a word; `None` when the page cannot be had.
    #[must_use]
    pub fn read(&self, offset: usize) -> Option<u64> {
        let mut word = 0;
        let from = self.at(offset, size_of::<u64>());
        // SAFETY: writes `word`, and reads eight bytes where only windows lie, into which
        // no Rust reference points; a read that is refused returns 0.
        let done = unsafe { softswap_inline_load(&raw mut word, from) };
        (done == 1).then_some(word)
    }

    /// Writes a word. False when the page cannot be had.
    #[must_use]
    pub fn write(&self, offset: usize, word: u64) -> bool {
        let to = self.at(offset, size_of::<u64>());
        // SAFETY: writes eight bytes where only windows lie, into which no Rust reference
        // points; a write that is refused returns 0.
        unsafe { softswap_inline_store(to, word) == 1 }
    }

    /// Fills `bytes` from `offset` on. False when a page cannot be had; what
    /// came before it is read then.
    #[must_use]
    pub fn read_bytes(&self, offset: usize, bytes: &mut [u8]) -> bool {
        let from = self.at(offset, bytes.len());
        // SAFETY: writes `bytes`, which is borrowed exclusively, for its length, and reads
        // where only windows lie; a read that is refused returns 0.
        unsafe { softswap_inline_copy(bytes.as_mut_ptr() as usize, from, bytes.len()) == 1 }
    }

    /// Writes `bytes` at `offset`. False when a page cannot be had; what lies
    /// before it is written then.
    #[must_use]
    pub fn write_bytes(&self, offset: usize, bytes: &[u8]) -> bool {
        let to = self.at(offset, bytes.len());
        // SAFETY: reads `bytes` for its length, and writes where only windows lie, into
        // which no Rust reference points; a write that is refused returns 0.
        unsafe { softswap_inline_copy(to, bytes.as_ptr() as usize, bytes.len()) == 1 }
    }

    /// Has the kernel fill the view from a descriptor. Returns the bytes read.
    ///
    /// # Errors
    /// The kernel's; EFAULT when a page is not there or may not be written.
    pub fn read_from(&self, descriptor: &impl AsRawFd) -> io::Result<usize> {
        let args = [descriptor.as_raw_fd() as usize, self.start, self.len, 0, 0, 0];
        // SAFETY: the kernel writes where only windows lie, into which no Rust reference
        // points, and answers EFAULT where it cannot.
        raw::check(unsafe { raw::syscall(libc::SYS_read, args) })
    }

    /// The view of `len` bytes of this one.
    ///
    /// # Panics
    /// When they do not lie in it.
    #[must_use]
    pub fn part(&self, offset: usize, len: usize) -> Memory {
        Memory { start: self.at(offset, len), len }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::window::{Window, Writes};
    use std::sync::Mutex;

    static WINDOW: OnceLock<Window> = OnceLock::new();
    static TOUCHES: Mutex<Vec<(usize, bool)>> = Mutex::new(Vec::new());
    static CONTENT: [u8; PAGE_SIZE] = [0x5a; PAGE_SIZE];
    const WORD: u64 = 0x5a5a_5a5a_5a5a_5a5a;

    /// Pages below 16 can be had.
    fn resolve(address: usize, is_write: bool) -> bool {
        let Some(window) = WINDOW.get().filter(|window| window.contains(address)) else {
            return false;
        };
        let page = (address - window.base()) / PAGE_SIZE;
        TOUCHES.lock().unwrap().push((page, is_write));
        page < 16 && window.install(page as u64, &CONTENT, Writes::Allowed).error.is_none()
    }

    // One test, because the resolver is the process's.
    #[test]
    fn touches_are_resolved_or_refused_and_protection_holds() {
        let window = WINDOW.get_or_init(|| Window::reserve(1, false).unwrap());
        install(resolve).unwrap();
        assert_eq!(install(resolve).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        let memory = Memory::new(window.base(), 32 * PAGE_SIZE).unwrap();

        assert_eq!(memory.read(PAGE_SIZE + 8), Some(WORD));
        assert!(memory.write(2 * PAGE_SIZE, 7));
        assert_eq!(memory.read(2 * PAGE_SIZE), Some(7));
        assert_eq!(*TOUCHES.lock().unwrap(), [(1, false), (2, true)]);

        // Across a page border, and on into a page that cannot be had.
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

        std::thread::spawn(move || assert_eq!(memory.read(9 * PAGE_SIZE), Some(WORD)))
            .join()
            .unwrap();
    }

    #[test]
    fn views_exist_only_where_windows_lie() {
        let local = 0u64;
        assert_eq!(Memory::new(&raw const local as usize, 8), None);
        assert_eq!(Memory::new(aslr::RESERVABLE.end - 8, 16), None);
        assert_eq!(Memory::new(aslr::RESERVABLE.start, usize::MAX), None);
        assert!(Memory::new(aslr::RESERVABLE.start, 16).is_some());
    }

    #[test]
    #[should_panic(expected = "do not lie in")]
    fn an_access_beyond_the_view_panics() {
        let memory = Memory::new(aslr::RESERVABLE.start, 16).unwrap();
        let _ = memory.read(9);
    }
}
