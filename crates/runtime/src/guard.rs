//! SIGSYS: a system call was given a pointer to managed memory.
//!
//! The kernel cannot take a fault there, so the guard does what a fault would:
//! it brings the pages in, pins them, issues the call again from an
//! instruction that the filter lets through, and unpins. Calls that move many
//! bytes are cut into pieces that fit the budget.
//!
//! The call that is issued again is the program's, so a filter of the program's
//! own judges it there. One that it traps is given to the program's handler
//! once the guard is done, as it was made.

use crate::credentials;
use crate::mappings;
use crate::masks;
use crate::pins;
use crate::real::kernel_error;
use crate::spawn;
use crate::start;
use crate::vectors;
use softswap_engine::engine::Engine;
use softswap_engine::stats::Counter;
use softswap_sys::raw;
use softswap_sys::signals::{self, Action, SIGSYS, siginfo_t};
use softswap_sys::syscall_table::{self, Pointee};
use softswap_sys::threads;
use std::cell::Cell;
use std::ffi::c_void;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

/// The kernel cuts transfers here; so does anyone who counts them.
const MAX_TRANSFER_BYTES: usize = 0x7fff_f000;

pub(crate) type Arguments = [usize; 6];

pub(crate) use crate::pins::Pins;

pub(crate) fn install() -> io::Result<Action> {
    // Nothing is blocked: the call may sleep for long, and the program's
    // handlers must run and interrupt it as they would without the guard.
    signals::install(SIGSYS, on_sigsys, 0, libc::SA_NODEFER)
}

/// Whether a filter inherited through exec already does what ours would:
/// another one would only make every call slower.
///
/// # Errors
/// When there is one that would trap what comes from the gate, too.
pub(crate) fn is_inherited(engine: &Engine) -> Result<bool, String> {
    PROBED.store(false, Ordering::Relaxed);
    // Not through the gate, and so seen by the filter. Without one the kernel
    // finds nothing readable there, or an empty path.
    // SAFETY: access(2) only reads the string, as far as it can.
    unsafe { raw::syscall_through_guard(libc::SYS_access, [engine.window().0, 0, 0, 0]) };
    if !PROBED.swap(false, Ordering::Relaxed) {
        return Ok(false);
    }
    PROBING.store(true, Ordering::Relaxed);
    issue(libc::SYS_access, [engine.window().0, 0, 0, 0, 0, 0]);
    PROBING.store(false, Ordering::Relaxed);
    if PROBED.load(Ordering::Relaxed) {
        return Err("a filter of system calls that this program inherited does not fit its \
                    memory; start it with the environment that softswap gave its parent"
            .into());
    }
    Ok(true)
}

/// Set while it is tried whether the filter lets the gate's calls pass.
static PROBING: AtomicBool = AtomicBool::new(false);
/// Set when a call was caught.
static PROBED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The call that this thread's guard answers, innermost; -1 for none.
    static ANSWERING: Cell<i64> = const { Cell::new(NONE) };
    /// What a filter of the program's own said as it trapped that call.
    static TRAPPED: Cell<Option<i32>> = const { Cell::new(None) };
}

const NONE: i64 = -1;

/// Where details of a SIGSYS lie: <asm-generic/siginfo.h>.
const CALL_ADDRESS_AT: usize = 16;
const NUMBER_AT: usize = 24;

