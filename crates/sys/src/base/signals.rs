//! Signals: the handlers through which faults and guarded calls arrive, the
//! stacks they run on, and the masks that must never contain them.

use crate::engine_stack;
use crate::memory::{PAGE_SIZE, map_new};
use crate::program_filter;
use crate::raw;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

pub use libc::{SIGBUS, SIGSEGV, SIGSYS, siginfo_t};

/// What a handler is given: signal number, details, interrupted state.
///
/// ```
/// use softswap_sys::signals::{self, Handler, siginfo_t};
///
/// extern "C" fn on_alarm(_signal: i32, _info: *mut siginfo_t, _context: *mut libc::c_void) {}
///
/// let handler: Handler = on_alarm;
/// signals::install(libc::SIGALRM, handler, 0, 0)?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub type Handler = extern "C" fn(i32, *mut siginfo_t, *mut libc::c_void);

/// Bytes of an engine signal stack: several nested frames (each up to 11 KiB
/// with wide vector state), the guard's own arrays, and whatever the program's
/// handlers need. Populated as used.
pub const STACK_BYTES: usize = 1 << 20;
/// Bytes above the stack for what else is kept for its thread. Thread-local
/// variables would come out of the thread's own stack, which may be small.
pub const ROOM_BYTES: usize = 48 << 10;
/// Bytes for what others know of the thread.
pub const NOTE_BYTES: usize = 320;
/// All of a thread's mapping: a guard page, its stack, what others know of it, its room.
const THREAD_BYTES: usize =
    (PAGE_SIZE + STACK_BYTES + NOTE_BYTES + ROOM_BYTES).next_multiple_of(PAGE_SIZE);

/// A set of signals as the kernel has it: bit n-1 for signal n.
///
/// ```
/// use softswap_sys::signals::{self, Mask};
///
/// let mask: Mask = signals::bit(libc::SIGINT) | signals::bit(libc::SIGTERM);
/// signals::with_blocked(mask, || assert_eq!(signals::current_mask(), mask));
/// ```
pub type Mask = u64;

/// The bit of a signal.
#[must_use]
pub const fn bit(signal: i32) -> Mask {
    1 << (signal - 1)
}

static NEVER_BLOCKED: AtomicU64 = AtomicU64::new(bit(SIGBUS) | bit(SIGSYS));

/// The signals that must always be deliverable: a blocked synchronous signal kills.
#[must_use]
#[inline]
pub fn never_blocked() -> Mask {
    NEVER_BLOCKED.load(Ordering::Relaxed)
}

/// Adds SIGSEGV to [`never_blocked`]: faults are taken by page protection. Called before any
/// memory is managed.
pub fn never_block_segv() {
    NEVER_BLOCKED.fetch_or(bit(SIGSEGV), Ordering::Relaxed);
}

/// The signals that can be pending or blocked.
pub const SIGNALS: std::ops::RangeInclusive<i32> = 1..=64;

/// What a signal does, as the kernel has it.
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
    /// The kernel's flags.
    pub flags: u64,
    /// The way back; 0 for that of handlers which return to the kernel by themselves.
    pub restorer: usize,
    /// What is blocked while the handler runs.
    pub mask: Mask,
}

/// Says that the action has a way back; x86_64 needs one.
pub const SA_RESTORER: u64 = 0x0400_0000;

impl Action {
    /// An action without flags that blocks nothing else.
    #[must_use]
    pub const fn new(handler: usize, flags: u64, mask: Mask) -> Action {
        Action { handler, flags, restorer: 0, mask }
    }

    /// The default.
    pub const DEFAULT: Action = Action::new(libc::SIG_DFL, 0, 0);
}

// The way back from a handler. Unwinders and debuggers know it by these very bytes, as
// the C library's; so no unwind entry may cover it, nor the byte before.
core::arch::global_asm!(
    "nop",
    ".hidden softswap_signal_return",
    ".globl softswap_signal_return",
    ".type softswap_signal_return, @function",
    "softswap_signal_return:",
    ".byte 0x48, 0xc7, 0xc0, 0x0f, 0x00, 0x00, 0x00",
    ".byte 0x0f, 0x05",
    "nop",
    ".size softswap_signal_return, . - softswap_signal_return",
);

