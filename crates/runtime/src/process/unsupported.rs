//! Calls that are refused, because the C library does them in threads of its
//! own.
//!
//! glibc starts these helpers inside, past our `pthread_create`, with every
//! signal blocked: SIGBUS and SIGSYS too. A helper that touches managed memory
//! that is out, or hands it to the kernel, is killed on the spot, and the
//! program with it, without a message. Programs that use such calls mostly
//! have another way for systems that lack them; so they are told that this one
//! does. Without an engine the C library answers.

use crate::base::errno::fail;
use crate::base::instance;
use crate::base::real::real;
use softswap_sys::raw::set_errno;
use std::ffi::c_void;

/// Whether a notification is to be delivered by a helper thread.
///
/// # Safety
/// `event` is a valid sigevent or null.
unsafe fn wants_thread(event: *const libc::sigevent) -> bool {
    // SAFETY: an event of the program's, valid or null.
    unsafe { event.as_ref() }.is_some_and(|event| event.sigev_notify == libc::SIGEV_THREAD)
        && instance::awake().is_some()
}

/// # Safety
/// As `timer_create(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn timer_create(
    clock: libc::clockid_t,
    event: *mut libc::sigevent,
    timer: *mut libc::timer_t,
) -> i32 {
    real!(timer_create: fn(libc::clockid_t, *mut libc::sigevent, *mut libc::timer_t) -> i32);
    // SAFETY: the C library's function of this name, with the arguments that the program has given;
    // the event is valid or null.
    unsafe {
        if wants_thread(event) {
            return fail(libc::ENOTSUP);
        }
        timer_create()(clock, event, timer)
    }
}

/// # Safety
/// As `mq_notify(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mq_notify(queue: libc::mqd_t, event: *const libc::sigevent) -> i32 {
    real!(mq_notify: fn(libc::mqd_t, *const libc::sigevent) -> i32);
    // SAFETY: the C library's function of this name, with the arguments that the program has given;
    // the event is valid or null.
    unsafe {
        if wants_thread(event) {
            return fail(libc::ENOTSUP);
        }
        mq_notify()(queue, event)
    }
}

/// # Safety
/// As `getaddrinfo_a(3)`.
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
    // SAFETY: the C library's function of this name, with the program's arguments.
    unsafe { getaddrinfo_a()(mode, list, count, event) }
}
