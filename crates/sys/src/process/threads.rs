//! Threads of this process, by the kernel's numbers.

use crate::futex;
use crate::raw;
use crate::signals::{self, SIGSYS, siginfo_t};

/// What tells a signal that only interrupts: nobody else queues a SIGSYS with it.
const INTERRUPTS: usize = 0x736f_6674_7377_6170;

/// Interrupts the thread's system call, if it is in one that can be. The
/// handler of SIGSYS asks [`is_interruption`] and returns.
pub fn interrupt(thread: i32) {
    let info = signals::queued_info(SIGSYS, INTERRUPTS);
    let pid = raw::current_process() as usize;
    let args = [pid, thread as usize, SIGSYS as usize, &raw const info as usize, 0, 0];
    // SAFETY: the kernel reads one `siginfo_t` from `info`.
    unsafe { raw::syscall(libc::SYS_rt_tgsigqueueinfo, args) };
}

/// Whether a SIGSYS came from [`interrupt`].
///
/// # Safety
/// `info` is what a handler was given.
#[must_use]
pub unsafe fn is_interruption(info: *const siginfo_t) -> bool {
    // SAFETY: details that a handler was given can be read, and do not change meanwhile.
    let info = unsafe { &*info };
    info.si_code == libc::SI_QUEUE && signals::queued_value(info) == INTERRUPTS
}

/// Waits until a thread that ends by itself is gone for the kernel, too.
pub fn wait_until_gone(thread: i32) {
    let pid = raw::current_process() as usize;
    let still_there = || {
        // SAFETY: signal 0 is never delivered; the call only tells whether it could be.
        unsafe { raw::syscall(libc::SYS_tgkill, [pid, thread as usize, 0, 0, 0, 0]) == 0 }
    };
    let mut turns = 0;
    while thread != 0 && still_there() {
        futex::relax(&mut turns);
    }
}
/// What the kernel calls this thread, up to the first 0; for the first one, its program.
#[must_use]
pub fn own_name() -> [u8; 16] {
    let mut name = [0; 16];
    let place = name.as_mut_ptr() as usize;
    // SAFETY: the kernel writes 16 bytes at most, into `name`.
    let _ =
        unsafe { raw::syscall(libc::SYS_prctl, [libc::PR_GET_NAME as usize, place, 0, 0, 0, 0]) };
    name
}