unsafe extern "C" {
    fn softswap_signal_return();
}

/// Changes what a signal does, if there is a new action, and returns what it did before.
/// By a call of our own: the C library's functions of every name are interposed.
///
/// # Safety
/// The handler is a function for signals, and what it does is sound at any moment.
pub unsafe fn change_action(signal: i32, new: Option<&Action>) -> io::Result<Action> {
    let ours = new.map(|action| Action {
        flags: action.flags | SA_RESTORER,
        restorer: match action.restorer {
            0 => softswap_signal_return as *const () as usize,
            restorer => restorer,
        },
        ..*action
    });
    let new = ours.as_ref().map_or(0, |action| std::ptr::from_ref(action) as usize);
    let mut old = Action::DEFAULT;
    let args = [signal as usize, new, &raw mut old as usize, size_of::<Mask>(), 0, 0];
    // SAFETY: the kernel reads `ours` and writes `old`. A handler that is called from
    // now on is a function for signals, sound at any moment, as asked for above.
    raw::check(unsafe { raw::syscall(libc::SYS_rt_sigaction, args) })?;
    Ok(old)
}

/// What a signal does.
pub fn action_of(signal: i32) -> io::Result<Action> {
    // SAFETY: without a new action no handler is installed.
    unsafe { change_action(signal, None) }
}

/// Installs the engine's handler for `signal`, on the alternate stack, with
/// every signal of `mask` blocked while it runs. Returns what there was.
pub fn install(signal: i32, handler: Handler, mask: Mask, flags: i32) -> io::Result<Action> {
    let flags = (libc::SA_SIGINFO | libc::SA_ONSTACK | flags) as u64;
    let action = Action::new(handler as *const () as usize, flags, mask);
    // SAFETY: a function of the type that SA_SIGINFO asks for. It is safe to call, so
    // it takes care by itself of what it may do in a signal handler.
    unsafe { change_action(signal, Some(&action)) }
}

/// Sets a signal back to its default action.
pub fn set_default(signal: i32) {
    // Refused only for what is no signal.
    // SAFETY: the default action runs no code of this program.
    let _ = unsafe { change_action(signal, Some(&Action::DEFAULT)) };
}

/// What [`block_all`] and [`with_blocked`] leave open.
static LEFT_OPEN: AtomicU64 = AtomicU64::new(0);

/// From now on [`block_all`] and [`with_blocked`] leave these signals open: by them somebody
/// else brings in pages of this process, such as those of its heap.
pub fn leave_open(mask: Mask) {
    LEFT_OPEN.fetch_or(mask, Ordering::Relaxed);
}

fn procmask(how: i32, mask: Mask) -> Mask {
    let mut old: Mask = 0;
    let args =
        [how as usize, &raw const mask as usize, &raw mut old as usize, size_of::<Mask>(), 0, 0];
    // SAFETY: the kernel reads a set of eight bytes from `mask` and writes one to `old`.
    unsafe { raw::syscall(libc::SYS_rt_sigprocmask, args) };
    old
}

/// Blocks every signal and returns the mask there was. While engine locks are
/// held in program context nothing may run that could fault on a managed page.
#[must_use]
pub fn block_all() -> Mask {
    procmask(libc::SIG_SETMASK, !LEFT_OPEN.load(Ordering::Relaxed))
}

/// Sets the thread's mask.
pub fn set_mask(mask: Mask) {
    procmask(libc::SIG_SETMASK, mask);
}

/// Runs `body` with all signals blocked.
pub fn with_all_blocked<R>(body: impl FnOnce() -> R) -> R {
    with_blocked(!0, body)
}

