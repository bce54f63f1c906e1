//! Access to the program's memory with the kernel's checks: a bad pointer is an error, not a fault.
//!
//! For managed memory the engine knows the protection, and a touch faults the page in. For other
//! memory a system call without other effects tests the access; the calling thread's own stack
//! needs no test. [`copy_from_user`] also works if the caller's stack is managed: the kernel
//! copies, and the guard faults in absent pages.

use super::errno::refused;
use super::issue_call::engine_syscall;
use super::{instance, signal_stack};
use softswap_sys::{AnyBits, PAGE_SIZE, exemption, raw, signals};

pub(crate) const TASK_SIZE: usize = 0x7fff_ffff_f000;

/// Attempts to copy: a page that was faulted in may be evicted before it is read.
const ATTEMPTS: usize = 100;

/// Faults in absent pages. Returns false if the memory cannot be read.
pub(crate) fn copy_from_user(address: usize, to: &mut [u8]) -> bool {
    let Some(end) = address.checked_add(to.len()) else { return false };
    let first = address & !(PAGE_SIZE - 1);
    let Some(end) = end.checked_next_multiple_of(PAGE_SIZE) else { return false };
    let len = end - first;
    for _ in 0..ATTEMPTS {
        if copy_from_user_nofault(address, to) {
            return true;
        }
        let is_mapped = || instance::engine().is_some_and(|engine| engine.is_mapped(first, len));
        let populate = || raw::request_pages(first, len, libc::MADV_POPULATE_READ);
        if !instance::is_managed(address) || !is_mapped() || raw::preserving_errno(populate) != 0 {
            return false;
        }
    }
    false
}

pub(crate) fn can_read(address: usize) -> bool {
    copy_from_user(address, &mut [0])
}

pub(crate) fn words<const N: usize>(address: usize) -> Option<[usize; N]> {
    let mut words = [0; N];
    // SAFETY: the slice covers the array; every bit pattern is valid for its words.
    let bytes = unsafe {
        std::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u8>(), size_of_val(&words))
    };
    copy_from_user(address, bytes).then_some(words)
}

/// Returns false if any of the memory is absent.
fn copy_from_user_nofault(from: usize, to: &mut [u8]) -> bool {
    // The filter of the program, or of a container, may forbid the call.
    const FORBIDDEN: [isize; 2] = [refused(libc::ENOSYS), refused(libc::EPERM)];
    let result = copy_by_kernel(from, to.as_mut_ptr(), to.len());
    if FORBIDDEN.contains(&result) {
        return copy_readable(from, to);
    }
    result == to.len() as isize
}

/// Lets the kernel copy resident pages, managed or not. Returns the number of bytes, or a negative
/// error number: EPERM under the program's own filter, which may not allow the call.
pub(crate) fn copy_by_kernel(from: usize, to: *mut u8, len: usize) -> isize {
    if exemption::is_in_force() {
        return refused(libc::EPERM);
    }
    let local = libc::iovec { iov_base: to.cast(), iov_len: len };
    let remote = libc::iovec { iov_base: from as *mut _, iov_len: len };
    let (local, remote) = (&raw const local as usize, &raw const remote as usize);
    let pid = raw::current_process() as usize;
    engine_syscall(libc::SYS_process_vm_readv, [pid, local, 1, remote, 1, 0])
}

/// Tests each page by a system call, then copies.
fn copy_readable(from: usize, to: &mut [u8]) -> bool {
    let Some(end) = from.checked_add(to.len()) else { return false };
    let mut pages = (from & !(PAGE_SIZE - 1)..end).step_by(PAGE_SIZE);
    if !pages.all(|page| kernel_reads(page.max(from))) {
        return false;
    }
    // SAFETY: the pages are readable, and by C's rules no other thread unmaps them meanwhile; `to`
    // is a buffer of this length.
    unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to.as_mut_ptr(), to.len()) };
    true
}

/// Tests by `rt_sigprocmask` with an invalid operation: the kernel reads the signal set first.
fn kernel_reads(address: usize) -> bool {
    const NOTHING: usize = usize::MAX;
    // A null pointer would mean no set.
    let word = (address & !(size_of::<u64>() - 1)).max(size_of::<u64>());
    let arguments = [NOTHING, word, 0, size_of::<u64>(), 0, 0];
    engine_syscall(libc::SYS_rt_sigprocmask, arguments) != refused(libc::EFAULT)
}

