//! What the C library and the dynamic loader keep for themselves: it never
//! leaves DRAM.
//!
//! They read it where no page can be brought in: with all signals blocked (a new
//! thread reads the locale's tables, and its thread-local storage is freed at its
//! end), or in a forked child before our handler runs (fork's handlers, the
//! name-service database). So what they allocate comes from the engine's own
//! heap, which is counted in the budget.
//!
//! Who allocates is told by the caller's address. All that the loader takes is its
//! own. The C library also allocates for its callers (`strdup`, `asprintf`), or to
//! work in for a moment (`regexec`, `qsort`), and that is the program's memory. What
//! it keeps for itself is little, and made rarely. So each place in its code may
//! take a little from the engine's heap ([`SITE_BYTES`]), as long as all that is
//! lent is a small part of the budget; a place that allocates again and again
//! works for the program. What must never be out, however often it is made, is
//! made in [`outside_the_window`], whatever the caller.

use crate::base::real::Real;
use softswap_sys::alloc::HEAP;
use softswap_sys::linked::Linked;
use std::cell::Cell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Code of one library.
struct Code {
    start: AtomicUsize,
    len: AtomicUsize,
}

impl Code {
    const fn nowhere() -> Code {
        Code { start: AtomicUsize::new(0), len: AtomicUsize::new(0) }
    }

    #[inline]
    fn contains(&self, address: usize) -> bool {
        address.wrapping_sub(self.start.load(Ordering::Relaxed)) < self.len.load(Ordering::Relaxed)
    }

    /// Makes this the code that `inside` lies in, if it is part of a library.
    fn find(&self, inside: usize) -> bool {
        let code = Linked::around(inside).and_then(|library| library.code_around(inside));
        let Some(code) = code else { return false };
        self.start.store(code.start, Ordering::Relaxed);
        self.len.store(code.len(), Ordering::Relaxed);
        true
    }
}

static LOADER: Code = Code::nowhere();
static LIBRARY: Code = Code::nowhere();
/// Where threads have a library of their own (before glibc 2.34).
static THREADS: Code = Code::nowhere();

/// What may be lent of the budget: an eighth.
const SHARE: usize = 8;
/// Longer blocks are buffers, and those of its callers.
const LONGEST_BYTES: usize = 16 << 10;
/// What one place in the code may take, all in all.
const SITE_BYTES: u64 = 64 << 10;
/// What a block counts for in this beside its length, so that many small ones
/// are noticed.
const BLOCK_BYTES: u64 = 1 << 10;

static LIMIT: AtomicUsize = AtomicUsize::new(0);

static IN_LOADER: Real = Real::new(c"__tls_get_addr");
static IN_LIBRARY: Real = Real::new(c"setlocale");
static IN_THREADS: Real = Real::new(c"pthread_create");
/// Before glibc 2.34 this is another library's, too, which frees what the loader gave.
static IN_OPENER: Real = Real::new(c"dlerror");

/// The dynamic loader.
pub(crate) fn loader() -> Option<Linked> {
    Linked::around(IN_LOADER.get() as usize)
}

/// The C library, and what belongs to it.
pub(crate) fn libraries() -> impl Iterator<Item = Linked> {
    let parts = [&IN_LIBRARY, &IN_THREADS, &IN_OPENER];
    parts.into_iter().filter_map(|part| Linked::around(part.get() as usize))
}

/// Finds the code of the C library and of the loader, each by a function that is
/// known to lie in it, for a budget of so many bytes.
pub(crate) fn find(budget_bytes: usize) -> Result<(), &'static str> {
    if !LOADER.find(IN_LOADER.get() as usize) || !LIBRARY.find(IN_LIBRARY.get() as usize) {
        return Err("cannot find the C library's code; only glibc programs are supported");
    }
    let in_threads = IN_THREADS.get() as usize;
    if !LIBRARY.contains(in_threads) {
        THREADS.find(in_threads);
    }
    LIMIT.store(budget_bytes / SHARE, Ordering::Relaxed);
    Ok(())
}

/// A place in the C library's code that allocates (the low half of its address), and
/// what it has taken so far, in the upper and lower half of a word; 0 where there is
/// none yet. There are some 300 such places.
static SITES: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];

/// Whether what the code at `caller` allocates, `size` bytes, must never leave.
#[inline]
pub(crate) fn keeps(caller: usize, size: usize) -> bool {
    LOADER.contains(caller)
        || ((LIBRARY.contains(caller) || THREADS.contains(caller)) && may_take(caller, size))
}

#[cold]
fn may_take(caller: usize, size: usize) -> bool {
    let Some(left) = LIMIT.load(Ordering::Relaxed).checked_sub(HEAP.lent_bytes()) else {
        return false;
    };
    size <= LONGEST_BYTES.min(left) && note(caller as u32, size as u64 + BLOCK_BYTES)
}