/// Runs `body` with the signals of `mask` blocked, and no others.
pub fn with_blocked<R>(mask: Mask, body: impl FnOnce() -> R) -> R {
    let mask = mask & !LEFT_OPEN.load(Ordering::Relaxed);
    if let Some((stacks, end)) = engine_stack::needed() {
        return with_blocked_on(stacks, end, mask, body);
    }
    let saved = procmask(libc::SIG_SETMASK, mask);
    let result = body();
    set_mask(saved);
    result
}

/// Runs `body` on the thread's signal stack, with all signals blocked that faults do not need, if
/// the caller's stack is managed. For calls of the C library that touch their stack when nothing
/// can be brought in.
pub fn with_engine_stack<R>(body: impl FnOnce() -> R) -> R {
    let Some((_, end)) = engine_stack::needed() else { return body() };
    let saved = procmask(libc::SIG_SETMASK, !never_blocked());
    // SAFETY: no code of the engine's runs beneath a managed stack, and no signal comes: the
    // signal stack is free.
    let result = unsafe { engine_stack::call_on(end, |_| body()) };
    set_mask(saved);
    result
}

/// As [`with_blocked`], for a caller on a managed stack: the frames that `body` refers to
/// are pinned meanwhile.
fn with_blocked_on<R>(
    stacks: &engine_stack::Stacks,
    end: usize,
    mask: Mask,
    body: impl FnOnce() -> R,
) -> R {
    let saved = procmask(libc::SIG_SETMASK, !never_blocked());
    // SAFETY: as above.
    let result = unsafe {
        engine_stack::call_on(end, |left_at| {
            let pinned = (stacks.pin)(left_at);
            set_mask(mask);
            let result = body();
            set_mask(!never_blocked());
            (stacks.unpin)(left_at, pinned);
            result
        })
    };
    set_mask(saved);
    result
}

/// The mask in force.
#[must_use]
pub fn current_mask() -> Mask {
    procmask(libc::SIG_BLOCK, 0)
}

/// What waits for this thread to unblock it.
#[must_use]
pub fn pending() -> Mask {
    let mut set: Mask = 0;
    let args = [&raw mut set as usize, size_of::<Mask>(), 0, 0, 0, 0];
    // SAFETY: the kernel writes a set of eight bytes to `set`.
    unsafe { raw::syscall(libc::SYS_rt_sigpending, args) };
    set
}

/// Gives the calling thread an engine signal stack and returns its address.
pub fn install_stack() -> io::Result<usize> {
    let base = map_new(THREAD_BYTES)?;
    // The lowest page is a guard: an overflow faults instead of overwriting.
    // SAFETY: a page that was mapped just now, to which nothing refers yet.
    unsafe { raw::syscall(libc::SYS_mprotect, [base, PAGE_SIZE, 0, 0, 0, 0]) };
    use_stack(base);
    Ok(base)
}

/// The addresses of the stack that [`install_stack`] made at `base`.
#[must_use]
pub fn stack_at(base: usize) -> std::ops::Range<usize> {
    base + PAGE_SIZE..base + PAGE_SIZE + STACK_BYTES
}

/// [`NOTE_BYTES`] of the thread whose stack [`install_stack`] put at `base`. They stay as
/// long as the stack: for good where the thread ends by an instruction of its own.
#[must_use]
pub fn note(base: usize) -> usize {
    base + PAGE_SIZE + STACK_BYTES
}

/// The room of the thread whose stack [`install_stack`] put at `base`:
/// [`ROOM_BYTES`], zeroes at first.
#[must_use]
pub fn room(base: usize) -> usize {
    note(base) + NOTE_BYTES
}

/// The stack that [`install_stack`] made at `base`, as the kernel knows it.
#[must_use]
pub fn alternate_stack_at(base: usize) -> libc::stack_t {
    libc::stack_t { ss_sp: (base + PAGE_SIZE) as *mut _, ss_flags: 0, ss_size: STACK_BYTES }
}

