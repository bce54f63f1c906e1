//! Reading what the program points to, where that may be nothing: the kernel
//! reads for us and says so.

use crate::guard::ask;
use crate::start;
use softswap_sys::{PAGE_SIZE, exemption, raw};

/// A page that was brought in may leave before it is looked at.
const ATTEMPTS: usize = 100;

/// Fills `to` from an address of the program's, what is out being brought in;
/// false where that cannot be read.
pub(crate) fn read(address: usize, to: &mut [u8]) -> bool {
    let Some(end) = address.checked_add(to.len()) else { return false };
    let first = address & !(PAGE_SIZE - 1);
    let Some(end) = end.checked_next_multiple_of(PAGE_SIZE) else { return false };
    let len = end - first;
    for _ in 0..ATTEMPTS {
        if read_present(address, to) {
            return true;
        }
        let is_mapped = || start::engine().is_some_and(|engine| engine.is_mapped(first, len));
        let populate = || raw::ask_for_pages(first, len, libc::MADV_POPULATE_READ);
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

/// As many words from an address of the program's; `None` where they cannot be read.
pub(crate) fn words<const N: usize>(address: usize) -> Option<[usize; N]> {
    let mut words = [0; N];
    // SAFETY: the array's own bytes, of which any are valid.
    let bytes = unsafe {
        std::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u8>(), size_of_val(&words))
    };
    read(address, bytes).then_some(words)
}

/// Reads what is in memory already, managed or not; false where there is nothing.
pub(crate) fn read_present(from: usize, to: &mut [u8]) -> bool {
    const FORBIDDEN: [isize; 2] = [-(libc::ENOSYS as isize), -(libc::EPERM as isize)];
    let local = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
    let remote = libc::iovec { iov_base: from as *mut _, iov_len: to.len() };
    let (local, remote) = (&raw const local as usize, &raw const remote as usize);
    if exemption::is_in_force() {
        return copy_readable(from, to);
    }
    let pid = raw::current_process() as usize;
    let result = ask(libc::SYS_process_vm_readv, [pid, local, 1, remote, 1, 0]);
    if FORBIDDEN.contains(&result) {
        // By a container, say. Without it a pointer that is bad faults.
        // SAFETY: the program's promise to the call that it makes.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to.as_mut_ptr(), to.len()) };
        return true;
    }
    result == to.len() as isize
}

/// As [`read_present`], under a filter of the program's own: the kernel says of each
/// page whether it can be read, and then it is.
fn copy_readable(from: usize, to: &mut [u8]) -> bool {
    let Some(end) = from.checked_add(to.len()) else { return false };
    let mut pages = (from & !(PAGE_SIZE - 1)..end).step_by(PAGE_SIZE);
    if !pages.all(|page| kernel_reads(page.max(from))) {
        return false;
    }
    // SAFETY: just found readable; C's rules keep others from taking it away.
    unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to.as_mut_ptr(), to.len()) };
    true
}

/// Whether the kernel can read from the page of an address: it reads a signal set
/// there, and then refuses what it is asked to do with it.
pub(crate) fn kernel_reads(address: usize) -> bool {
    const NOTHING: usize = usize::MAX;
    // At the very start of memory there would be no set.
    let word = (address & !(size_of::<u64>() - 1)).max(size_of::<u64>());
    let arguments = [NOTHING, word, 0, size_of::<u64>(), 0, 0];
    ask(libc::SYS_rt_sigprocmask, arguments) != -(libc::EFAULT as isize)
}
