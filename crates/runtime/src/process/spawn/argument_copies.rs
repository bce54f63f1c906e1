//! Copies of exec arguments outside managed memory.
//!
//! Unreadable arguments are passed unchanged: the kernel reports the error in its usual order.

use crate::base::issue_call::issue;
use crate::base::uaccess::can_read;
use crate::signals::virtual_mask;
use softswap_sys::PAGE_SIZE;
use softswap_sys::alloc::HEAP;
use std::cell::Cell;
use std::ffi::{c_char, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

pub(super) type Strings = *const *const c_char;

thread_local! {
    /// Address and length of this thread's buffer, which is reused until the thread exits: the
    /// child of a `vfork` fills it, and cannot free it after a successful exec.
    static BUFFER: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
    /// Bytes in use. A signal handler, or the child of a `popen`, may start a program while the
    /// copies of another call are in use.
    static USED: Cell<usize> = const { Cell::new(0) };
}

/// Key, plus one, whose destructor frees a thread's buffer; 0: none yet.
static KEY: AtomicU32 = AtomicU32::new(0);

/// Called while the library loads: glibc stores the values of the first keys without allocating.
pub(crate) fn set_up() {
    let mut key = 0;
    // SAFETY: `key` is valid to write to; the destructor has the right signature.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(take_buffer)) } == 0 {
        KEY.store(key + 1, Ordering::Relaxed);
    }
}

extern "C" fn take_buffer(_base: *mut c_void) {
    let (base, len) = BUFFER.replace((0, 0));
    if len > 0 {
        unmap_copies(base, len);
    }
}

fn unmap_copies(base: usize, len: usize) {
    if HEAP.owns(base) {
        // SAFETY: `base` was allocated from this heap and is not used afterwards.
        unsafe { HEAP.release(base as *mut u8) };
    } else {
        issue(libc::SYS_munmap, [base, len, 0, 0, 0, 0]);
    }
}

/// Cache of the page last found readable: strings are usually adjacent.
pub(super) struct Readable(usize);

impl Readable {
    pub(super) const fn new() -> Readable {
        Readable(0)
    }

    fn can_read_page(&mut self, address: usize) -> bool {
        let page = address & !(PAGE_SIZE - 1);
        if page != self.0 && can_read(address) {
            self.0 = page;
        }
        page == self.0 && page != 0
    }

    fn can_read_all(&mut self, start: usize, len: usize) -> bool {
        let Some(end) = start.checked_add(len) else { return false };
        let pages = (start & !(PAGE_SIZE - 1)..end).step_by(PAGE_SIZE);
        pages.into_iter().all(|page| self.can_read_page(page.max(start)))
    }

    /// Returns a string's length with its zero; `None` if it cannot be read.
    fn text_len(&mut self, text: *const c_char) -> Option<usize> {
        let mut at = text as usize;
        while self.can_read_page(at) {
            let left = PAGE_SIZE - at % PAGE_SIZE;
            // SAFETY: the memory is readable up to the page's end, and by C's rules no other thread
            // unmaps it meanwhile.
            let within = unsafe { libc::strnlen(at as *const c_char, left) };
            at += within;
            if within < left {
                return Some(at + 1 - text as usize);
            }
        }
        None
    }

    /// Returns an array's length in words with its null; `None` if it cannot be read.
    fn array_len(&mut self, strings: Strings) -> Option<usize> {
        let mut at = strings;
        while self.can_read_all(at as usize, size_of::<usize>()) {
            // SAFETY: `can_read_all` found the word readable.
            if unsafe { (*at).is_null() } {
                return Some((at as usize - strings as usize) / size_of::<usize>() + 1);
            }
            at = at.wrapping_add(1);
        }
        None
    }

    /// Returns a string without its zero; `None` if it cannot be read.
    pub(super) fn text<'t>(&mut self, text: *const c_char) -> Option<&'t [u8]> {
        let len = self.text_len(text)?;
        // SAFETY: `text_len` found the string readable; by C's rules it stays mapped.
        Some(unsafe { std::slice::from_raw_parts(text.cast(), len - 1) })
    }

    pub(super) fn text_bytes(&mut self, text: *const c_char) -> usize {
        self.text_len(text).unwrap_or(0).next_multiple_of(size_of::<usize>())
    }