unsafe extern "C" {
    // Start of the main thread's stack, set by the dynamic loader.
    static __libc_stack_end: usize;
}

/// Bytes above the stack pointer that are assumed to be the thread's own stack. Far less than a
/// usual thread stack, because the thread may run on a coroutine's smaller stack.
const STACK_BYTES: usize = 256 << 10;

/// Excludes memory below this frame.
fn is_on_stack(address: usize, len: usize) -> bool {
    let here = 0_u8;
    let here = &raw const here as usize;
    if address < here || len > STACK_BYTES || address - here > STACK_BYTES - len {
        return false;
    }
    // SAFETY: the loader sets the variable before any code of this library runs.
    let main_end = unsafe { __libc_stack_end };
    // A thread's descriptor is at the upper end of its stack.
    // SAFETY: has no preconditions.
    let descriptor = unsafe { libc::pthread_self() } as usize;
    let end = address + len;
    if end <= main_end && main_end - here < (8 << 20) {
        return true;
    }
    // While this code runs on the signal stack, memory up to the descriptor is not its stack.
    end <= descriptor && descriptor > here && !signal_stack::contains(here)
}

fn all_pages(address: usize, len: usize, body: impl Fn(usize, usize) -> bool) -> bool {
    let Some(end) = address.checked_add(len) else { return false };
    let mut at = address;
    while at < end {
        let next = (at & !(PAGE_SIZE - 1)).saturating_add(PAGE_SIZE).min(end);
        if !body(at, next - at) {
            return false;
        }
        at = next;
    }
    true
}

/// Returns `None` if the engine does not manage the page.
fn engine_allows(address: usize, len: usize, wanted: i32) -> Option<bool> {
    let engine = instance::engine().filter(|engine| engine.contains(address))?;
    if engine.is_unmanaged(address) {
        return None;
    }
    Some(signals::with_all_blocked(|| engine.allowed_bytes(address, len, wanted) == len))
}

pub(crate) fn is_readable(address: usize, len: usize) -> bool {
    is_on_stack(address, len)
        || all_pages(address, len, |at, len| {
            engine_allows(at, len, libc::PROT_READ).unwrap_or_else(|| kernel_reads(at))
        })
}

/// Overwrites the first byte in each unmanaged page, so only for memory to be overwritten.
pub(crate) fn is_writable(address: usize, len: usize) -> bool {
    is_on_stack(address, len)
        || all_pages(address, len, |at, len| {
            engine_allows(at, len, libc::PROT_WRITE).unwrap_or_else(|| kernel_writes(at))
        })
}

/// Tests by `mincore` for the page of this frame, which writes its result to `address`.
fn kernel_writes(address: usize) -> bool {
    let here = 0_u8;
    let page = &raw const here as usize & !(PAGE_SIZE - 1);
    engine_syscall(libc::SYS_mincore, [page, 1, address, 0, 0, 0]) != refused(libc::EFAULT)
}

pub(crate) fn get_user<T: AnyBits>(address: usize) -> Option<T> {
    // SAFETY: the memory is readable; every bit pattern is a valid `T`.
    is_readable(address, size_of::<T>()).then(|| unsafe { (address as *const T).read_unaligned() })
}

pub(crate) fn get_user_array<T: AnyBits>(address: usize, into: &mut [T]) -> bool {
    let len = size_of_val(into);
    if len == 0 || !is_readable(address, len) {
        return len == 0;
    }
    // SAFETY: the memory is readable, and `into` is exclusively borrowed; every bit pattern is a
    // valid `T`.
    unsafe {
        std::ptr::copy_nonoverlapping(address as *const u8, into.as_mut_ptr().cast::<u8>(), len);
    }
    true
}

pub(crate) fn copy_to_user(address: usize, bytes: &[u8]) -> bool {
    if !is_writable(address, bytes.len()) {
        return false;
    }
    // SAFETY: the program's memory is writable; `bytes` is a borrowed slice of this length.
    unsafe { std::ptr::copy(bytes.as_ptr(), address as *mut u8, bytes.len()) };
    true
}

pub(crate) fn put_user<T: Copy>(address: usize, value: T) -> bool {
    if !is_writable(address, size_of::<T>()) {
        return false;
    }
    // SAFETY: the program's memory is writable.
    unsafe { (address as *mut T).write_unaligned(value) };
    true
}
