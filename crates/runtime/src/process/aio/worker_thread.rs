//! Detached threads that run like the program's.

use crate::process::program_threads;
use libc::c_void;

const STACK_BYTES: usize = 256 << 10;

pub(super) fn start_thread(
    body: program_threads::Start,
    argument: *mut c_void,
    attributes: *const libc::pthread_attr_t,
) -> bool {
    let mut thread = 0;
    // SAFETY: `thread` is a local, and `own` is initialized before use; `attributes` is null or the
    // caller's valid object; the caller passes the `argument` of `body`.
    unsafe {
        if !attributes.is_null() {
            return program_threads::pthread_create(&raw mut thread, attributes, body, argument)
                == 0;
        }
        let mut own: libc::pthread_attr_t = std::mem::zeroed();
        libc::pthread_attr_init(&raw mut own);
        libc::pthread_attr_setdetachstate(&raw mut own, libc::PTHREAD_CREATE_DETACHED);
        libc::pthread_attr_setstacksize(&raw mut own, STACK_BYTES);
        let result =
            program_threads::pthread_create(&raw mut thread, &raw const own, body, argument);
        libc::pthread_attr_destroy(&raw mut own);
        result == 0
    }
}
