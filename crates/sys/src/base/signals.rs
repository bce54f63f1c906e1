//! Signals: handlers for faults and guarded calls, the stacks they run on, masks and details.

use crate::base::any_bits::AnyBits;
use crate::engine_stack;
use crate::memory::{PAGE_SIZE, map_new, protect, unmap};
use crate::program_filter;
use crate::raw;
use libc::ucontext_t;
use std::io;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

pub use libc::{SIGBUS, SIGSEGV, SIGSYS, siginfo_t};

pub type Handler = extern "C" fn(i32, &mut siginfo_t, Context<'_>);

/// Bytes for nested frames (up to 11 KiB each), the guard's arrays, and the program's handlers.
pub const STACK_BYTES: usize = 1 << 20;
/// Bytes above the stack, used in place of thread-local variables on the thread's own stack.
pub const THREAD_DATA_BYTES: usize = 48 << 10;
/// Bytes for the data that other threads read about the thread.
pub const NOTE_BYTES: usize = 320;
const THREAD_BYTES: usize =
    (PAGE_SIZE + STACK_BYTES + NOTE_BYTES + THREAD_DATA_BYTES).next_multiple_of(PAGE_SIZE);

/// A set of signals in the kernel's format: bit n-1 for signal n.
pub type Mask = u64;

pub const fn bit(signal: i32) -> Mask {
    1 << (signal - 1)
}

static NEVER_BLOCKED: AtomicU64 = AtomicU64::new(bit(SIGBUS) | bit(SIGSYS));

/// Returns the synchronous signals: if one is blocked when raised, the kernel kills the process.
#[inline]
pub fn never_blocked() -> Mask {
    NEVER_BLOCKED.load(Ordering::Relaxed)
}

/// Adds SIGSEGV, for faults by page protection. Called before any memory is managed.
pub fn never_block_segv() {
    NEVER_BLOCKED.fetch_or(bit(SIGSEGV), Ordering::Relaxed);
}

pub const SIGNALS: std::ops::RangeInclusive<i32> = 1..=64;

/// The action of a signal, in the kernel's format.
///
/// ```
/// use softswap_sys::signals::{self, Action};
///
/// let ignore = Action::new(libc::SIG_IGN, 0, 0);
/// // SAFETY: a signal that is ignored runs no code of this program.
/// let before = unsafe { signals::change_action(libc::SIGUSR1, Some(&ignore))? };
/// assert_eq!(before.handler, libc::SIG_DFL);
/// assert_eq!(signals::action_of(libc::SIGUSR1)?.handler, libc::SIG_IGN);
/// # Ok::<(), std::io::Error>(())
/// ```
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Action {
    /// `SIG_DFL`, `SIG_IGN` or a function's address.
    pub handler: usize,
    pub flags: u64,
    /// Return trampoline; 0 for the one of this module.
    pub restorer: usize,
    pub mask: Mask,
}

/// Flag of an action with a return trampoline, which x86_64 needs.
pub const SA_RESTORER: u64 = 0x0400_0000;

// SAFETY: all fields are integers.
unsafe impl AnyBits for Action {}

impl Action {
    pub const fn new(handler: usize, flags: u64, mask: Mask) -> Action {
        Action { handler, flags, restorer: 0, mask }
    }

    pub const DEFAULT: Action = Action::new(libc::SIG_DFL, 0, 0);
}

// Return trampoline of handlers. Unwinders and debuggers recognize it by these bytes, which are
// those of the C library. So no unwind entry may cover it, nor the byte before it.
core::arch::global_asm!(
    "nop",
    ".hidden softswap_signal_return; .globl softswap_signal_return; .type softswap_signal_return, @function",
    "softswap_signal_return:",
    ".byte 0x48, 0xc7, 0xc0, 0x0f, 0x00, 0x00, 0x00",
    ".byte 0x0f, 0x05",
    "nop",
    ".size softswap_signal_return, . - softswap_signal_return",
);

unsafe extern "C" {
    fn softswap_signal_return();
}

/// Returns the previous action. A raw call, because the C library's functions are interposed.
///
/// # Safety
/// The handler is a signal handler, and running it is sound at any moment.
pub unsafe fn change_action(signal: i32, new: Option<&Action>) -> io::Result<Action> {
    let kernel_action = new.map(|action| Action {
        flags: action.flags | SA_RESTORER,
        restorer: match action.restorer {
            0 => softswap_signal_return as *const () as usize,
            restorer => restorer,
        },
        ..*action
    });
    let new = kernel_action.as_ref().map_or(0, |action| std::ptr::from_ref(action) as usize);
    let mut old = Action::DEFAULT;
    let args = [signal as usize, new, &raw mut old as usize, size_of::<Mask>(), 0, 0];
    // SAFETY: the kernel reads `kernel_action` and writes `old`. The caller promises that the
    // handler is a signal handler and sound at any moment.
    raw::check(unsafe { raw::syscall(libc::SYS_rt_sigaction, args) })?;
    Ok(old)
}

pub fn action_of(signal: i32) -> io::Result<Action> {
    // SAFETY: without a new action no handler is installed.
    unsafe { change_action(signal, None) }
}

/// Installs a handler on the alternate stack, with `mask` blocked. Returns the previous action.
pub fn install(signal: i32, handler: Handler, mask: Mask, flags: i32) -> io::Result<Action> {
    let flags = (libc::SA_SIGINFO | libc::SA_ONSTACK | flags) as u64;
    let action = Action::new(handler as *const () as usize, flags, mask);
    // SAFETY: `handler` has the type that SA_SIGINFO needs. A `Handler` is a safe function, so its
    // author guarantees that it is sound in a signal handler.
    unsafe { change_action(signal, Some(&action)) }
}

pub fn set_default(signal: i32) {
    // The kernel refuses only invalid signal numbers.
    // SAFETY: the default action runs no code of this program.
    let _ = unsafe { change_action(signal, Some(&Action::DEFAULT)) };
}

static KEPT_UNBLOCKED: AtomicU64 = AtomicU64::new(0);

/// Exempts signals from blocking: another library's handlers need them to fault in its pages.
pub fn keep_unblocked(mask: Mask) {
    KEPT_UNBLOCKED.fetch_or(mask, Ordering::Relaxed);
}

fn procmask(how: i32, mask: Mask) -> Mask {
    let mut old: Mask = 0;
    let args =
        [how as usize, &raw const mask as usize, &raw mut old as usize, size_of::<Mask>(), 0, 0];
    // SAFETY: the kernel reads a set of eight bytes from `mask` and writes one to `old`.
    unsafe { raw::syscall(libc::SYS_rt_sigprocmask, args) };
    old
}

/// Returns the previous mask. Under an engine lock, no handler may fault on a managed page.
#[must_use]
pub fn block_all() -> Mask {
    procmask(libc::SIG_SETMASK, !KEPT_UNBLOCKED.load(Ordering::Relaxed))
}

pub fn set_mask(mask: Mask) {
    procmask(libc::SIG_SETMASK, mask);
}

pub fn with_all_blocked<R>(body: impl FnOnce() -> R) -> R {
    with_blocked(!0, body)
}

/// Runs `body` with the signals of `mask` blocked, and no others.
pub fn with_blocked<R>(mask: Mask, body: impl FnOnce() -> R) -> R {
    let mask = mask & !KEPT_UNBLOCKED.load(Ordering::Relaxed);
    if let Some((stacks, end)) = engine_stack::needed() {
        return with_blocked_on(stacks, end, mask, body);
    }
    let saved = procmask(libc::SIG_SETMASK, mask);
    let result = body();
    set_mask(saved);
    result
}

/// Runs `body` on the thread's signal stack if the caller's stack is managed. For C library calls
/// that touch their stack while no page can be faulted in.
pub fn with_engine_stack<R>(body: impl FnOnce() -> R) -> R {
    let Some((_, end)) = engine_stack::needed() else { return body() };
    let saved = procmask(libc::SIG_SETMASK, !never_blocked());
    // SAFETY: the engine never calls code on a managed stack from the signal stack, and no signal
    // arrives: the signal stack is free.
    let result = unsafe { engine_stack::call_on(end, |_| body()) };
    set_mask(saved);
    result
}

/// Bytes of a stack of [`with_spare_stack`]: for a function of the C library, and for handlers of
/// the program that interrupt it. Populated on use.
const SPARE_STACK_BYTES: usize = 1 << 20;

/// Runs `body` on a new stack, with the signal mask unchanged, if the caller's stack is managed.
/// For C library calls that start a program with the caller's mask: their child, which has no
/// handlers, uses the caller's frames. If there is no memory for a stack, `body` runs on the
/// caller's.
pub fn with_spare_stack<R>(body: impl FnOnce() -> R) -> R {
    if engine_stack::needed().is_none() {
        return body();
    }
    let Ok(base) = map_stack(SPARE_STACK_BYTES) else { return body() };
    // SAFETY: the mapping is new and aligned to a page, and nothing else uses it.
    let result = unsafe { engine_stack::call_on(base + SPARE_STACK_BYTES, |_| body()) };
    // SAFETY: `body` has returned, so nothing refers to its stack.
    unsafe { unmap(base, SPARE_STACK_BYTES) };
    result
}

/// Runs `body` like [`with_blocked`], from a managed stack. Pins the frames that `body` refers to.
fn with_blocked_on<R>(
    stacks: &engine_stack::Stacks,
    end: usize,
    mask: Mask,
    body: impl FnOnce() -> R,
) -> R {
    let saved = procmask(libc::SIG_SETMASK, !never_blocked());
    // SAFETY: the signal stack is free at the switch, as in `with_engine_stack`: the engine never
    // calls code on a managed stack from the signal stack, and all signals are blocked.
    let result = unsafe {
        engine_stack::call_on(end, |lowest_used| {
            let pinned = (stacks.pin)(lowest_used);
            set_mask(mask);
            let result = body();
            set_mask(!never_blocked());
            (stacks.unpin)(lowest_used, pinned);
            result
        })
    };
    set_mask(saved);
    result
}

pub fn current_mask() -> Mask {
    procmask(libc::SIG_BLOCK, 0)
}

pub fn pending() -> Mask {
    let mut set: Mask = 0;
    let args = [&raw mut set as usize, size_of::<Mask>(), 0, 0, 0, 0];
    // SAFETY: the kernel writes a set of eight bytes to `set`.
    unsafe { raw::syscall(libc::SYS_rt_sigpending, args) };
    set
}

pub fn install_stack() -> io::Result<usize> {
    let base = map_stack(THREAD_BYTES)?;
    use_stack(base);
    Ok(base)
}

/// The lowest page is a guard: an overflow faults instead of overwriting memory.
fn map_stack(len: usize) -> io::Result<usize> {
    let base = map_new(len)?;
    // SAFETY: the page was mapped just now, and nothing refers to it yet.
    let _ = unsafe { protect(base, PAGE_SIZE, libc::PROT_NONE) };
    Ok(base)
}

pub fn stack_at(base: usize) -> std::ops::Range<usize> {
    base + PAGE_SIZE..base + PAGE_SIZE + STACK_BYTES
}

/// Returns the [`NOTE_BYTES`], which leak if the thread exits by a raw system call.
pub fn note(base: usize) -> usize {
    base + PAGE_SIZE + STACK_BYTES
}

/// Returns the [`THREAD_DATA_BYTES`], zero at first.
pub fn thread_data(base: usize) -> usize {
    note(base) + NOTE_BYTES
}

pub fn alternate_stack_at(base: usize) -> libc::stack_t {
    libc::stack_t { ss_sp: (base + PAGE_SIZE) as *mut _, ss_flags: 0, ss_size: STACK_BYTES }
}

fn use_stack(base: usize) {
    let stack = alternate_stack_at(base);
    // SAFETY: the kernel reads `stack`. The memory it describes is mapped, belongs to this thread,
    // and is unmapped only after `remove_stack` has disabled the stack.
    unsafe { raw::syscall(libc::SYS_sigaltstack, [&raw const stack as usize, 0, 0, 0, 0, 0]) };
}

/// # Safety
/// `base` came from [`install_stack`] on this thread, the caller does not run on this stack, and
/// the stack's [`thread_data`] is no longer in use.
pub unsafe fn remove_stack(base: usize) {
    let none =
        libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
    // SAFETY: the kernel reads `none`, and refuses if the thread runs on the stack.
    let disabled =
        unsafe { raw::syscall(libc::SYS_sigaltstack, [&raw const none as usize, 0, 0, 0, 0, 0]) };
    if disabled == 0 {
        // SAFETY: the mapping belonged to this thread alone. Signals do not use it any more, and
        // the caller promises that its memory is not in use.
        unsafe { unmap(base, THREAD_BYTES) };
    }
}

/// Returns true for the codes of a SIGSEGV that an access to memory raised.
pub fn is_touch(code: i32) -> bool {
    const SEGV_MAPERR: i32 = 1;
    const SEGV_ACCERR: i32 = 2;
    matches!(code, SEGV_MAPERR | SEGV_ACCERR)
}

/// Raises a signal for this thread, delivered when the current handler returns.
pub fn raise_with(signal: i32, info: &siginfo_t) -> io::Result<()> {
    if program_filter::is_in_force() {
        let details = std::ptr::from_ref(info) as usize;
        let args = [raw::PIDFD_SELF as usize, signal as usize, details, 0, 0, 0];
        // SAFETY: the kernel reads one `siginfo_t` from `info`.
        if unsafe { raw::syscall(libc::SYS_pidfd_send_signal, args) } == 0 {
            return Ok(());
        }
    }
    send_with(raw::current_thread(), signal, info)
}

pub fn send_with(thread: i32, signal: i32, info: &siginfo_t) -> io::Result<()> {
    let pid = raw::current_process();
    if !program_filter::may_signal(pid) {
        return Err(io::Error::from_raw_os_error(libc::EPERM));
    }
    let details = std::ptr::from_ref(info) as usize;
    let args = [pid as usize, thread as usize, signal as usize, details, 0, 0];
    // SAFETY: the kernel reads one `siginfo_t` from `info`.
    raw::check(unsafe { raw::syscall(libc::SYS_rt_tgsigqueueinfo, args) }).map(drop)
}

pub fn segv_info(address: usize) -> siginfo_t {
    const SEGV_MAPERR: i32 = 1;
    let mut info = info_of(SIGSEGV, SEGV_MAPERR);
    // SAFETY: on 64-bit Linux, byte 16 of the 128 of siginfo_t is the address of a SIGSEGV.
    unsafe { (&raw mut info).cast::<usize>().add(2).write(address) };
    info
}

pub fn bus_info() -> siginfo_t {
    info_of(SIGBUS, libc::BUS_OBJERR)
}

pub fn kernel_info(signal: i32) -> siginfo_t {
    const SI_KERNEL: i32 = 0x80;
    info_of(signal, SI_KERNEL)
}

fn info_of(signal: i32, code: i32) -> siginfo_t {
    let mut info: siginfo_t = AnyBits::zeroed();
    info.si_signo = signal;
    info.si_code = code;
    info
}

pub fn queued_info(signal: i32, value: usize) -> siginfo_t {
    let mut info = info_of(signal, libc::SI_QUEUE);
    // SAFETY: on 64-bit Linux, byte 24 of the 128 of siginfo_t is the value.
    unsafe { (&raw mut info).cast::<usize>().add(3).write(value) };
    info
}

pub fn asynchronous_info(signal: i32, value: usize) -> siginfo_t {
    let mut info = queued_info(signal, value);
    info.si_code = libc::SI_ASYNCIO;
    // SAFETY: on 64-bit Linux process and user, 32 bits each, start at byte 16 of the 128 of
    // siginfo_t; `getuid` only returns a number.
    unsafe {
        let details = (&raw mut info).cast::<u32>().add(4);
        details.write(raw::current_process());
        details.add(1).write(libc::getuid());
    }
    info
}

/// `si_code` of the engine's signals, unused by the kernel. A positive code can be sent by a
/// process to itself only, and keeps the details at the limit of pending signals.
const OWN_CODE: i32 = 0x5373;

pub fn own_info(signal: i32, value: usize) -> siginfo_t {
    let mut info = queued_info(signal, value);
    info.si_code = OWN_CODE;
    info
}

pub fn is_own(info: &siginfo_t, value: usize) -> bool {
    info.si_code == OWN_CODE && queued_value(info) == value
}

/// Returns true if a signal lost its details at the limit of pending signals: its process ID is 0.
///
/// ```
/// use softswap_sys::signals;
/// assert!(!signals::has_lost_details(&signals::queued_info(libc::SIGSYS, 7)));
/// ```
pub fn has_lost_details(info: &siginfo_t) -> bool {
    // SAFETY: the process ID is valid for a signal that was sent, and any number for others.
    info.si_code == libc::SI_USER && unsafe { info.si_pid() } == 0
}

pub fn queued_value(info: &siginfo_t) -> usize {
    // SAFETY: the word at byte 24 is within the 128 bytes of siginfo_t, all of which the kernel or
    // this module has initialized.
    unsafe { std::ptr::from_ref(info).cast::<usize>().add(3).read() }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Registers {
    pub instruction: usize,
    pub stack: usize,
    pub frame: usize,
}

/// The state of the interrupted code, which the return of the running handler restores.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct Context<'a>(NonNull<ucontext_t>, PhantomData<&'a ucontext_t>);

impl Context<'_> {
    /// # Safety
    /// `context` is the argument of a handler, or a copy of it with the same layout. It is only
    /// used while it is valid, by the thread of that handler, and nothing refers to its fields.
    pub const unsafe fn of(context: *mut ucontext_t) -> Self {
        // SAFETY: the caller promises a valid address.
        Context(unsafe { NonNull::new_unchecked(context) }, PhantomData)
    }

    pub const fn as_ptr(self) -> *mut ucontext_t {
        self.0.as_ptr()
    }

    pub fn register(self, register: i32) -> usize {
        // SAFETY: the context is valid, with the registers in it, and used by this thread alone.
        unsafe { (*self.as_ptr()).uc_mcontext.gregs[register as usize] as usize }
    }

    /// # Safety
    /// The interrupted code may continue with this value in the register.
    pub unsafe fn set_register(self, register: i32, value: usize) {
        // SAFETY: the context is valid, with the registers in it, and used by this thread alone.
        unsafe { (*self.as_ptr()).uc_mcontext.gregs[register as usize] = value as i64 };
    }

    pub fn stack(self) -> usize {
        self.register(libc::REG_RSP)
    }

    pub fn registers(self) -> Registers {
        let [instruction, stack, frame] =
            [libc::REG_RIP, libc::REG_RSP, libc::REG_RBP].map(|register| self.register(register));
        Registers { instruction, stack, frame }
    }

    /// Returns the mask that takes effect when the handler returns.
    pub fn mask(self) -> Mask {
        // SAFETY: the context is valid and used by this thread alone. Its `uc_sigmask` starts with
        // the kernel's 64-bit set.
        unsafe { (&raw const (*self.as_ptr()).uc_sigmask).cast::<Mask>().read_unaligned() }
    }

    pub fn set_mask(self, mask: Mask) {
        // SAFETY: the context and its `uc_sigmask` are valid, as in `mask`.
        unsafe { (&raw mut (*self.as_ptr()).uc_sigmask).cast::<Mask>().write_unaligned(mask) };
    }

    /// Returns the access that raised SIGBUS or SIGSEGV, as a protection bit.
    pub fn fault_access(self) -> i32 {
        // Bits of the page-fault error code.
        const WRITES: usize = 2;
        const FETCHES: usize = 16;
        match self.register(libc::REG_ERR) {
            error if error & WRITES != 0 => libc::PROT_WRITE,
            error if error & FETCHES != 0 => libc::PROT_EXEC,
            _ => libc::PROT_READ,
        }
    }

    pub fn fault_is_write(self) -> bool {
        self.fault_access() == libc::PROT_WRITE
    }
}

pub fn fault_address(info: &siginfo_t) -> usize {
    // SAFETY: the address is within siginfo_t, of which every byte is initialized.
    unsafe { info.si_addr() as usize }
}

#[derive(Debug, Clone, Copy)]
pub struct TrappedCall {
    pub by_filter: bool,
    pub number: i64,
    /// Address after the call's instruction.
    pub caller: u64,
    pub arguments: [usize; 6],
}

impl TrappedCall {
    /// Reads the details of a SIGSYS. Without a filter they contain no call.
    pub fn of(info: &siginfo_t, context: Context<'_>) -> TrappedCall {
        const SYS_SECCOMP: i32 = 1;
        // Offsets within the details of a SIGSYS: <asm-generic/siginfo.h>.
        const CALL_ADDRESS_AT: usize = 16;
        const NUMBER_AT: usize = 24;
        const ORDER: [i32; 6] = [
            libc::REG_RDI,
            libc::REG_RSI,
            libc::REG_RDX,
            libc::REG_R10,
            libc::REG_R8,
            libc::REG_R9,
        ];
        let bytes = std::ptr::from_ref(info).cast::<u8>();
        // SAFETY: both words are within siginfo_t, of which every byte is initialized.
        let (number, caller) = unsafe {
            (
                bytes.add(NUMBER_AT).cast::<i32>().read(),
                bytes.add(CALL_ADDRESS_AT).cast::<u64>().read(),
            )
        };
        TrappedCall {
            by_filter: info.si_code == SYS_SECCOMP,
            number: i64::from(number),
            caller,
            arguments: ORDER.map(|register| context.register(register)),
        }
    }

    /// # Safety
    /// `context` is that of a trapped call.
    pub unsafe fn set_result(context: Context<'_>, result: isize) {
        // SAFETY: a call returns its result in rax.
        unsafe { context.set_register(libc::REG_RAX, result as usize) };
    }

    /// Restarts the call when the handler returns.
    ///
    /// # Safety
    /// `context` is that of a call with this number, just after its instruction.
    pub unsafe fn restart_syscall(context: Context<'_>, number: i64) {
        const INSTRUCTION_BYTES: usize = 2;
        // SAFETY: before its call the thread had the number in rax, and these arguments.
        unsafe {
            let next = context.register(libc::REG_RIP);
            context.set_register(libc::REG_RIP, next - INSTRUCTION_BYTES);
            context.set_register(libc::REG_RAX, number as usize);
        }
    }
}
