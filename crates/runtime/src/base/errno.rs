//! Conversion between the kernel's results (negative error numbers) and C's (-1 and `errno`).

use softswap_sys::raw::set_errno;
use std::io;

pub(crate) const fn refused(error: i32) -> isize {
    -(error as isize)
}

pub(crate) fn kernel_error(error: &io::Error) -> isize {
    refused(error.raw_os_error().unwrap_or(libc::EIO))
}

pub(crate) fn result_of(done: io::Result<()>) -> isize {
    done.map_or_else(|error| kernel_error(&error), |()| 0)
}

pub(crate) fn c_result(result: isize) -> isize {
    if (-4095..0).contains(&result) {
        set_errno(-result as i32);
        return -1;
    }
    result
}

pub(crate) fn fail(error: i32) -> i32 {
    set_errno(error);
    -1
}
