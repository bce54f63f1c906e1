//! Calls that the C library carries out in its own threads. They are refused.
//!
//! glibc starts these helper threads with all signals blocked, including SIGBUS and SIGSYS. If a
//! helper touches an absent page, or passes it to the kernel, the kernel kills the process without
//! a message. Most programs have a fallback, so the calls fail as on systems without them. Without
//! an engine the C library handles them.

use crate::base::errno::fail;
use crate::base::instance;
use crate::base::real::real;
use softswap_sys::raw::set_errno;
use std::ffi::c_void;

/// Returns true if a helper thread would deliver the notification. Wakes a sleeping process for it.
///
/// # Safety
/// `event` is a valid sigevent or null.
unsafe fn needs_thread(event: *const libc::sigevent) -> bool {
    // SAFETY: `event` is an event of the program, valid or null.
    unsafe { event.as_ref() }.is_some_and(|event| event.sigev_notify == libc::SIGEV_THREAD)
        && instance::awake().is_some()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn timer_create(
    clock: libc::clockid_t,
    event: *mut libc::sigevent,
    timer: *mut libc::timer_t,
) -> i32 {
    real!(timer_create: fn(libc::clockid_t, *mut libc::sigevent, *mut libc::timer_t) -> i32);
    // SAFETY: the C library's function of this name, with the program's arguments; the event is
    // valid or null.
    unsafe {
        if needs_thread(event) {
            return fail(libc::ENOTSUP);
        }
        timer_create()(clock, event, timer)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mq_notify(queue: libc::mqd_t, event: *const libc::sigevent) -> i32 {
    real!(mq_notify: fn(libc::mqd_t, *const libc::sigevent) -> i32);
    // SAFETY: the C library's function of this name, with the program's arguments; the event is
    // valid or null.
    unsafe {
        if needs_thread(event) {
            return fail(libc::ENOTSUP);
        }
        mq_notify()(queue, event)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn getaddrinfo_a(
    mode: i32,
    list: *mut *mut c_void,
    count: i32,
    event: *mut libc::sigevent,
) -> i32 {
    real!(getaddrinfo_a: fn(i32, *mut *mut c_void, i32, *mut libc::sigevent) -> i32);
    if instance::awake().is_some() {
        set_errno(libc::ENOSYS);
        return libc::EAI_SYSTEM;
    }
    // SAFETY: this is the C library's function of this name; the program passes the arguments.
    unsafe { getaddrinfo_a()(mode, list, count, event) }
}
