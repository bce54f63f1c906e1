//! Copies of what is handed over, outside managed memory.

use crate::guard::issue;
use crate::transfers::user::Texts;
use softswap_sys::PAGE_SIZE;
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
            issue(libc::SYS_munmap, [base, have, 0, 0, 0, 0]);
        }
        let len = len.next_multiple_of(PAGE_SIZE).next_power_of_two();
        let prot = (libc::PROT_READ | libc::PROT_WRITE) as usize;
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize;
        let base = issue(libc::SYS_mmap, [0, len, prot, flags, usize::MAX, 0]);
        if base < 0 {
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

    /// A string's copy; of one that cannot be read, the bad pointer itself: the
    /// kernel says so.
    pub(super) fn put_text(&mut self, text: *const c_char) -> *const c_char {
        self.put_one(&Texts::new(), text)
    }

    fn put_one(&mut self, texts: &Texts, text: *const c_char) -> *const c_char {
        let Some(len) = (!text.is_null()).then(|| texts.len(text as usize)).flatten() else {
            return text;
        };
        // SAFETY: the string can be read as far as its zero byte.
        self.put(unsafe { std::slice::from_raw_parts(text.cast::<u8>(), len + 1) })
    }

    /// An array's copy, of its strings too; a bad pointer as above.
    pub(super) fn put_strings(&mut self, strings: Strings) -> Strings {
        let texts = Texts::new();
        let Some(count) = (!strings.is_null()).then(|| texts.count(strings as usize)).flatten()
        else {
            return strings;
        };
        let array = self.take((count + 1) * size_of::<usize>()).cast::<*const c_char>();
        for index in 0..count {
            // SAFETY: within the array, which can be read, and within the buffer.
            unsafe {
                let text = strings.add(index).read_unaligned();
                array.add(index).write(self.put_one(&texts, text));
            }
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

/// Bytes a copy of a string takes; none where it cannot be read.
pub(super) fn text_room(text: *const c_char) -> usize {
    room_of(&Texts::new(), text)
}

fn room_of(texts: &Texts, text: *const c_char) -> usize {
    let len = (!text.is_null()).then(|| texts.len(text as usize)).flatten();
    len.map_or(0, |len| (len + 1).next_multiple_of(size_of::<usize>()))
}

/// Bytes a copy of an array of strings takes; none where it cannot be read.
pub(super) fn strings_room(strings: Strings) -> usize {
    let texts = Texts::new();
    let Some(count) = (!strings.is_null()).then(|| texts.count(strings as usize)).flatten() else {
        return 0;
    };
    // SAFETY: within the array, which can be read.
    let text = |index| unsafe { strings.add(index).read_unaligned() };
    let all: usize = (0..count).map(|index| room_of(&texts, text(index))).sum();
    all + (count + 1) * size_of::<usize>()
}
