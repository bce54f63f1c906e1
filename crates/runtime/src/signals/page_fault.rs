//! Handler of SIGBUS, and of SIGSEGV with page protection: absent pages and invalid accesses.

use super::deliver::deliver;
use super::force_signal::force_signal;
use super::sets::engine_signals;
use super::user_mode;
use crate::base::{fault_samples, instance};
use softswap_engine::api::fault_samples::Toucher;
use softswap_engine::base::access::Access;
use softswap_engine::base::stats::{Counter, Tier};
use softswap_engine::core::errors::{FaultError, RAISE_MEMORY};
use softswap_sys::signals::{self, Action, Context, Mask, SIGBUS, SIGSEGV, siginfo_t};
use softswap_sys::{raw, threads};
use std::io;

/// All signals: a handler of the program that touched the same page would deadlock. A wait for a
/// free page ends if a signal is pending; the touch is repeated after the program's handler.
const DURING_FAULT: Mask = !0;

pub(crate) fn install() -> io::Result<Action> {
    install_with(0)
}

/// Sets whether the kernel restarts calls that SIGBUS interrupts. It never restarts some calls.
pub(crate) fn set_call_restart(may: bool) -> io::Result<()> {
    install_with(if may { libc::SA_RESTART } else { 0 }).map(drop)
}

pub(crate) fn install_segv() -> io::Result<Action> {
    signals::install(SIGSEGV, on_sigsegv, DURING_FAULT, 0)
}

fn install_with(flags: i32) -> io::Result<Action> {
    signals::install(SIGBUS, on_sigbus, DURING_FAULT, flags)
}

extern "C" fn on_sigbus(_signal: i32, info: &mut siginfo_t, context: Context<'_>) {
    raw::preserving_errno(|| {
        let is_lost = instance::is_waking() && signals::has_lost_details(info);
        if is_lost || threads::is_question(info) {
            user_mode::answer_query(context);
            return;
        }
        let (address, from_kernel) = (signals::fault_address(info), info.si_code > 0);
        if from_kernel && instance::is_waking() && instance::is_in_window(address) {
            // No page can be faulted in yet. Return after waking, so that the touch is repeated.
            instance::await_waking();
            return;
        }
        if from_kernel && instance::is_managed(address) && handle(address, context) {
            return;
        }
        deliver(SIGBUS, info, context);
    });
}

extern "C" fn on_sigsegv(_signal: i32, info: &mut siginfo_t, context: Context<'_>) {
    raw::preserving_errno(|| {
        let address = signals::fault_address(info);
        let is_touch = signals::is_touch(info.si_code);
        if is_touch && instance::is_waking() && instance::is_in_window(address) {
            instance::await_waking();
            return;
        }
        if is_touch && is_absent_page(address, context) && handle(address, context) {
            return;
        }
        deliver(SIGSEGV, info, context);
    });
}

/// Returns true if the page is absent, and the program's protection allows the access.
fn is_absent_page(address: usize, context: Context<'_>) -> bool {
    let engine = instance::engine().filter(|engine| engine.contains(address));
    engine.is_some_and(|engine| engine.is_absent(address, context.fault_access()))
}

/// Returns false if the address is in an unmanaged mapping.
fn handle(address: usize, context: Context<'_>) -> bool {
    let (access, toucher) = match context.fault_is_write() {
        true => (Access::Write, Toucher::Write),
        false => (Access::Read, Toucher::Read),
    };
    let due = fault_samples::due();
    match fault_in(address, access, !context.mask()) {
        Ok(from) => {
            if let (Some(due), Some(tier)) = (due, from) {
                fault_samples::record(due, address, toucher, tier, context);
            }
        }
        Err(error) if error.is_for_a_signal() => {}
        // For example a touch of a file mapping beyond the end of the file.
        Err(FaultError::Unmanaged) => return false,
        Err(error) => report_failure(address, &error, context),
    }
    true
}

/// Called with signals blocked; a signal in `open` interrupts a wait for a free page.
fn fault_in(address: usize, access: Access, open: Mask) -> Result<Option<Tier>, FaultError> {
    match instance::engine() {
        Some(engine) => engine.fault_until(address, access, open),
        None => Err(FaultError::NotMapped),
    }
}

/// SIGSEGV for an unmapped address, as without softswap; otherwise SIGBUS, after a message.
pub(crate) fn report_failure(address: usize, error: &FaultError, context: Context<'_>) {
    let mut info = info_of(address, error);
    let signal = info.si_signo;
    match engine_signals() & signals::bit(signal) {
        0 => force_signal(signal, &info, context),
        _ => deliver(signal, &mut info, context),
    }
}

/// Reports a failed fault as [`report_failure`] does, for code of the runtime outside a handler.
pub(crate) fn raise(address: usize, error: &FaultError) {
    let info = info_of(address, error);
    let _ = signals::raise_with(info.si_signo, &info);
}

/// Prints the reason of a SIGBUS, and stores it in the statistics.
fn info_of(address: usize, error: &FaultError) -> siginfo_t {
    if matches!(error, FaultError::NotMapped) {
        return signals::segv_info(address);
    }
    if let (Some(engine), Some(reason)) = (instance::engine(), error.stop_reason()) {
        engine.stats().set(Counter::StopReason, reason as u64);
    }
    let (pid, why) = (raw::current_process(), error.message(RAISE_MEMORY));
    raw::write_stderr_fmt(format_args!("softswap: stopping the program (pid {pid}): {why}\n"));
    signals::bus_info()
}
