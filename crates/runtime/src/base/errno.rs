//! Results: negative error numbers, as the kernel has them, and -1 with `errno`, as C has it.

use softswap_sys::raw::set_errno;
use std::io;

/// The kernel's way of refusing a call.
pub(crate) const fn refused(error: i32) -> isize {
    -(error as isize)
}

/// The kernel's way of saying `error`.
pub(crate) fn kernel_error(error: &io::Error) -> isize {
    refused(error.raw_os_error().unwrap_or(libc::EIO))
}

/// The kernel's result for an engine operation.
pub(crate) fn result_of(done: io::Result<()>) -> isize {
    done.map_or_else(|error| kernel_error(&error), |()| 0)
}

/// Turns a kernel result into the C convention: -1 and `errno`.
pub(crate) fn c_result(result: isize) -> isize {
    if (-4095..0).contains(&result) {
        set_errno(-result as i32);
        return -1;
    }
    result
}

/// C's way of saying that a call has failed: -1 and `errno`.
pub(crate) fn fail(error: i32) -> i32 {
    set_errno(error);
    -1
}
