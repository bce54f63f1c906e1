//! The program's own seccomp filters.
//!
//! A filter gets an exemption for the engine's calls in front of it ([`exemption`]). It judges
//! every call of the program, also those that the guard issues again ([`super::sigsys`]).
//!
//! The engine's threads exit before a filter is installed and do not start again, because the
//! filter may kill the process for the calls that this needs. The engine closes its idle rings, and
//! then uses `pread` and `pwrite`. A program started under such a filter never has threads or
//! rings.
//!
//! The filter does not see allocator calls about managed memory, which never reach the kernel. A
//! filter installed by a system-call instruction in unmanaged memory gets no exemption.

use super::pinned_call::issue_pinned;
use crate::base::errno::refused;
use crate::base::issue_call::{Arguments, issue};
use crate::base::{instance, uaccess};
use crate::memory::inline_calls;
use crate::process::{engine_threads, forked_children};
use libc::sock_fprog;
use softswap_engine::api::engine::Engine;
use softswap_sys::exemption;
use softswap_sys::seccomp::Instruction;
use softswap_sys::signals;

const SET_MODE_FILTER: usize = 1;
const MODE_FILTER: usize = 2;
const FLAG_NEW_LISTENER: usize = 1 << 3;

pub(crate) fn set(arguments: Arguments) -> isize {
    match arguments[0] {
        SET_MODE_FILTER => {
            install(libc::SYS_seccomp, arguments, arguments[1] & FLAG_NEW_LISTENER != 0)
        }
        _ => issue_pinned(libc::SYS_seccomp, arguments),
    }
}

/// `prctl(PR_SET_SECCOMP, ...)`. Strict mode fails with EINVAL, because there already is a filter.
pub(crate) fn set_by_prctl(arguments: Arguments) -> isize {
    match arguments[1] {
        MODE_FILTER => install(libc::SYS_prctl, arguments, false),
        _ => issue_pinned(libc::SYS_prctl, arguments),
    }
}

fn install(number: i64, mut arguments: Arguments, gives_descriptor: bool) -> isize {
    let Some(engine) = instance::engine() else { return issue(number, arguments) };
    let Some(mut header) = uaccess::get_user::<sock_fprog>(arguments[2]) else {
        // The kernel reports the bad pointer.
        arguments[2] = 0;
        return issue(number, arguments);
    };
    let program = instructions(&header);
    let code = match program.as_deref().map(exemption::before) {
        Some(None) => return refused(libc::ENOMEM),
        Some(Some(code)) => Some(code),
        None => None,
    };
    // Without code the filter is too short, too long, or unreadable: the kernel reports the error.
    if let Some(code) = &code {
        header = sock_fprog { len: code.len() as u16, filter: code.as_ptr().cast_mut().cast() };
    }
    arguments[2] = &raw const header as usize;
    engine_threads::without(|| {
        let is_first = restrict_engine(engine);
        let result = issue(number, arguments);
        // With TSYNC, a positive result is the ID of a thread that could not be synchronized.
        if result == 0 || result > 0 && gives_descriptor {
            engine_threads::forbid_restart();
        } else if is_first {
            exemption::undo();
        }
        result
    })
}

/// Returns true if the engine was not restricted before.
fn restrict_engine(engine: &Engine) -> bool {
    signals::with_all_blocked(|| {
        if !exemption::is_in_force() {
            forked_children::lock().provide();
        }
        let mut is_first = false;
        engine.enter_restricted_mode(|| is_first = exemption::begin());
        is_first
    })
}

fn instructions(header: &sock_fprog) -> Option<Vec<Instruction>> {
    let count = usize::from(header.len);
    if count == 0 || count > exemption::MAX_INSTRUCTIONS {
        return None;
    }
    let mut all = vec![Instruction::default(); count];
    uaccess::get_user_array(header.filter as usize, &mut all).then_some(all)
}

/// `prctl(PR_GET_SECCOMP)`. Returns 0 if there are no filters other than the guard's.
pub(crate) fn mode(arguments: Arguments) -> isize {
    if exemption::is_in_force() || inline_calls::installed_filters() > 1 + inline_calls::filters() {
        issue(libc::SYS_prctl, arguments)
    } else {
        0
    }
}
