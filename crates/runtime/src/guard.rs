//! SIGSYS: a system call was given a pointer to managed memory.
//!
//! The kernel cannot take a fault there, so the guard does what a fault would:
//! it brings the pages in, pins them, issues the call again from an
//! instruction that the filter lets through, and unpins. Calls that move data
//! have a room of their own ([`crate::transfers`]).
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
use crate::transfers::{self, Filled};
use softswap_engine::base::stats::Counter;
use softswap_engine::door::engine::Engine;
use softswap_sys::raw;
use softswap_sys::signals::{self, Action, SIGSYS, siginfo_t};
use softswap_sys::syscall_table::{self, Pointee};
use softswap_sys::threads;
use std::cell::Cell;
use std::ffi::c_void;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

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
    if let Some(result) = transfers::answer(engine, number, arguments) {
        return result;
    }
    if let Some(room) = credentials::room_of_trapped(number) {
        return room(arguments);
    }
    match number {
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

/// A call with structures, arrays and strings: pin them all, issue, unpin. All or
/// nothing: what the kernel finds missing it would call a bad pointer. Of what is more
/// than all calls together may hold as much as that: no call fills it.
fn pinned_call(engine: &Engine, number: i64, mut arguments: Arguments) -> isize {
    let mut room = masks::Stripped::new();
    masks::strip(number, &mut arguments, &mut room);
    let mut pins = Pins::<12>::new(engine);
    let mut filled = None;
    for (index, pointee) in syscall_table::pointers(number) {
        let address = arguments[*index as usize];
        let len = match *pointee {
            Pointee::Bytes(len) => arguments[len as usize],
            Pointee::BytesPlus(len, extra) => {
                arguments[len as usize].saturating_add(extra as usize)
            }
            Pointee::Array(count, size) => arguments[count as usize].saturating_mul(size as usize),
            Pointee::Struct(len) => len as usize,
            Pointee::Text => {
                pins.add_text(address);
                continue;
            }
            _ => continue,
        };
        if pins.add_in_full(address, len) {
            continue;
        }
        filled = Filled::new(&mut pins, (number, *index), address, len);
        match &filled {
            Some(filled) => arguments[*index as usize] = filled.address(),
            None if pins.add_in_turn(address, len) => {}
            None => return -(libc::ENOMEM as isize),
        }
    }
    let result = issue(number, arguments);
    filled.map_or(result, |filled| filled.hand_back(result))
}

/// The kernel's result for an engine operation.
pub(crate) fn result_of(done: io::Result<()>) -> isize {
    done.map_or_else(|error| kernel_error(&error), |()| 0)
}
