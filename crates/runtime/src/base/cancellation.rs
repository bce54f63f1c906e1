//! Where a thread is not cancelled.

unsafe extern "C" {
    fn pthread_setcancelstate(state: i32, before: *mut i32) -> i32;
}

/// Runs `body` where this thread is not cancelled: waiting for a thread, or a file, would be a
/// place for that.
pub(crate) fn uncancelled<R>(body: impl FnOnce() -> R) -> R {
    const DISABLE: i32 = 1;
    let mut before = 0;
    // SAFETY: changes this thread's own state, put back below.
    unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
    let result = body();
    // SAFETY: what it was.
    unsafe { pthread_setcancelstate(before, std::ptr::null_mut()) };
    result
}