fn use_stack(base: usize) {
    let stack = alternate_stack_at(base);
    // SAFETY: the kernel reads `stack`. What it describes is mapped, this thread's
    // alone, and not unmapped before `remove_stack` has disabled it.
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
    // SAFETY: the kernel reads `none`, and refuses while it is the stack in use.
    let disabled =
        unsafe { raw::syscall(libc::SYS_sigaltstack, [&raw const none as usize, 0, 0, 0, 0, 0]) };
    if disabled == 0 {
        // SAFETY: the mapping was this thread's alone. Signals do not use it any more, nor
        // does anybody use the room in it, as asked for above.
        unsafe { raw::syscall(libc::SYS_munmap, [base, THREAD_BYTES, 0, 0, 0, 0]) };
    }
}

/// The address a fault handler was called for.
///
/// # Safety
/// `info` is the one a SIGBUS or SIGSEGV handler was given.
#[must_use]
pub unsafe fn fault_address(info: *const siginfo_t) -> usize {
    // SAFETY: details that a handler was given can be read, and for these signals
    // `si_addr` is set.
    unsafe { (*info).si_addr() as usize }
}

/// Whether the interrupted instruction was writing.
///
/// # Safety
/// `context` is the one a SIGBUS handler was given.
#[must_use]
pub unsafe fn fault_is_write(context: *const libc::c_void) -> bool {
    let context = context.cast::<libc::ucontext_t>();
    // SAFETY: a handler's context is a `ucontext_t`, with the registers in it. Bit 1
    // of the page-fault error code says "write".
    unsafe { (*context).uc_mcontext.gregs[libc::REG_ERR as usize] & 2 != 0 }
}

/// The access that the interrupted instruction made, as a bit of a protection.
///
/// # Safety
/// `context` is the one a SIGSEGV handler was given.
#[must_use]
pub unsafe fn fault_access(context: *const libc::c_void) -> i32 {
    const FETCHES: i64 = 16;
    let context = context.cast::<libc::ucontext_t>();
    // SAFETY: as in `fault_is_write`; bit 4 says "instruction fetch".
    unsafe {
        match (*context).uc_mcontext.gregs[libc::REG_ERR as usize] {
            _ if fault_is_write(context.cast()) => libc::PROT_WRITE,
            error if error & FETCHES != 0 => libc::PROT_EXEC,
            _ => libc::PROT_READ,
        }
    }
}

/// Returns true if a SIGSEGV with this code was raised for a touch of memory that is not mapped,
/// or that is mapped with another protection.
#[must_use]
pub fn is_touch(code: i32) -> bool {
    const SEGV_MAPERR: i32 = 1;
    const SEGV_ACCERR: i32 = 2;
    matches!(code, SEGV_MAPERR | SEGV_ACCERR)
}

/// The mask that will be in force when the handler returns.
///
/// # Safety
/// `context` is the one a handler was given.
#[must_use]
pub unsafe fn interrupted_mask(context: *mut libc::c_void) -> *mut Mask {
    let context = context.cast::<libc::ucontext_t>();
    // SAFETY: a handler's context is a `ucontext_t`, whose `uc_sigmask` starts with the
    // kernel's 64-bit set; only its address is taken.
    unsafe { (&raw mut (*context).uc_sigmask).cast::<Mask>() }
}

/// Lets a signal with the given details strike this thread, as if the kernel
/// had raised it: it is delivered when the current handler returns.
///
/// # Safety
/// `info` points to a siginfo_t, or to nothing: the kernel copies it, and answers
/// EFAULT where it cannot.
pub unsafe fn raise_with(signal: i32, info: *const siginfo_t) -> io::Result<()> {
    if program_filter::is_in_force() {
        let args = [raw::PIDFD_SELF as usize, signal as usize, info as usize, 0, 0, 0];
        // SAFETY: the kernel copies `info`, and answers EFAULT where it cannot be read.
        if unsafe { raw::syscall(libc::SYS_pidfd_send_signal, args) } == 0 {
            return Ok(());
        }
    }
    // SAFETY: `info` is only handed on to the kernel, which answers EFAULT where it
    // cannot be read.
    unsafe { send_with(raw::current_thread(), signal, info) }
}

