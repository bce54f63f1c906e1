//! Signals: the handlers through which faults and guarded calls arrive, the
//! stacks they run on, and the masks that must never contain them.

use crate::memory::PAGE_SIZE;
use crate::raw;
use std::io;

pub use libc::{SIGBUS, SIGSEGV, SIGSYS, siginfo_t};

/// What a handler is given: signal number, details, interrupted state.
pub type Handler = extern "C" fn(i32, *mut siginfo_t, *mut libc::c_void);

/// Bytes of an engine signal stack: several nested frames (each up to 11 KiB
/// with wide vector state), the guard's own arrays, and whatever the program's
/// handlers need. Populated as used.
pub const STACK_BYTES: usize = 1 << 20;
/// Bytes above the stack for what else is kept for its thread. Thread-local
/// variables would come out of the thread's own stack, which may be small.
pub const ROOM_BYTES: usize = 24 << 10;
/// All of a thread's mapping: a guard page, its stack, its room.
const THREAD_BYTES: usize = PAGE_SIZE + STACK_BYTES + ROOM_BYTES;

unsafe extern "C" {
    // The C library's own, which the runtime does not interpose.
    fn __sigaction(signal: i32, new: *const libc::sigaction, old: *mut libc::sigaction) -> i32;
}

/// A set of signals as the kernel has it: bit n-1 for signal n.
pub type Mask = u64;

/// The bit of a signal.
#[must_use]
pub const fn bit(signal: i32) -> Mask {
    1 << (signal - 1)
}

/// The signals that must always be deliverable: a blocked synchronous signal kills.
pub const NEVER_BLOCKED: Mask = bit(SIGBUS) | bit(SIGSYS);