    pub(super) fn strings_bytes(&mut self, strings: Strings) -> usize {
        let Some(words) = self.array_len(strings) else { return 0 };
        // SAFETY: `array_len` found the array readable.
        let texts = (0..words - 1).map(|index| self.text_bytes(unsafe { *strings.add(index) }));
        texts.sum::<usize>() + words * size_of::<usize>()
    }
}

pub(super) struct Copies {
    base: usize,
    len: usize,
    start: usize,
    used: usize,
    readable: Readable,
}

impl Drop for Copies {
    fn drop(&mut self) {
        self.set_unused();
        if self.base != BUFFER.get().0 && self.start == 0 {
            // A larger buffer has replaced this one.
            unmap_copies(self.base, self.len);
        }
    }
}

impl Copies {
    pub(super) fn with_capacity(len: usize) -> Option<Copies> {
        let ((base, have), start) = (BUFFER.get(), USED.get());
        let len = len.next_multiple_of(size_of::<usize>());
        if have >= start + len {
            USED.set(start + len);
            return Some(Copies { base, len: have, start, used: start, readable: Readable::new() });
        }
        if have > 0 && start == 0 {
            unmap_copies(base, have);
        }
        let used = len;
        let len = len.next_multiple_of(PAGE_SIZE).next_power_of_two();
        let prot = (libc::PROT_READ | libc::PROT_WRITE) as usize;
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize;
        let mut base = issue(libc::SYS_mmap, [0, len, prot, flags, usize::MAX, 0]);
        if base < 0 {
            // If RLIMIT_AS was lowered below the window's size, only the engine's reserved heap has
            // free memory.
            base = HEAP.allocate(len, size_of::<usize>(), false) as isize;
        }
        if base == 0 {
            if start == 0 {
                BUFFER.set((0, 0));
            }
            return None;
        }
        BUFFER.set((base as usize, len));
        USED.set(used);
        if let Some(key) = KEY.load(Ordering::Relaxed).checked_sub(1) {
            // SAFETY: `key` is a valid key of this library.
            unsafe { libc::pthread_setspecific(key, base as *const c_void) };
        }
        Some(Copies { base: base as usize, len, start: 0, used: 0, readable: Readable::new() })
    }

    /// Called before exec. In a `vfork` child, which shares the buffer with its parent, marks the
    /// copies as unused now: this value is never dropped if exec succeeds.
    pub(super) fn keep_for_exec(&self) {
        if virtual_mask::is_borrowing() {
            self.set_unused();
        }
    }

    fn set_unused(&self) {
        USED.set(if self.base == BUFFER.get().0 { self.start } else { 0 });
    }

    pub(super) fn take(&mut self, len: usize) -> *mut u8 {
        let at = self.used;
        self.used += len.next_multiple_of(size_of::<usize>());
        assert!(
            self.used <= self.len,
            "the capacity of the copies is too small: a bug in softswap; please report it"
        );
        (self.base + at) as *mut u8
    }

    pub(super) fn copy_bytes(&mut self, bytes: &[u8]) -> *const c_char {
        let at = self.take(bytes.len());
        // SAFETY: `at` has space for these bytes, in this thread's buffer.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at, bytes.len()) };
        at as *const c_char
    }

    /// Returns a copy of a string, or the pointer itself if it cannot be read.
    pub(super) fn copy_text(&mut self, text: *const c_char) -> *const c_char {
        match self.readable.text_len(text) {
            // SAFETY: `text_len` found the string readable.
            Some(len) => self.copy_bytes(unsafe { std::slice::from_raw_parts(text.cast(), len) }),
            None => text,
        }
    }

    /// Returns a copy of an array and its strings, or the pointer itself if it cannot be read.
    pub(super) fn copy_strings(&mut self, strings: Strings) -> Strings {
        let Some(words) = self.readable.array_len(strings) else { return strings };
        let array = self.take(words * size_of::<usize>()).cast::<*const c_char>();
        for index in 0..words {
            // SAFETY: `index` is within the array, which is readable, and within its copy.
            unsafe { array.add(index).write(self.copy_text(*strings.add(index))) };
        }
        array
    }
}

/// # Safety
/// `strings` is a null-terminated array.
pub(super) unsafe fn count(strings: Strings) -> usize {
    // SAFETY: reads the array up to and including its null pointer.
    (0..).take_while(|index| unsafe { !(*strings.add(*index)).is_null() }).count()
}