/// Sends a signal with the given details to a thread of this process.
///
/// # Safety
/// `info` points to a siginfo_t, or to nothing: the kernel copies it, and answers
/// EFAULT where it cannot.
pub unsafe fn send_with(thread: i32, signal: i32, info: *const siginfo_t) -> io::Result<()> {
    let (pid, tid) = (raw::current_process(), thread as usize);
    if !program_filter::may_signal(pid) {
        return Err(io::Error::from_raw_os_error(libc::EPERM));
    }
    let pid = pid as usize;
    // SAFETY: the kernel copies `info`, and answers EFAULT where it cannot be read.
    raw::check(unsafe {
        raw::syscall(libc::SYS_rt_tgsigqueueinfo, [pid, tid, signal as usize, info as usize, 0, 0])
    })
    .map(drop)
}

/// A SIGSEGV at `address`, as for memory that is not mapped.
#[must_use]
pub fn segv_info(address: usize) -> siginfo_t {
    const SEGV_MAPERR: i32 = 1;
    let mut info = info_of(SIGSEGV, SEGV_MAPERR);
    // SAFETY: the union of signal details starts at byte 16 of the 128 of siginfo_t on
    // 64-bit Linux, and for SIGSEGV holds the address.
    unsafe { (&raw mut info).cast::<usize>().add(2).write(address) };
    info
}

/// Details of a signal that the kernel raises without more to say.
#[must_use]
pub fn kernel_info(signal: i32) -> siginfo_t {
    const SI_KERNEL: i32 = 0x80;
    info_of(signal, SI_KERNEL)
}

/// Details of a signal, all other bytes zero.
fn info_of(signal: i32, code: i32) -> siginfo_t {
    // SAFETY: integers and padding, for which zero is valid.
    let mut info: siginfo_t = unsafe { std::mem::zeroed() };
    info.si_signo = signal;
    info.si_code = code;
    info
}

/// Details of a queued signal with a value.
#[must_use]
pub fn queued_info(signal: i32, value: usize) -> siginfo_t {
    let mut info = info_of(signal, libc::SI_QUEUE);
    // SAFETY: process, user and value start at byte 16 of the 128 of siginfo_t on 64-bit
    // Linux, the value at byte 24.
    unsafe { (&raw mut info).cast::<usize>().add(3).write(value) };
    info
}

/// Details of the signal that tells of an asynchronous request.
#[must_use]
pub fn asynchronous_info(signal: i32, value: usize) -> siginfo_t {
    let mut info = queued_info(signal, value);
    info.si_code = libc::SI_ASYNCIO;
    // SAFETY: process and user, of 32 bits each, start at byte 16 of the 128 of
    // siginfo_t on 64-bit Linux; `getuid` only tells a number.
    unsafe {
        let details = (&raw mut info).cast::<u32>().add(4);
        details.write(raw::current_process());
        details.add(1).write(libc::getuid());
    }
    info
}

/// What says that a signal of a thread to itself is one of our own: no other code is like it.
/// Being positive, as only such may be, it keeps its details where the user has as many signals
/// pending as are allowed; others lose them.
const OWN_CODE: i32 = 0x5373;

/// Details of a signal of our own, with a value that tells what it is for.
#[must_use]
pub fn own_info(signal: i32, value: usize) -> siginfo_t {
    let mut info = queued_info(signal, value);
    info.si_code = OWN_CODE;
    info
}

/// Whether these are details of a signal of our own, with that value.
#[must_use]
pub fn is_own(info: &siginfo_t, value: usize) -> bool {
    info.si_code == OWN_CODE && queued_value(info) == value
}

/// Whether the details of a signal were lost, because as many signals are pending as are allowed:
/// then it seems to come from nobody.
///
/// ```
/// use softswap_sys::signals;
/// assert!(!signals::has_lost_details(&signals::queued_info(libc::SIGSYS, 7)));
/// ```
#[must_use]
pub fn has_lost_details(info: &siginfo_t) -> bool {
    // SAFETY: of a signal that was sent these are valid; of others some number.
    info.si_code == libc::SI_USER && unsafe { info.si_pid() } == 0
}

