//! Disables thread cancellation for a section of code, or allows it at any moment.

unsafe extern "C" {
    fn pthread_setcancelstate(state: i32, before: *mut i32) -> i32;
    fn pthread_setcanceltype(kind: i32, before: *mut i32) -> i32;
}

/// Disables cancellation of this thread: waiting for a thread or a file is a cancellation point.
pub(crate) fn uncancelled<R>(body: impl FnOnce() -> R) -> R {
    const DISABLE: i32 = 1;
    let mut before = 0;
    // SAFETY: changes only this thread's state, which is restored below.
    unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
    let result = body();
    // SAFETY: restores the previous state.
    unsafe { pthread_setcancelstate(before, std::ptr::null_mut()) };
    result
}

pub(crate) fn until_cancelled<R>(call: impl FnOnce() -> R) -> R {
    const ASYNCHRONOUS: i32 = 1;
    let mut before = 0;
    // SAFETY: the cancellation type is valid, and the pointer refers to a local.
    unsafe { pthread_setcanceltype(ASYNCHRONOUS, &raw mut before) };
    let result = call();
    // SAFETY: the previous type; null is allowed.
    unsafe { pthread_setcanceltype(before, std::ptr::null_mut()) };
    result
}