/// Installs the engine's handler for `signal`, on the alternate stack, with
/// every signal of `mask` blocked while it runs.
pub fn install(signal: i32, handler: Handler, mask: Mask, flags: i32) -> io::Result<()> {
    // SAFETY: all-zero is a valid sigaction; the fields set are its own.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | flags;
    // Not by sigaddset, which leaves out the C library's own signals: thread
    // cancellation must not unwind out of the engine.
    // SAFETY: a sigset_t starts with the kernel's 64 bits.
    unsafe { (&raw mut action.sa_mask).cast::<Mask>().write_unaligned(mask) };
    // SAFETY: the action is valid; the handler has the SA_SIGINFO signature.
    if unsafe { __sigaction(signal, &raw const action, std::ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Sets a signal back to its default action.
pub fn set_default(signal: i32) {
    // Handler, flags, restorer, mask, as the kernel has them: SIG_DFL. Not by
    // the C library: a filter of the program's may forbid its instruction this.
    let action = [0_usize; 4];
    let args = [signal as usize, action.as_ptr() as usize, 0, size_of::<Mask>(), 0, 0];
    // SAFETY: valid action, no old one wanted.
    unsafe { raw::syscall(libc::SYS_rt_sigaction, args) };
}

/// The C library's `sigaction`, reached past the runtime's interposition.
///
/// # Safety
/// As `sigaction(2)`.
pub unsafe fn sigaction(
    signal: i32,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { __sigaction(signal, new, old) }
}

fn procmask(how: i32, mask: Mask) -> Mask {
    let mut old: Mask = 0;
    let args =
        [how as usize, &raw const mask as usize, &raw mut old as usize, size_of::<Mask>(), 0, 0];
    // SAFETY: both pointers are to live kernel-sized sets.
    unsafe { raw::syscall(libc::SYS_rt_sigprocmask, args) };
    old
}

/// Blocks every signal and returns the mask there was. While engine locks are
/// held in program context nothing may run that could fault on a managed page.
#[must_use]
pub fn block_all() -> Mask {
    procmask(libc::SIG_SETMASK, !0)
}

/// Sets the thread's mask.
pub fn set_mask(mask: Mask) {
    procmask(libc::SIG_SETMASK, mask);
}

/// Runs `body` with all signals blocked.
pub fn with_all_blocked<R>(body: impl FnOnce() -> R) -> R {
    let saved = block_all();
    let result = body();
    set_mask(saved);
    result
}

/// Gives the calling thread an engine signal stack and returns its address.
pub fn install_stack() -> io::Result<usize> {
    let len = THREAD_BYTES;
    let prot = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as usize;
    // SAFETY: a new mapping overlaps nothing.
    let base =
        raw::check(unsafe { raw::syscall(libc::SYS_mmap, [0, len, prot, flags, usize::MAX, 0]) })?;
    // The lowest page is a guard: an overflow faults instead of overwriting.
    // SAFETY: the first page of the mapping just made.
    unsafe { raw::syscall(libc::SYS_mprotect, [base, PAGE_SIZE, 0, 0, 0, 0]) };
    use_stack(base);
    Ok(base)
}

/// The room of the thread whose stack [`install_stack`] put at `base`:
/// [`ROOM_BYTES`], zeroes at first.
#[must_use]
pub fn room(base: usize) -> usize {
    base + PAGE_SIZE + STACK_BYTES
}

fn use_stack(base: usize) {
    let stack =
        libc::stack_t { ss_sp: (base + PAGE_SIZE) as *mut _, ss_flags: 0, ss_size: STACK_BYTES };
    // SAFETY: the stack is mapped, private to this thread and of ample size.
    unsafe { raw::syscall(libc::SYS_sigaltstack, [&raw const stack as usize, 0, 0, 0, 0, 0]) };
}

/// Takes the calling thread's engine stack away and frees it.
///
/// # Safety
/// `base` came from [`install_stack`] on this thread, and this is not running on
/// it; nobody uses its [`room`] any more.
pub unsafe fn remove_stack(base: usize) {
    let none =
        libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
    // SAFETY: disabling the alternate stack touches no memory.
    let disabled =
        unsafe { raw::syscall(libc::SYS_sigaltstack, [&raw const none as usize, 0, 0, 0, 0, 0]) };
    if disabled == 0 {
        // SAFETY: the mapping is this thread's own and, being disabled, unused.
        unsafe { raw::syscall(libc::SYS_munmap, [base, THREAD_BYTES, 0, 0, 0, 0]) };
    }
}

/// The address a fault handler was called for.
///
/// # Safety
/// `info` is the one a SIGBUS or SIGSEGV handler was given.
#[must_use]
pub unsafe fn fault_address(info: *const siginfo_t) -> usize {
    // SAFETY: for these signals si_addr is set.
    unsafe { (*info).si_addr() as usize }
}

/// Whether the interrupted instruction was writing.
///
/// # Safety
/// `context` is the one a SIGBUS handler was given.
#[must_use]
pub unsafe fn fault_is_write(context: *const libc::c_void) -> bool {
    let context = context.cast::<libc::ucontext_t>();
    // SAFETY: the context is a valid ucontext_t; bit 1 of the page-fault error
    // code says "write".
    unsafe { (*context).uc_mcontext.gregs[libc::REG_ERR as usize] & 2 != 0 }
}

/// The mask that will be in force when the handler returns.
///
/// # Safety
/// `context` is the one a handler was given.
#[must_use]
pub unsafe fn interrupted_mask(context: *mut libc::c_void) -> *mut Mask {
    let context = context.cast::<libc::ucontext_t>();
    // SAFETY: uc_sigmask starts with the kernel's 64-bit set.
    unsafe { (&raw mut (*context).uc_sigmask).cast::<Mask>() }
}

/// Lets a signal with the given details strike this thread, as if the kernel
/// had raised it: it is delivered when the current handler returns.
///
/// # Safety
/// `info` is a valid siginfo_t.
pub unsafe fn raise_with(signal: i32, info: *const siginfo_t) -> io::Result<()> {
    let (pid, tid) = (raw::current_process() as usize, raw::current_thread() as usize);
    // SAFETY: reads `info`; a process may send itself any details.
    raw::check(unsafe {
        raw::syscall(libc::SYS_rt_tgsigqueueinfo, [pid, tid, signal as usize, info as usize, 0, 0])
    })
    .map(drop)
}

/// A SIGSEGV at `address`, as for memory that is not mapped.
#[must_use]
pub fn segv_info(address: usize) -> siginfo_t {
    const SEGV_MAPERR: i32 = 1;
    // SAFETY: all-zero is a valid siginfo_t.
    let mut info: siginfo_t = unsafe { std::mem::zeroed() };
    info.si_signo = SIGSEGV;
    info.si_code = SEGV_MAPERR;
    // SAFETY: the union of signal details starts at byte 16 of siginfo_t on
    // 64-bit Linux and for SIGSEGV holds the address.
    unsafe { (&raw mut info).cast::<usize>().add(2).write(address) };
    info
}
