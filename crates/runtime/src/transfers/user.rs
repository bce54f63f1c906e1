//! The program's own structures, read and written as the kernel would: a bad
//! pointer is an answer, not a fault.
//!
//! Of managed memory the engine knows what is allowed, and a touch brings it in.
//! Of other memory the kernel is asked, by a call that does nothing else with it;
//! the calling thread's own stack needs no asking.

use crate::guard::ask;
use crate::reading::kernel_reads;
use crate::start;
use softswap_sys::PAGE_SIZE;
use softswap_sys::signals;

unsafe extern "C" {
    // Where the main thread's stack begins, by the dynamic loader.
    static __libc_stack_end: usize;
}

/// How far above the stack pointer the thread's own stack is looked for. Threads'
/// stacks are larger; this is to be short of what may lie beyond a coroutine's.
const STACK_BYTES: usize = 256 << 10;

/// Whether memory lies in the calling thread's stack, above this very frame.
fn is_on_stack(address: usize, len: usize) -> bool {
    let here = 0_u8;
    let here = &raw const here as usize;
    if address < here || len > STACK_BYTES || address - here > STACK_BYTES - len {
        return false;
    }
    // SAFETY: set by the loader before anything of this library runs.
    let main_end = unsafe { __libc_stack_end };
    // A thread's descriptor lies at the upper end of its stack.
    // SAFETY: has no preconditions.
    let thread_end = unsafe { libc::pthread_self() } as usize;
    let end = address + len;
    end <= main_end && main_end - here < (8 << 20) || end <= thread_end && thread_end > here
}

/// The parts of a range by page: `body` until it says no.
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

/// Whether the engine lets a page be accessed; `None` where it has no say.
fn engine_allows(address: usize, len: usize, wanted: i32) -> Option<bool> {
    let engine = start::engine().filter(|engine| engine.contains(address))?;
    if engine.is_foreign(address) {
        return None;
    }
    Some(signals::with_all_blocked(|| engine.allowed_bytes(address, len, wanted) == len))
}

/// Whether the program's memory can be read.
pub(crate) fn is_readable(address: usize, len: usize) -> bool {
    is_on_stack(address, len)
        || all_pages(address, len, |at, len| {
            engine_allows(at, len, libc::PROT_READ).unwrap_or_else(|| kernel_reads(at))
        })
}

/// Whether the program's memory can be written. Of other than managed memory the
/// first byte of each page is changed by asking: for what is overwritten anyway.
pub(crate) fn is_writable(address: usize, len: usize) -> bool {
    is_on_stack(address, len)
        || all_pages(address, len, |at, len| {
            engine_allows(at, len, libc::PROT_WRITE).unwrap_or_else(|| kernel_writes(at))
        })
}

/// Whether the kernel can write a byte: whether the page of this frame is in
/// memory.
fn kernel_writes(address: usize) -> bool {
    let here = 0_u8;
    let page = &raw const here as usize & !(PAGE_SIZE - 1);
    ask(libc::SYS_mincore, [page, 1, address, 0, 0, 0]) != -(libc::EFAULT as isize)
}

/// A structure of the program's; `None` where it cannot be read.
///
/// # Safety
/// Any bytes are a valid `T`.
pub(super) unsafe fn read<T: Copy>(address: usize) -> Option<T> {
    // SAFETY: readable, and by the caller's promise valid.
    is_readable(address, size_of::<T>()).then(|| unsafe { (address as *const T).read_unaligned() })
}

/// Copies an array of the program's; whether it could be read.
///
/// # Safety
/// Any bytes are a valid `T`.
pub(super) unsafe fn read_all<T: Copy>(address: usize, into: &mut [T]) -> bool {
    let len = size_of_val(into);
    if len == 0 || !is_readable(address, len) {
        return len == 0;
    }
    // SAFETY: readable just now, and `into` is exclusively borrowed.
    unsafe {
        std::ptr::copy_nonoverlapping(address as *const u8, into.as_mut_ptr().cast::<u8>(), len);
    }
    true
}

/// Writes bytes into the program's memory; whether that could be done.
pub(crate) fn write_bytes(address: usize, bytes: &[u8]) -> bool {
    if !is_writable(address, bytes.len()) {
        return false;
    }
    // SAFETY: the program's memory, writable just now.
    unsafe { std::ptr::copy(bytes.as_ptr(), address as *mut u8, bytes.len()) };
    true
}
