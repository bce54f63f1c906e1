//! Memory that the C library and the dynamic loader keep for themselves. It is never evicted.
//!
//! They read it while no page can be faulted in: with all signals blocked (in a starting or exiting
//! thread), or in a forked child before the runtime's handler runs. Therefore these allocations
//! come from the engine's own heap, which counts in the budget.
//!
//! The caller's address identifies the allocator. All allocations of the loader are its own. The C
//! library also allocates for its callers (`strdup`, `asprintf`), or temporarily (`regexec`,
//! `qsort`), but its own allocations are small and rare. So each call site in its code may take
//! [`SITE_BYTES`] from the engine's heap, while the sum is a small part of the budget. Frequent
//! allocations that must never be evicted are made in [`outside_the_window`], which disregards the
//! caller.

use crate::base::real::Real;
use softswap_sys::alloc::HEAP;
use softswap_sys::linked::Linked;
use std::cell::Cell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

struct Code {
    start: AtomicUsize,
    len: AtomicUsize,
}

impl Code {
    const fn empty() -> Code {
        Code { start: AtomicUsize::new(0), len: AtomicUsize::new(0) }
    }

    #[inline]
    fn contains(&self, address: usize) -> bool {
        address.wrapping_sub(self.start.load(Ordering::Relaxed)) < self.len.load(Ordering::Relaxed)
    }

    fn find(&self, inside: usize) -> bool {
        let code = Linked::containing(inside).and_then(|library| library.code_around(inside));
        let Some(code) = code else { return false };
        self.start.store(code.start, Ordering::Relaxed);
        self.len.store(code.len(), Ordering::Relaxed);
        true
    }
}

static LOADER: Code = Code::empty();
static LIBRARY: Code = Code::empty();
/// The threads library of glibc before 2.34.
static THREADS: Code = Code::empty();
/// The library of `dlsym` and `dlerror` of glibc before 2.34. `dlsym` changes a block per thread.
static OPENER: Code = Code::empty();

/// Divisor: these allocations may take an eighth of the budget.
const LIMIT_DIVISOR: usize = 8;
/// Longer blocks are assumed to be buffers for callers of the C library.
const MAX_BYTES: usize = 16 << 10;
const SITE_BYTES: u64 = 64 << 10;
/// Bytes counted for each block in addition to its length, so that small blocks reach the limit.
const BLOCK_BYTES: u64 = 1 << 10;

/// Bytes of the engine's heap up to which allocations of the C library come from it.
static LIMIT: AtomicUsize = AtomicUsize::new(0);

static IN_LOADER: Real = Real::new(c"__tls_get_addr");
static IN_LIBRARY: Real = Real::new(c"setlocale");
static IN_THREADS: Real = Real::new(c"pthread_create");
/// The library also frees blocks allocated by the loader.
static IN_OPENER: Real = Real::new(c"dlerror");

pub(crate) fn loader() -> Option<Linked> {
    Linked::containing(IN_LOADER.get() as usize)
}

pub(crate) fn libraries() -> impl Iterator<Item = Linked> {
    let parts = [&IN_LIBRARY, &IN_THREADS, &IN_OPENER];
    parts.into_iter().filter_map(|part| Linked::containing(part.get() as usize))
}

/// Finds each code by a function in it. `budget_bytes` determines the limit.
pub(crate) fn find(budget_bytes: usize) -> Result<(), &'static str> {
    if !LOADER.find(IN_LOADER.get() as usize) || !LIBRARY.find(IN_LIBRARY.get() as usize) {
        return Err("cannot find the C library's code; only glibc programs are supported");
    }
    for (code, inside) in [(&THREADS, &IN_THREADS), (&OPENER, &IN_OPENER)] {
        let inside = inside.get() as usize;
        if !LIBRARY.contains(inside) {
            code.find(inside);
        }
    }
    LIMIT.store(budget_bytes / LIMIT_DIVISOR, Ordering::Relaxed);
    Ok(())
}

/// Bytes taken by each call site in the C library. The upper 32 bits of a word are the low 32 bits
/// of the site's address, the lower 32 bits its bytes; 0: empty. There are about 300 sites.
static SITES: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];

/// Returns true if `size` bytes allocated by the code at `caller` must never be evicted.
#[inline]
pub(crate) fn keeps(caller: usize, size: usize) -> bool {
    LOADER.contains(caller)
        || OPENER.contains(caller)
        || ((LIBRARY.contains(caller) || THREADS.contains(caller)) && may_take(caller, size))
}

#[cold]
fn may_take(caller: usize, size: usize) -> bool {
    let Some(left) = LIMIT.load(Ordering::Relaxed).checked_sub(HEAP.outside_bytes_in_use()) else {
        return false;
    };
    size <= MAX_BYTES.min(left) && charge_site(caller as u32, size as u64 + BLOCK_BYTES)
}

/// Returns false if the bytes exceed the site's limit, or if the table is full.
fn charge_site(address: u32, bytes: u64) -> bool {
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
    static OUTSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Number of threads in [`outside_the_window`]. While it is 0, allocations do not read their
/// thread's flag: the loader's must not, because that may create thread-local storage.
static OUTSIDERS: AtomicUsize = AtomicUsize::new(0);

/// Runs `body` with all its allocations in the engine's heap.
pub(crate) fn outside_the_window<R>(body: impl FnOnce() -> R) -> R {
    OUTSIDERS.fetch_add(1, Ordering::Relaxed);
    let before = OUTSIDE.replace(true);
    let result = body();
    OUTSIDE.set(before);
    OUTSIDERS.fetch_sub(1, Ordering::Relaxed);
    result
}

#[inline]
pub(crate) fn is_outside() -> bool {
    OUTSIDERS.load(Ordering::Relaxed) > 0 && OUTSIDE.get()
}

type Locale = *mut c_void;
type Text = *const std::ffi::c_char;

/// Defines functions of the C library whose allocations it reads later with all signals blocked.
macro_rules! outside {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $ret:ty;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> $ret {
            crate::base::real::real!($name: fn($($ty),*) -> $ret);
            // SAFETY: this is the C library's function of this name; the program passes the
            // arguments.
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

/// Thread-specific keys from this one up store their values in separate blocks, which a forked
/// child clears before the runtime's handler runs: <pthread.h>'s `PTHREAD_KEY_2NDLEVEL_SIZE`.
const KEYS_IN_THREAD: u32 = 32;

macro_rules! set_key {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(key: u32, value: *const c_void) -> i32 {
            crate::base::real::real!($name: fn(u32, *const c_void) -> i32);
            // SAFETY: this is the C library's function of this name; the program passes the
            // arguments.
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
    fn repeated_allocation_site_uses_program_heap() {
        let most = SITE_BYTES / (BLOCK_BYTES + 24);
        let taken = (0..1000).filter(|_| charge_site(0x1_2340, BLOCK_BYTES + 24)).count() as u64;
        assert_eq!(taken, most);
        assert!(
            charge_site(0x1_2345, BLOCK_BYTES + 24),
            "other call sites have limits of their own"
        );
        assert!(!charge_site(0x1_2346, SITE_BYTES + 1));
    }
}
