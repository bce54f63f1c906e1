//! Copies of what is handed over, outside managed memory.

use crate::guard::issue;
use softswap_sys::PAGE_SIZE;
use softswap_sys::alloc::HEAP;
use std::cell::Cell;
use std::ffi::{c_char, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

pub(super) type Strings = *const *const c_char;

thread_local! {
    /// Where this thread's last copies lie. Kept rather than freed: after
    /// vfork it is the child that fills it and the parent that stays.
    static BUFFER: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// Key whose destructor takes a thread's buffer away; 0 before there is one.
static KEY: AtomicU32 = AtomicU32::new(0);

/// While loading, so that the key is one of the first, whose values glibc
/// keeps without allocating.
#[used]
#[unsafe(link_section = ".init_array")]
static MAKE_KEY: extern "C" fn() = make_key;

extern "C" fn make_key() {
    let mut key = 0;
    // SAFETY: valid out-pointer; the destructor has the right signature.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(take_buffer)) } == 0 {
        KEY.store(key + 1, Ordering::Relaxed);
    }
}

extern "C" fn take_buffer(_base: *mut c_void) {
    let (base, len) = BUFFER.replace((0, 0));
    if len > 0 {
        give_up(base, len);
    }
}
fn give_up(base: usize, len: usize) {
    if HEAP.owns(base) {
        // SAFETY: allocated there, as a whole, and nobody's from now on.
        unsafe { HEAP.release(base as *mut u8) };
    } else {
        issue(libc::SYS_munmap, [base, len, 0, 0, 0, 0]);
    }
}

/// Copies of strings and arrays outside managed memory.
pub(super) struct Copies {
    base: usize,
    len: usize,
    used: usize,
}

impl Copies {
    /// Room for `len` bytes; `None` when the kernel has none.
    pub(super) fn with_room(len: usize) -> Option<Copies> {
        let (base, have) = BUFFER.get();
        if have >= len {
            return Some(Copies { base, len: have, used: 0 });
        }
        if have > 0 {
            give_up(base, have);
        }
        let len = len.next_multiple_of(PAGE_SIZE).next_power_of_two();
        let prot = (libc::PROT_READ | libc::PROT_WRITE) as usize;
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize;
        let mut base = issue(libc::SYS_mmap, [0, len, prot, flags, usize::MAX, 0]);
        if base < 0 {
            // A limit on address space that was lowered below the window's size
            // leaves what the engine has reserved for itself.
            base = HEAP.allocate(len, size_of::<usize>(), false) as isize;
        }
        if base == 0 {
            BUFFER.set((0, 0));
            return None;
        }
        BUFFER.set((base as usize, len));
        if let Some(key) = KEY.load(Ordering::Relaxed).checked_sub(1) {
            // SAFETY: a live key of this library's.
            unsafe { libc::pthread_setspecific(key, base as *const c_void) };
        }
        Some(Copies { base: base as usize, len, used: 0 })
    }

    /// Room for `len` bytes, aligned to words, that nothing else refers to.
    pub(super) fn take(&mut self, len: usize) -> *mut u8 {
        let at = self.used;
        self.used += len.next_multiple_of(size_of::<usize>());
        assert!(self.used <= self.len, "copies are measured before they are made");
        (self.base + at) as *mut u8
    }

    pub(super) fn put(&mut self, bytes: &[u8]) -> *const c_char {
        let at = self.take(bytes.len());
        // SAFETY: room just taken, in this thread's buffer.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at, bytes.len()) };
        at as *const c_char
    }

    /// # Safety
    /// `text` is a C string or null.
    pub(super) unsafe fn put_text(&mut self, text: *const c_char) -> *const c_char {
        if text.is_null() {
            return text;
        }
        // SAFETY: the caller's promise.
        self.put(unsafe { std::ffi::CStr::from_ptr(text) }.to_bytes_with_nul())
    }

    /// # Safety
    /// `strings` is a null-terminated array of C strings, or null.
    pub(super) unsafe fn put_strings(&mut self, strings: Strings) -> Strings {
        if strings.is_null() {
            return strings;
        }
        // SAFETY: the caller's promise.
        let count = unsafe { count(strings) };
        let array = self.take((count + 1) * size_of::<usize>()).cast::<*const c_char>();
        for index in 0..count {
            // SAFETY: within the array and within the buffer.
            unsafe { array.add(index).write(self.put_text(*strings.add(index))) };
        }
        // SAFETY: room for the terminator was taken above.
        unsafe { array.add(count).write(std::ptr::null()) };
        array
    }
}

/// # Safety
/// `strings` is a null-terminated array.
pub(super) unsafe fn count(strings: Strings) -> usize {
    // SAFETY: up to and including the terminator.
    (0..).take_while(|index| unsafe { !(*strings.add(*index)).is_null() }).count()
}

/// Bytes a copy of a string takes.
///
/// # Safety
/// `text` is a C string or null.
pub(super) unsafe fn text_room(text: *const c_char) -> usize {
    if text.is_null() {
        return 0;
    }
    // SAFETY: the caller's promise.
    unsafe { libc::strlen(text) + 1 }.next_multiple_of(size_of::<usize>())
}

/// Bytes a copy of an array of strings takes.
///
/// # Safety
/// `strings` is a null-terminated array of C strings, or null.
pub(super) unsafe fn strings_room(strings: Strings) -> usize {
    if strings.is_null() {
        return 0;
    }
    // SAFETY: the caller's promise.
    unsafe {
        let count = count(strings);
        let texts: usize = (0..count).map(|index| text_room(*strings.add(index))).sum();
        texts + (count + 1) * size_of::<usize>()
    }
}