extern "C" fn on_sigsys(_signal: i32, info: *mut siginfo_t, context: *mut c_void) {
    const SYS_SECCOMP: i32 = 1;
    raw::preserving_errno(|| {
        // SAFETY: `info` is what the kernel gave this handler; for SYS_SECCOMP
        // both words are set, else they are only not used.
        let (ours, number, caller) = unsafe {
            let bytes = info.cast::<u8>();
            (
                (*info).si_code == SYS_SECCOMP,
                i64::from(bytes.add(NUMBER_AT).cast::<i32>().read()),
                bytes.add(CALL_ADDRESS_AT).cast::<u64>().read(),
            )
        };
        // SAFETY: likewise.
        if unsafe { threads::is_interruption(info) } {
            return;
        }
        if ours && raw::is_in_gate(caller) && PROBING.load(Ordering::Relaxed) {
            PROBED.store(true, Ordering::Relaxed);
            return;
        }
        let registers = context.cast::<libc::ucontext_t>();
        if ours && raw::is_in_gate(caller) && ANSWERING.get() == number {
            // The guard's: noted for below, where the call has its own context.
            // SAFETY: the kernel's details, the context is writable.
            unsafe {
                TRAPPED.set(Some((*info).si_errno));
                (*registers).uc_mcontext.gregs[libc::REG_RAX as usize] = -i64::from(libc::ENOSYS);
            }
            return;
        }
        let mut arguments = [0; 6];
        let order = [
            libc::REG_RDI,
            libc::REG_RSI,
            libc::REG_RDX,
            libc::REG_R10,
            libc::REG_R8,
            libc::REG_R9,
        ];
        for (argument, register) in arguments.iter_mut().zip(order) {
            // SAFETY: the context holds the registers at the call.
            *argument = unsafe { (*registers).uc_mcontext.gregs[register as usize] } as usize;
        }
        let managed = arguments.iter().any(|argument| start::is_managed(*argument));
        if !ours || !managed || raw::is_in_gate(caller) {
            // A filter of the program's own, or a signal somebody sent.
            // SAFETY: the handler's own details and context.
            unsafe { masks::deliver(SIGSYS, info, context) };
            return;
        }
        let (outer, trapped) = (ANSWERING.replace(number), TRAPPED.take());
        let outer_call = pins::enter(context);
        let result = answer(number, arguments, context);
        pins::leave(outer_call);
        ANSWERING.set(outer);
        if let Some(said) = TRAPPED.replace(trapped) {
            // SAFETY: the handler's own details and context, which is as the
            // kernel left it: the call was not made.
            unsafe {
                (*info).si_errno = said;
                masks::deliver(SIGSYS, info, context);
            }
            return;
        }
        // SAFETY: the context is writable; the call returns through rax.
        unsafe { (*registers).uc_mcontext.gregs[libc::REG_RAX as usize] = result as i64 };
    });
}

/// Does what the call would have done; the kernel's result.
fn answer(number: i64, arguments: Arguments, context: *mut c_void) -> isize {
    let Some(engine) = start::engine() else { return -(libc::ENOSYS as isize) };
    PROBED.store(true, Ordering::Relaxed);
    engine.stats().add(Counter::GuardedCalls, 1);
    if let Some(result) =
        mappings::answer(engine, number, arguments).or_else(|| crate::later::refusal(number))
    {
        return result;
    }
    // SAFETY: the context is the running handler's.
    if let Some(result) = unsafe { masks::answer_trapped(number, arguments, context) } {
        return result;
    }
    if let Some(room) = credentials::room_of(number) {
        return room(arguments);
    }
    match number {
        libc::SYS_read | libc::SYS_pread64 | libc::SYS_recvfrom | libc::SYS_getrandom => {
            transfer_in(engine, number, arguments)
        }
        libc::SYS_write | libc::SYS_pwrite64 | libc::SYS_sendto => {
            transfer_out(engine, number, arguments)
        }
        libc::SYS_readv
        | libc::SYS_writev
        | libc::SYS_preadv
        | libc::SYS_pwritev
        | libc::SYS_preadv2
        | libc::SYS_pwritev2
        | libc::SYS_vmsplice
        | libc::SYS_process_vm_readv
        | libc::SYS_process_vm_writev => vectors::answer_vectors(engine, number, arguments),
        libc::SYS_sendmsg | libc::SYS_recvmsg => vectors::answer_message(engine, number, arguments),
        libc::SYS_sendmmsg | libc::SYS_recvmmsg => {
            vectors::answer_messages(engine, number, arguments)
        }
        libc::SYS_execve | libc::SYS_execveat => spawn::answer_exec(number, arguments),
        _ => pinned_call(engine, number, arguments),
    }
}

/// This thread jumps out of the call that it was answering.
pub(crate) fn left() {
    ANSWERING.set(NONE);
    TRAPPED.set(None);
}

/// Issues a call whose pointers have been brought in.
pub(crate) fn issue(number: i64, arguments: Arguments) -> isize {
    // SAFETY: the program's own call, with the program's own arguments.
    unsafe { raw::syscall_for_program(number, arguments) }
}

/// Asks the kernel something that only the engine wants to know.
pub(crate) fn ask(number: i64, arguments: Arguments) -> isize {
    // SAFETY: as for `issue`; callers ask about descriptors, into locals.
    unsafe { raw::syscall(number, arguments) }
}

/// Issues a call with what it points to brought in, if there is an engine.
pub(crate) fn issue_pinned(number: i64, arguments: Arguments) -> isize {
    match start::engine() {
        Some(engine) => pinned_call(engine, number, arguments),
        None => issue(number, arguments),
    }
}

