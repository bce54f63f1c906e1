//! Handler of SIGBUS, and of SIGSEGV with page protection: the program touched an absent page, or
//! made an invalid access.

use super::deliver::deliver;
use super::force_signal::force_signal;
use super::sets::engine_signals;
use super::user_mode;
use crate::base::{fault_samples, instance};
use softswap_engine::api::fault_samples::Toucher;
use softswap_engine::base::access::Access;
use softswap_engine::base::stats::{Counter, Tier};
use softswap_engine::core::errors::FaultError;
use softswap_sys::signals::{self, Action, Mask, SIGBUS, SIGSEGV, siginfo_t};
use softswap_sys::{raw, threads};
use std::ffi::c_void;
use std::io;

/// All signals are blocked while a page is faulted in: a handler of the program that touched the
/// same page would deadlock. If the fault has to wait for a free page and a signal is pending, the
/// handler returns and the touch is repeated.
const DURING_FAULT: Mask = !0;

pub(crate) fn install() -> io::Result<Action> {
    install_with(0)
}

/// Sets whether the kernel restarts the calls that this signal interrupts, as far as it restarts
/// them at all.
///
/// # Errors
/// If the kernel refuses the change.
pub(crate) fn set_call_restart(may: bool) -> io::Result<()> {
    install_with(if may { libc::SA_RESTART } else { 0 }).map(drop)
}

/// Installs the handler of faults by page protection.
pub(crate) fn install_segv() -> io::Result<Action> {
    signals::install(SIGSEGV, on_sigsegv, DURING_FAULT, 0)
}

fn install_with(flags: i32) -> io::Result<Action> {
    signals::install(SIGBUS, on_sigbus, DURING_FAULT, flags)
}

extern "C" fn on_sigbus(_signal: i32, info: *mut siginfo_t, context: *mut c_void) {
    raw::preserving_errno(|| {
        // SAFETY: `info` is from the kernel, for this SIGBUS handler.
        let address = unsafe { signals::fault_address(info) };
        // SAFETY: `info` is from the kernel, for this SIGBUS handler.
        let from_kernel = unsafe { (*info).si_code } > 0;
        // SAFETY: `info` is from the kernel, for this handler.
        let is_lost = instance::is_waking() && signals::has_lost_details(unsafe { &*info });
        // SAFETY: `info` is from the kernel, for this handler.
        if is_lost || unsafe { threads::is_question(info) } {
            // SAFETY: `context` is from the kernel, for this handler.
            unsafe { user_mode::answer(context) };
            return;
        }
        if from_kernel && instance::is_waking() && instance::is_in_window(address) {
            // No page can be faulted in yet. Repeat the touch after waking.
            instance::await_waking();
            return;
        }
        if from_kernel && instance::is_managed(address) && handle(address, context) {
            return;
        }
        // SAFETY: both are from the kernel and are passed to the program's handler unchanged.
        unsafe { deliver(SIGBUS, info, context) };
    });
}

extern "C" fn on_sigsegv(_signal: i32, info: *mut siginfo_t, context: *mut c_void) {
    raw::preserving_errno(|| {
        // SAFETY: `info` is from the kernel, for this SIGSEGV handler.
        let (address, code) = unsafe { (signals::fault_address(info), (*info).si_code) };
        let is_touch = signals::is_touch(code);
        if is_touch && instance::is_waking() && instance::is_in_window(address) {
            // No page can be faulted in yet. Repeat the touch after waking.
            instance::await_waking();
            return;
        }
        if is_touch && is_engines(address, context) && handle(address, context) {
            return;
        }
        // SAFETY: both are from the kernel and are passed to the program's handler unchanged.
        unsafe { deliver(SIGSEGV, info, context) };
    });
}

/// Returns true if the page is absent and the program itself allows the access.
fn is_engines(address: usize, context: *mut c_void) -> bool {
    // SAFETY: `context` is from the kernel, for the running handler.
    let access = unsafe { signals::fault_access(context) };
    let engine = instance::engine().filter(|engine| engine.contains(address));
    engine.is_some_and(|engine| engine.is_absent(address, access))
}

/// Faults in the page at a managed address that the interrupted code touched. Returns false if the
/// fault belongs to an unmanaged mapping.
fn handle(address: usize, context: *mut c_void) -> bool {
    // SAFETY: `context` is from the kernel, for this handler.
    let writes = unsafe { signals::fault_is_write(context) };
    let access = if writes { Access::Write } else { Access::Read };
    // SAFETY: the context that the kernel passed to the running handler, which alone uses it.
    let blocked = unsafe { *signals::interrupted_mask(context) };
    let due = fault_samples::due();
    match bring_in(address, access, !blocked) {
        Ok(from) => {
            if let (Some(due), Some(tier)) = (due, from) {
                let toucher = if writes { Toucher::Write } else { Toucher::Read };
                // SAFETY: `context` is from the kernel, for this handler.
                unsafe { fault_samples::note(due, address, toucher, tier, context) };
            }
        }
        // The program's handler runs, then the touch is repeated.
        Err(error) if error.is_for_a_signal() => {}
        // A fault of a file mapping, for example beyond the end of the file.
        Err(FaultError::Unmanaged) => return false,
        Err(error) => refuse(address, &error, context),
    }
    true
}

/// Faults in the page at a managed address. Called with signals blocked; a signal in `open`
/// interrupts a wait for a free page.
fn bring_in(address: usize, access: Access, open: Mask) -> Result<Option<Tier>, FaultError> {
    match instance::engine() {
        Some(engine) => engine.fault_until(address, access, open),
        None => Err(FaultError::NotMapped),
    }
}

/// Reports a failed fault to the interrupted code: SIGSEGV for an unmapped address, as without
/// softswap; otherwise SIGBUS, after a message.
pub(crate) fn refuse(address: usize, error: &FaultError, context: *mut c_void) {
    if matches!(error, FaultError::NotMapped) {
        let mut info = signals::segv_info(address);
        // SAFETY: valid details; `context` is the handler's.
        unsafe {
            match engine_signals() & signals::bit(SIGSEGV) {
                0 => force_signal(SIGSEGV, &raw const info, context),
                _ => deliver(SIGSEGV, &raw mut info, context),
            }
        }
        return;
    }
    explain(error);
    let mut info = failure();
    // SAFETY: valid details, which the program's handler may read.
    unsafe { deliver(SIGBUS, &raw mut info, context) };
}

/// Does the same as [`refuse`] for code of the runtime that no handler has interrupted.
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

/// Returns the details of a SIGBUS for lost memory.
fn failure() -> siginfo_t {
    // SAFETY: all-zero is a valid siginfo_t.
    let mut info: siginfo_t = unsafe { std::mem::zeroed() };
    info.si_signo = SIGBUS;
    info.si_code = libc::BUS_OBJERR;
    info
}

fn explain(error: &FaultError) {
    if let (Some(engine), Some(reason)) = (instance::engine(), error.stop_reason()) {
        engine.stats().set(Counter::StopReason, reason as u64);
    }
    let pid = raw::current_process();
    raw::write_stderr_fmt(format_args!("softswap: stopping the program (pid {pid}): {error}\n"));
}
