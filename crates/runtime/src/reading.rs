//! Reading what the program points to, where that may be nothing: the kernel
//! reads for us and says so.

use crate::guard::ask;
use crate::start;
use softswap_sys::{PAGE_SIZE, raw};

/// A page that was brought in may leave before it is looked at.
const ATTEMPTS: usize = 100;

/// Fills `to` from an address of the program's, what is out being brought in;
/// false where that cannot be read.
pub(crate) fn read(address: usize, to: &mut [u8]) -> bool {
    const POPULATE: usize = libc::MADV_POPULATE_READ as usize;
    let Some(end) = address.checked_add(to.len()) else { return false };
    let first = address & !(PAGE_SIZE - 1);
    let Some(end) = end.checked_next_multiple_of(PAGE_SIZE) else { return false };
    let len = end - first;
    for _ in 0..ATTEMPTS {
        if read_present(address, to) {
            return true;
        }
        let is_mapped = || start::engine().is_some_and(|engine| engine.is_mapped(first, len));
        // By way of the guard, whatever stack this runs on.
        // SAFETY: no byte of the program's changes.
        let populate =
            || unsafe { raw::syscall_through_guard(libc::SYS_madvise, [first, len, POPULATE, 0]) };
        if !start::is_managed(address) || !is_mapped() || raw::preserving_errno(populate) != 0 {
            return false;
        }
    }
    false
}

/// Whether a byte can be read.
pub(crate) fn can_read(address: usize) -> bool {
    read(address, &mut [0])
}

/// Reads what is in memory already.
fn read_present(address: usize, to: &mut [u8]) -> bool {
    let len = to.len();
    let to = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: len };
    let from = libc::iovec { iov_base: address as *mut _, iov_len: len };
    let (to, from) = (&raw const to as usize, &raw const from as usize);
    let pid = raw::current_process() as usize;
    ask(libc::SYS_process_vm_readv, [pid, to, 1, from, 1, 0]) == len as isize
}