/// A call with small structures and strings: pin them all, issue, unpin.
fn pinned_call(engine: &Engine, number: i64, mut arguments: Arguments) -> isize {
    let mut room = masks::Stripped::new();
    masks::strip(number, &mut arguments, &mut room);
    let mut pins = Pins::<12>::new(engine);
    let most = engine.pin_limit_bytes();
    for (index, pointee) in syscall_table::pointers(number) {
        let address = arguments[*index as usize];
        match *pointee {
            Pointee::Bytes(len) => {
                pins.add(address, arguments[len as usize], most);
            }
            Pointee::BytesPlus(len, extra) => {
                let len = arguments[len as usize].saturating_add(extra as usize);
                pins.add(address, len, most);
            }
            Pointee::Array(count, size) => {
                let len = arguments[count as usize].saturating_mul(size as usize);
                pins.add(address, len, most);
            }
            Pointee::Struct(len) => {
                pins.add(address, len as usize, most);
            }
            Pointee::Text => pins.add_text(address),
            _ => {}
        }
    }
    issue(number, arguments)
}

/// How the pieces of a long transfer follow each other.
fn advance(number: i64, arguments: &mut Arguments, done: usize) {
    arguments[buffer_index(number)] += done;
    arguments[buffer_index(number) + 1] -= done;
    if matches!(number, libc::SYS_pread64 | libc::SYS_pwrite64) {
        arguments[3] += done;
    }
}

fn buffer_index(number: i64) -> usize {
    usize::from(number != libc::SYS_getrandom)
}

/// Most bytes read at once from what may keep the reader waiting: the buffer
/// is pinned for as long.
const WAITING_BYTES: usize = 64 << 10;

/// Reading into a long buffer. Pipes, sockets and terminals are not read on
/// after a whole piece: the next one might wait for what never comes.
fn transfer_in(engine: &Engine, number: i64, mut arguments: Arguments) -> isize {
    let at = buffer_index(number);
    let goes_on = match number {
        libc::SYS_recvfrom => arguments[3] & libc::MSG_WAITALL as usize != 0,
        libc::SYS_getrandom => true,
        _ => arguments[2] > WAITING_BYTES && never_waits(arguments[0]),
    };
    let most = if goes_on { engine.pin_limit_bytes() } else { WAITING_BYTES };
    transfer(engine, number, &mut arguments, at, goes_on, most)
}

/// Writing a long buffer: piece after piece until one is not taken whole.
fn transfer_out(engine: &Engine, number: i64, mut arguments: Arguments) -> isize {
    transfer(engine, number, &mut arguments, 1, true, engine.pin_limit_bytes())
}

fn transfer(
    engine: &Engine,
    number: i64,
    arguments: &mut Arguments,
    at: usize,
    goes_on: bool,
    most: usize,
) -> isize {
    arguments[at + 1] = arguments[at + 1].min(MAX_TRANSFER_BYTES);
    let mut total = 0;
    loop {
        let wanted = arguments[at + 1];
        let mut pins = Pins::<4>::new(engine);
        // Past the mapped part the kernel decides: EFAULT, or a short result.
        let pinned = pins.add(arguments[at], wanted, most);
        for (index, pointee) in syscall_table::pointers(number) {
            if *index as usize != at
                && let Pointee::Struct(len) = *pointee
            {
                pins.add(arguments[*index as usize], len as usize, usize::MAX);
            }
            if let (4, Pointee::Bytes(len)) = (*index, *pointee) {
                pins.add(arguments[4], arguments[len as usize], usize::MAX);
            }
        }
        let piece = if pinned == 0 { wanted } else { pinned };
        let mut call = *arguments;
        call[at + 1] = piece;
        let result = issue(number, call);
        if result < 0 {
            return if total > 0 { total } else { result };
        }
        total += result;
        if (result as usize) < piece || piece == wanted || !goes_on {
            return total;
        }
        advance(number, arguments, result as usize);
    }
}

/// Whether a read gives all it can at once: files, disks, and devices such as
/// /dev/zero, but not pipes, sockets or terminals.
fn never_waits(fd: usize) -> bool {
    const TCGETS: usize = 0x5401;
    match file_kind(fd) {
        libc::S_IFREG | libc::S_IFBLK => true,
        libc::S_IFCHR => {
            let mut terminal = [0u8; 64];
            ask(libc::SYS_ioctl, [fd, TCGETS, terminal.as_mut_ptr() as usize, 0, 0, 0]) < 0
        }
        _ => false,
    }
}

/// What a descriptor is open on: one of the `S_IF…` values, 0 when it is not.
pub(crate) fn file_kind(fd: usize) -> libc::mode_t {
    // SAFETY: all-zero is a valid stat to write over.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    match ask(libc::SYS_fstat, [fd, &raw mut stat as usize, 0, 0, 0, 0]) {
        0 => stat.st_mode & libc::S_IFMT,
        _ => 0,
    }
}

/// The kernel's result for an engine operation.
pub(crate) fn result_of(done: io::Result<()>) -> isize {
    done.map_or_else(|error| kernel_error(&error), |()| 0)
}