/// The value of a queued signal.
#[must_use]
pub fn queued_value(info: &siginfo_t) -> usize {
    // SAFETY: the word at byte 24 of the 128 of siginfo_t, of which the kernel, or
    // whoever made it here, has written every byte.
    unsafe { std::ptr::from_ref(info).cast::<usize>().add(3).read() }
}

/// The stack pointer of what a handler has interrupted.
///
/// # Safety
/// `context` is the one a handler was given.
#[must_use]
pub unsafe fn interrupted_stack(context: *const libc::c_void) -> usize {
    let context = context.cast::<libc::ucontext_t>();
    // SAFETY: a handler's context is a `ucontext_t`, with the registers in it.
    unsafe { (*context).uc_mcontext.gregs[libc::REG_RSP as usize] as usize }
}

/// Where an interrupted thread was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Registers {
    /// The instruction that it is to go on with.
    pub instruction: usize,
    /// The stack pointer.
    pub stack: usize,
    /// The frame pointer, where code has one.
    pub frame: usize,
}

/// Where the thread was that a handler has interrupted.
///
/// # Safety
/// `context` is the one a handler was given.
#[must_use]
pub unsafe fn interrupted_registers(context: *const libc::c_void) -> Registers {
    // SAFETY: a handler's context is a `ucontext_t`, with the registers in it.
    let registers = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let [instruction, stack, frame] = [libc::REG_RIP, libc::REG_RSP, libc::REG_RBP]
        .map(|register| registers[register as usize] as usize);
    Registers { instruction, stack, frame }
}

/// The system call that a filter has trapped.
#[derive(Debug, Clone, Copy)]
pub struct TrappedCall {
    /// Whether it is such a call: others may send the signal, too.
    pub by_filter: bool,
    /// Which call it is.
    pub number: i64,
    /// Where the instruction is that made it.
    pub caller: u64,
    /// What it was given.
    pub arguments: [usize; 6],
}

impl TrappedCall {
    /// What the kernel says of it.
    ///
    /// # Safety
    /// `info` and `context` are what the running handler of SIGSYS was given.
    #[must_use]
    pub unsafe fn of(info: *const siginfo_t, context: *const libc::c_void) -> TrappedCall {
        const SYS_SECCOMP: i32 = 1;
        // Where details of a SIGSYS lie: <asm-generic/siginfo.h>.
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
        // SAFETY: details of a signal are as long as that; for SYS_SECCOMP both words are set,
        // else they are only not used. A handler's context is a `ucontext_t`.
        unsafe {
            let bytes = info.cast::<u8>();
            let registers = &(*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
            TrappedCall {
                by_filter: (*info).si_code == SYS_SECCOMP,
                number: i64::from(bytes.add(NUMBER_AT).cast::<i32>().read()),
                caller: bytes.add(CALL_ADDRESS_AT).cast::<u64>().read(),
                arguments: ORDER.map(|register| registers[register as usize] as usize),
            }
        }
    }

    /// Has the call return `result`.
    ///
    /// # Safety
    /// `context` is what the running handler of SIGSYS was given, which alone has it.
    pub unsafe fn answer(context: *mut libc::c_void, result: isize) {
        // SAFETY: a handler's context is a `ucontext_t`; a call returns through rax.
        unsafe {
            let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
            registers[libc::REG_RAX as usize] = result as i64;
        }
    }

    /// Has the thread make the call again: it returns to the instruction, two bytes long.
    ///
    /// # Safety
    /// `context` is what the running handler of SIGSYS was given, which alone has it, for a call
    /// of this number.
    pub unsafe fn make_again(context: *mut libc::c_void, number: i64) {
        const INSTRUCTION_BYTES: i64 = 2;
        // SAFETY: a handler's context is a `ucontext_t`.
        unsafe {
            let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
            registers[libc::REG_RIP as usize] -= INSTRUCTION_BYTES;
            registers[libc::REG_RAX as usize] = number;
        }
    }
}
