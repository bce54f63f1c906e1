//! SIGBUS, or SIGSEGV where faults are taken by page protection: the program touched an absent
//! page, or made a mistake.

use super::deliver::deliver;
use super::force_signal::force_signal;
use super::sets::ours;
use super::user_mode;
use crate::base::{fault_samples, instance};
use softswap_engine::base::access::Access;
use softswap_engine::base::stats::{Counter, Tier};
use softswap_engine::core::errors::FaultError;
use softswap_engine::door::fault_samples::Toucher;
use softswap_sys::signals::{self, Action, Mask, SIGBUS, SIGSEGV, siginfo_t};
use softswap_sys::{raw, threads};
use std::ffi::c_void;
use std::io;

/// Everything is blocked while a page comes in: a handler of the program's
/// that touched the same page would wait for itself. Where room for it has to be
/// waited for, the handler returns when a signal is pending, and the touch is repeated.
const WHILE_HANDLING: Mask = !0;

pub(crate) fn install() -> io::Result<Action> {
    install_with(0)
}

/// Calls that are interrupted by it begin anew from now on, or not any more, as far as the kernel
/// does that.
///
/// # Errors
/// When the kernel refuses it.
pub(crate) fn let_calls_restart(may: bool) -> io::Result<()> {
    install_with(if may { libc::SA_RESTART } else { 0 }).map(drop)
}

/// Installs the handler of faults that are taken by page protection.
pub(crate) fn install_segv() -> io::Result<Action> {
    signals::install(SIGSEGV, on_sigsegv, WHILE_HANDLING, 0)
}

fn install_with(flags: i32) -> io::Result<Action> {
    signals::install(SIGBUS, on_sigbus, WHILE_HANDLING, flags)
}

extern "C" fn on_sigbus(_signal: i32, info: *mut siginfo_t, context: *mut c_void) {
    raw::preserving_errno(|| {
        // SAFETY: `info` is what the kernel gave this SIGBUS handler.
        let address = unsafe { signals::fault_address(info) };
        // SAFETY: `info` is what the kernel gave this SIGBUS handler.
        let from_kernel = unsafe { (*info).si_code } > 0;
        // SAFETY: what the kernel gave to this handler.
        let is_lost = instance::is_waking() && signals::has_lost_details(unsafe { &*info });
        // SAFETY: what the kernel gave to this handler.
        if is_lost || unsafe { threads::is_question(info) } {
            // SAFETY: what the kernel gave to this handler.
            unsafe { user_mode::answer(context) };
            return;
        }
        if from_kernel && instance::is_waking() && instance::is_in_window(address) {
            // Nothing can be brought in yet: then the touch is repeated.
            instance::await_waking();
            return;
        }
        if from_kernel && instance::is_managed(address) && handle(address, context) {
            return;
        }
        // SAFETY: both are the kernel's; the program's handler gets them as is.
        unsafe { deliver(SIGBUS, info, context) };
    });
}

extern "C" fn on_sigsegv(_signal: i32, info: *mut siginfo_t, context: *mut c_void) {
    raw::preserving_errno(|| {
        // SAFETY: `info` is what the kernel gave this SIGSEGV handler.
        let (address, code) = unsafe { (signals::fault_address(info), (*info).si_code) };
        let is_touch = signals::is_touch(code);
        if is_touch && instance::is_waking() && instance::is_in_window(address) {
            // Nothing can be brought in yet: then the touch is repeated.
            instance::await_waking();
            return;
        }
        if is_touch && is_engines(address, context) && handle(address, context) {
            return;
        }
        // SAFETY: both are the kernel's; the program's handler gets them as is.
        unsafe { deliver(SIGSEGV, info, context) };
    });
}

/// Returns true if the access is one that the program itself has not forbidden.
fn is_engines(address: usize, context: *mut c_void) -> bool {
    // SAFETY: `context` is what the kernel gave the running handler.
    let access = unsafe { signals::fault_access(context) };
    let engine = instance::engine().filter(|engine| engine.contains(address));
    engine.is_some_and(|engine| engine.is_absent(address, access))
}

/// Brings in the page at a managed address that the interrupted code touched. Returns false if
/// the fault is that of a mapping which is not managed.
fn handle(address: usize, context: *mut c_void) -> bool {
    // SAFETY: `context` is what the kernel gave this handler.
    let writes = unsafe { signals::fault_is_write(context) };
    let access = if writes { Access::Write } else { Access::Read };
    // SAFETY: the context that the kernel gave to the running handler, which alone has it.
    let blocked = unsafe { *signals::interrupted_mask(context) };
    let due = fault_samples::due();
    match bring_in(address, access, !blocked) {
        Ok(from) => {
            if let (Some(due), Some(tier)) = (due, from) {
                let toucher = if writes { Toucher::Write } else { Toucher::Read };
                // SAFETY: what the kernel gave to this handler.
                unsafe { fault_samples::note(due, address, toucher, tier, context) };
            }
        }
        // The program's handler runs now, and then the touch is repeated.
        Err(error) if error.is_for_a_signal() => {}
        // A file mapping's own fault, beyond the file's end say.
        Err(FaultError::Foreign) => return false,
        Err(error) => refuse(address, &error, context),
    }
    true
}

/// Brings in the page at a managed address. With signals blocked: of those the program
/// wants the ones in `open`, and a wait for room is not to keep it from them.
fn bring_in(address: usize, access: Access, open: Mask) -> Result<Option<Tier>, FaultError> {
    match instance::engine() {
        Some(engine) => engine.fault_until(address, access, open),
        None => Err(FaultError::NotMapped),
    }
}

/// The toucher cannot have its page: SIGSEGV for an address that is not
/// mapped, as without softswap; otherwise the reason, and SIGBUS.
pub(crate) fn refuse(address: usize, error: &FaultError, context: *mut c_void) {
    if matches!(error, FaultError::NotMapped) {
        let mut info = signals::segv_info(address);
        // SAFETY: valid details; `context` is the handler's.
        unsafe {
            match ours() & signals::bit(SIGSEGV) {
                0 => force_signal(SIGSEGV, &raw const info, context),
                _ => deliver(SIGSEGV, &raw mut info, context),
            }
        }
        return;
    }
    explain(error);
    let mut info = failure();
    // SAFETY: valid details; the program's handler may look at them.
    unsafe { deliver(SIGBUS, &raw mut info, context) };
}

/// As [`refuse`], for code of the runtime's that no handler has interrupted.
pub(crate) fn raise(address: usize, error: &FaultError) {
    let info = match error {
        FaultError::NotMapped => signals::segv_info(address),
        _ => {
            explain(error);
            failure()
        }
    };
    // SAFETY: valid details.
    let _ = unsafe { signals::raise_with(info.si_signo, &raw const info) };
}

/// Details of a SIGBUS for memory that is lost.
fn failure() -> siginfo_t {
    // SAFETY: all-zero is a valid siginfo_t.
    let mut info: siginfo_t = unsafe { std::mem::zeroed() };
    info.si_signo = SIGBUS;
    info.si_code = libc::BUS_OBJERR;
    info
}

/// Tells on standard error why the program is stopped.
fn explain(error: &FaultError) {
    if let (Some(engine), Some(reason)) = (instance::engine(), error.stop_reason()) {
        engine.stats().set(Counter::StopReason, reason as u64);
    }
    let pid = raw::current_process();
    raw::write_stderr_fmt(format_args!("softswap: stopping the program (pid {pid}): {error}\n"));
}