/// Counts `bytes` for the place at `address`, if it may still take so much.
fn note(address: u32, bytes: u64) -> bool {
    // Multiplied by a number without pattern, so that neighbours lie apart.
    let first = (address.wrapping_mul(0x9e37_79b9) >> 22) as usize;
    let mut index = first;
    let mut now = SITES[index].load(Ordering::Relaxed);
    loop {
        let (site, taken) = ((now >> 32) as u32, now & u64::from(u32::MAX));
        if now != 0 && site != address {
            index = (index + 1) % SITES.len();
            if index == first {
                return false;
            }
            now = SITES[index].load(Ordering::Relaxed);
            continue;
        }
        if taken + bytes > SITE_BYTES {
            return false;
        }
        let then = u64::from(address) << 32 | (taken + bytes);
        let done =
            SITES[index].compare_exchange_weak(now, then, Ordering::Relaxed, Ordering::Relaxed);
        match done {
            Ok(_) => return true,
            Err(other) => now = other,
        }
    }
}

thread_local! {
    /// Whether this thread is in [`outside_the_window`].
    static OUTSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Threads in [`outside_the_window`]: as long as there are none, an allocation
/// does not look at its thread's own flag. (Nor does the loader's, which may be
/// about to make room for just that.)
static OUTSIDERS: AtomicUsize = AtomicUsize::new(0);

/// Runs `body`, whose allocations come from the engine's heap: for what the C
/// library touches later with all signals blocked, or in a child.
pub(crate) fn outside_the_window<R>(body: impl FnOnce() -> R) -> R {
    OUTSIDERS.fetch_add(1, Ordering::Relaxed);
    let before = OUTSIDE.replace(true);
    let result = body();
    OUTSIDE.set(before);
    OUTSIDERS.fetch_sub(1, Ordering::Relaxed);
    result
}

/// Whether this thread is in [`outside_the_window`].
#[inline]
pub(crate) fn is_outside() -> bool {
    OUTSIDERS.load(Ordering::Relaxed) > 0 && OUTSIDE.get()
}

type Locale = *mut c_void;
type Text = *const std::ffi::c_char;

/// Defines functions of the C library's that make what it reads later with all
/// signals blocked.
macro_rules! outside {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $ret:ty;)*) => {$(
        /// # Safety
        /// As the C library's function of the same name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> $ret {
            crate::base::real::real!($name: fn($($ty),*) -> $ret);
            // SAFETY: the C library's function of this name, with the program's arguments.
            outside_the_window(|| unsafe { $name()($($arg),*) })
        }
    )*};
}

outside! {
    setlocale(category: i32, name: Text) -> Text;
    newlocale(mask: i32, name: Text, base: Locale) -> Locale;
    __newlocale(mask: i32, name: Text, base: Locale) -> Locale;
    duplocale(locale: Locale) -> Locale;
    __duplocale(locale: Locale) -> Locale;
    pthread_attr_setaffinity_np(attributes: *mut libc::pthread_attr_t, len: usize, cpus: *const c_void) -> i32;
    pthread_attr_setsigmask_np(attributes: *mut libc::pthread_attr_t, mask: *const libc::sigset_t) -> i32;
    pthread_getattr_np(thread: libc::pthread_t, attributes: *mut libc::pthread_attr_t) -> i32;
    pthread_setattr_default_np(attributes: *const libc::pthread_attr_t) -> i32;
}

/// Values of a thread's keys beyond these lie in blocks of their own, which the child of
/// another thread clears before it is one: <pthread.h>'s `PTHREAD_KEY_2NDLEVEL_SIZE`.
const KEYS_IN_THREAD: u32 = 32;

/// Defines functions that set the value of a thread's key.
macro_rules! set_key {
    ($($name:ident)*) => {$(
        /// # Safety
        /// As the C library's function of the same name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(key: u32, value: *const c_void) -> i32 {
            crate::base::real::real!($name: fn(u32, *const c_void) -> i32);
            // SAFETY: the C library's function of this name, with the program's arguments.
            let set = || unsafe { $name()(key, value) };
            if key < KEYS_IN_THREAD { set() } else { outside_the_window(set) }
        }
    )*};
}

set_key!(pthread_setspecific tss_set);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_allocates_again_and_again_works_for_the_program() {
        let most = SITE_BYTES / (BLOCK_BYTES + 24);
        let taken = (0..1000).filter(|_| note(0x1_2340, BLOCK_BYTES + 24)).count() as u64;
        assert_eq!(taken, most);
        assert!(note(0x1_2345, BLOCK_BYTES + 24), "another place is not affected");
        assert!(!note(0x1_2346, SITE_BYTES + 1));
    }
}
