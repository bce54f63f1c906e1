//! Detects if a running thread has been outside the kernel since it was queried.
//!
//! The thread that wakes a process must know every call that started before the filter was
//! installed. /proc shows calls that wait. A running thread is queried by a signal, whose handler
//! runs as soon as the thread leaves the kernel.

use super::pending;
use crate::base::errno::refused;
use crate::base::issue_call::Arguments;
use crate::base::uaccess;
use softswap_sys::raw;
use softswap_sys::signals::{Context, TrappedCall};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

static ROUND: AtomicU32 = AtomicU32::new(0);

pub(crate) fn begin_round() {
    ROUND.fetch_add(1, SeqCst);
}

pub(crate) fn has_answered(thread: i32) -> bool {
    pending::last_answer(thread) == ROUND.load(SeqCst)
}

pub(super) fn answer_query(context: Context<'_>) {
    pending::record_answer(ROUND.load(SeqCst));
    restart(context);
}

/// Returns `number` if the call can fail with EINTR even if the handler's flags have SA_RESTART.
#[expect(non_upper_case_globals, reason = "constants of libc")]
fn not_restarted(number: i64) -> Option<i64> {
    use libc::*;
    match number {
        SYS_read | SYS_write | SYS_poll | SYS_ppoll | SYS_select | SYS_pselect6
        | SYS_epoll_wait | SYS_epoll_pwait | SYS_epoll_pwait2 | SYS_nanosleep
        | SYS_clock_nanosleep | SYS_futex | SYS_pause | SYS_rt_sigsuspend | SYS_rt_sigtimedwait
        | SYS_semop | SYS_semtimedop | SYS_msgsnd | SYS_msgrcv | SYS_accept | SYS_accept4
        | SYS_connect | SYS_recvfrom | SYS_sendto | SYS_recvmmsg | SYS_mq_timedreceive => {
            Some(number)
        }
        _ => None,
    }
}

/// Restarts a call that has just started and was interrupted only by the query. The call's number
/// is in the code before it: `mov eax, NUMBER`, followed by at most a few instructions.
fn restart(context: Context<'_>) {
    const SYSCALL: [u8; 2] = [0x0f, 0x05];
    const MOVE: u8 = 0xb8;
    const MOVE_BYTES: usize = 5;
    const CODE_BYTES_BEFORE: usize = 24;
    if context.register(libc::REG_RAX) as isize != refused(libc::EINTR) {
        return;
    }
    let next = context.register(libc::REG_RIP);
    let call = next.wrapping_sub(SYSCALL.len());
    let mut code = [0; CODE_BYTES_BEFORE + SYSCALL.len()];
    let is_read = uaccess::copy_from_user(next.wrapping_sub(code.len()), &mut code);
    if !is_read || code[CODE_BYTES_BEFORE..] != SYSCALL {
        return;
    }
    let number = match pending::nested_call() {
        Some((number, _)) if raw::is_in_gate(call as u64) => Some(number),
        _ => code[..CODE_BYTES_BEFORE].windows(MOVE_BYTES).rev().find_map(|bytes| {
            let &[MOVE, a, b, c, d] = bytes else { return None };
            let number = i64::from(i32::from_le_bytes([a, b, c, d]));
            not_restarted(number)
        }),
    };
    if let Some(number) = number {
        // SAFETY: the instruction at `call` made this call; only the query interrupted it.
        unsafe { TrappedCall::restart_syscall(context, number) };
    }
}

/// Records a call before this thread checks if the process is waking and issues it. The record
/// remains until the next such call; at worst the waking thread pins buffers that no call uses.
pub(crate) fn note_nested(number: i64, arguments: Arguments) {
    let local = 0_u8;
    pending::record_nested_call(number, arguments, &raw const local as usize);
}
