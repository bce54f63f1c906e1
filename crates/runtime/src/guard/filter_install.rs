//! The program's own seccomp filters.
//!
//! A filter is installed as the program gives it, with what the engine needs
//! in front of it ([`exemption`]). It judges every call that the program makes,
//! as without softswap: those that the guard issues again, too. A call that it
//! traps there the program's SIGSYS handler gets as it was made
//! ([`super::sigsys`]).
//!
//! The engine's own threads have ended when it is installed, and do not start
//! again: what a thread's start and end take the filter may kill for. Its rings are
//! given up while nothing is under way in them, and pages come and go by plain reads
//! and writes. A program that is started under such a filter has none of these from
//! the beginning.
//!
//! Two things are not shown to it. What the allocator's calls about managed
//! memory come to (`mmap`, `munmap`, `madvise`, `brk`) never reaches the
//! kernel. And a filter that is installed by an instruction of the program's
//! own, from memory that is not managed, is not seen here.

use super::pinned_call::issue_pinned;
use crate::base::errno::refused;
use crate::base::issue_call::{Arguments, issue};
use crate::base::{instance, uaccess};
use crate::memory::inline_calls;
use crate::process::{engine_threads, forked_children};
use softswap_engine::door::engine::Engine;
use softswap_sys::exemption;
use softswap_sys::seccomp::Instruction;
use softswap_sys::signals;

const SET_MODE_FILTER: usize = 1;
const MODE_FILTER: usize = 2;
const FLAG_NEW_LISTENER: usize = 1 << 3;

/// As the kernel has it: `struct sock_fprog`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Program {
    len: u16,
    filter: *const Instruction,
}

/// `seccomp(2)`.
pub(crate) fn set(arguments: Arguments) -> isize {
    match arguments[0] {
        SET_MODE_FILTER => {
            install(libc::SYS_seccomp, arguments, arguments[1] & FLAG_NEW_LISTENER != 0)
        }
        _ => issue_pinned(libc::SYS_seccomp, arguments),
    }
}

/// `prctl(PR_SET_SECCOMP, ...)`. The strict mode the kernel refuses (EINVAL) to
/// whoever has a filter already.
pub(crate) fn set_by_prctl(arguments: Arguments) -> isize {
    match arguments[1] {
        MODE_FILTER => install(libc::SYS_prctl, arguments, false),
        _ => issue_pinned(libc::SYS_prctl, arguments),
    }
}

/// Installs a filter by the call that the program made; its result.
fn install(number: i64, mut arguments: Arguments, gives_descriptor: bool) -> isize {
    let Some(engine) = instance::engine() else { return issue(number, arguments) };
    // SAFETY: a number and a pointer, of which any bytes are valid.
    let Some(header) = (unsafe { uaccess::get_user::<Program>(arguments[2]) }) else {
        // The kernel says what it says to a pointer that is bad.
        arguments[2] = 0;
        return issue(number, arguments);
    };
    let program = instructions(&header);
    let code = match program.as_deref().map(exemption::before) {
        Some(None) => return refused(libc::ENOMEM),
        Some(Some(code)) => Some(code),
        None => None,
    };
    let own = match &code {
        Some(code) => Program { len: code.len() as u16, filter: code.as_ptr() },
        // Too short, too long, or not readable: the kernel says which.
        None => Program { len: header.len, filter: header.filter },
    };
    arguments[2] = &raw const own as usize;
    engine_threads::without(|| {
        let is_first = get_ready(engine);
        let result = issue(number, arguments);
        // With all threads wanted, a thread's number says that it has another one.
        if result == 0 || result > 0 && gives_descriptor {
            engine_threads::stay_ended();
        } else if is_first {
            exemption::undo();
        }
        result
    })
}

/// From now on the engine calls only what filters let pass. True if it was not so
/// before.
fn get_ready(engine: &Engine) -> bool {
    signals::with_all_blocked(|| {
        if !exemption::is_in_force() {
            forked_children::lock().provide();
        }
        let mut is_first = false;
        engine.make_do(|| is_first = exemption::begin());
        is_first
    })
}

/// The filter's instructions, if there are as many as may be and all can be read.
fn instructions(header: &Program) -> Option<Vec<Instruction>> {
    let count = usize::from(header.len);
    if count == 0 || count > exemption::MOST_INSTRUCTIONS {
        return None;
    }
    let mut all = vec![Instruction::default(); count];
    // SAFETY: plain numbers, of which any bytes are valid.
    unsafe { uaccess::get_user_array(header.filter as usize, &mut all) }.then_some(all)
}

/// `prctl(PR_GET_SECCOMP)`: whether there is a filter beside the guard's.
pub(crate) fn mode(arguments: Arguments) -> isize {
    if exemption::is_in_force() || inline_calls::installed_filters() > 1 + inline_calls::filters() {
        issue(libc::SYS_prctl, arguments)
    } else {
        0
    }
}
