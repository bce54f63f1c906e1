//! Detects if a running thread has been outside the kernel since it was queried.
//!
//! The thread that wakes a process must know every call that started before the filter was
//! installed. A thread that waits in a call is visible in /proc. A running thread is queried by a
//! signal, whose handler runs as soon as the thread leaves the kernel. A thread records a call that
//! may hide pointers from the filter before it checks if the process is waking.

use super::pending;
use crate::base::issue_call::Arguments;
use crate::base::uaccess;
use softswap_sys::{raw, threads};
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

static ROUND: AtomicU32 = AtomicU32::new(0);

pub(crate) fn begin_round() {
    ROUND.fetch_add(1, SeqCst);
}

pub(crate) fn query_thread(thread: i32) {
    threads::question(thread);
}

/// Returns true if a thread has been outside the kernel since it was queried in this round.
pub(crate) fn has_answered(thread: i32) -> bool {
    pending::last_answer(thread) == ROUND.load(SeqCst)
}

/// Answers a query, in the handler.
///
/// # Safety
/// `context` is the running handler's.
pub(super) unsafe fn answer_query(context: *mut c_void) {
    pending::record_answer(ROUND.load(SeqCst));
    // SAFETY: `context` is that of the running handler, and nothing else uses it.
    restart(unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext });
}

/// Calls that can fail with EINTR even if the handler's flags have SA_RESTART.
const NOT_RESTARTED: [i64; 26] = [
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_select,
    libc::SYS_pselect6,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_futex,
    libc::SYS_pause,
    libc::SYS_rt_sigsuspend,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_msgsnd,
    libc::SYS_msgrcv,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_recvmmsg,
    libc::SYS_mq_timedreceive,
];

/// Restarts a call that has just started and was interrupted only by the query. The call's number
/// is in the code before it: `mov eax, NUMBER`, followed by at most a few instructions.
fn restart(registers: &mut libc::mcontext_t) {
    const INTERRUPTED: i64 = -(libc::EINTR as i64);
    const SYSCALL: [u8; 2] = [0x0f, 0x05];
    const MOVE: u8 = 0xb8;
    const MOVE_BYTES: usize = 5;
    const CODE_BYTES_BEFORE: usize = 24;
    if registers.gregs[libc::REG_RAX as usize] != INTERRUPTED {
        return;
    }
    let next = registers.gregs[libc::REG_RIP as usize] as usize;
    let call = next.wrapping_sub(SYSCALL.len());
    let mut code = [0; CODE_BYTES_BEFORE + SYSCALL.len()];
    let is_read = uaccess::copy_from_user(next.wrapping_sub(code.len()), &mut code);
    if !is_read || code[CODE_BYTES_BEFORE..] != SYSCALL {
        return;
    }
    let number = match pending::hidden_call() {
        Some((number, _)) if raw::is_in_gate(call as u64) => Some(number),
        _ => code[..CODE_BYTES_BEFORE].windows(MOVE_BYTES).rev().find_map(|bytes| {
            let &[MOVE, a, b, c, d] = bytes else { return None };
            let number = i64::from(i32::from_le_bytes([a, b, c, d]));
            NOT_RESTARTED.contains(&number).then_some(number)
        }),
    };
    if let Some(number) = number {
        registers.gregs[libc::REG_RAX as usize] = number;
        registers.gregs[libc::REG_RIP as usize] = call as i64;
    }
}

/// Records a call that may hide pointers, before this thread checks if the process is waking and
/// issues the call. The record remains until the next such call; at worst it makes the waking
/// thread pin buffers that no call uses.
pub(crate) fn note_hidden(number: i64, arguments: Arguments) {
    let local = 0_u8;
    pending::record_hidden_call(number, arguments, &raw const local as usize);
}

/// Returns the last call that a thread has recorded because it may hide pointers.
pub(crate) fn hidden_call_of(thread: i32) -> Option<(i64, Arguments)> {
    pending::hidden_call_of(thread)
}
