//! Secret values: the keys of the swap areas. Their own mappings are locked into DRAM, excluded
//! from core dumps, and wiped when dropped. Code that has used a secret calls [`wipe_registers`].

use crate::PAGE_SIZE;
use crate::raw;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::rand::{GetRandomFlags, getrandom};
use std::hint::black_box;
use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use zeroize::{Zeroize, Zeroizing};

/// Bytes of stack below the caller that are wiped after a secret was created there.
const STACK_BYTES: usize = 16 << 10;

struct Pages {
    start: *mut u8,
    len: usize,
    is_locked: AtomicBool,
}

impl Pages {
    /// Maps pages that are excluded from core dumps. The kernel may still swap them out.
    fn map(len: usize) -> io::Result<Pages> {
        let len = len.next_multiple_of(PAGE_SIZE).max(PAGE_SIZE);
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )?
        };
        let pages = Pages { start: start.cast(), len, is_locked: AtomicBool::new(false) };
        // SAFETY: the range was mapped just above; the advice changes no content.
        unsafe { rustix::mm::madvise(start, len, Advice::LinuxDontDump)? };
        Ok(pages)
    }

    fn wipe_on_fork(&self) -> io::Result<()> {
        // SAFETY: this process's content does not change.
        unsafe { rustix::mm::madvise(self.start.cast(), self.len, Advice::LinuxWipeOnFork)? };
        Ok(())
    }

    fn lock(&self) {
        let args = [self.start as usize, self.len, 0, 0, 0, 0];
        // SAFETY: no content changes; the pages are mapped while `self` exists.
        let is_locked = unsafe { raw::syscall(libc::SYS_mlock2, args) == 0 };
        self.is_locked.store(is_locked, Ordering::Relaxed);
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the pages are `len` writable bytes of any content, without other references.
        let bytes: &mut [MaybeUninit<u8>] =
            unsafe { std::slice::from_raw_parts_mut(self.start.cast(), self.len) };
        bytes.zeroize();
        // rustix's raw call, because the C library's function is interposed.
        // SAFETY: the mapping belongs to this value, and nothing refers to it any more.
        let _ = unsafe { rustix::mm::munmap(self.start.cast(), self.len) };
    }
}

/// A secret that forked children inherit.
pub struct Secret<T> {
    pages: Pages,
    value: PhantomData<T>,
}

// SAFETY: only this value refers to the pages, and their `T` may move to another thread.
unsafe impl<T: Send> Send for Secret<T> {}
// SAFETY: a shared `Secret` gives only `&T`, an atomic flag, and calls that keep the value.
unsafe impl<T: Sync> Sync for Secret<T> {}

impl<T> Secret<T> {
    /// Stores the result of `make`. Wipes the stack that `make` used.
    pub fn new(make: impl FnOnce() -> io::Result<T>) -> io::Result<Secret<T>> {
        const { assert!(align_of::<T>() <= PAGE_SIZE) };
        let pages = Pages::map(size_of::<T>())?;
        // Lock the pages first: a secret in unlocked pages could be swapped out.
        pages.lock();
        let result = wiping(|| make_at(pages.start.cast(), make));
        result.map(|()| Secret { pages, value: PhantomData })
    }

    /// Locks the pages again in a forked child, which does not inherit the lock.
    pub fn lock_again(&self) {
        self.pages.lock();
    }

    /// Returns true if the value is locked into DRAM, which `RLIMIT_MEMLOCK` may forbid.
    pub fn is_locked(&self) -> bool {
        self.pages.is_locked.load(Ordering::Relaxed)
    }
}

impl<T> Deref for Secret<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: `new` stored a `T` there until `self` is dropped, and all references are shared.
        unsafe { &*self.pages.start.cast() }
    }
}

impl<T> Drop for Secret<T> {
    fn drop(&mut self) {
        // SAFETY: `new` stored a `T` there, and no reference to it remains.
        unsafe { std::ptr::drop_in_place(self.pages.start.cast::<T>()) };
    }
}

/// A secret that no forked child inherits: it finds zeroes (MADV_WIPEONFORK), and can renew it.
pub struct Unshared<T> {
    pages: Pages,
    value: PhantomData<T>,
}

/// Content of the pages. All zeroes mean `EMPTY` and no value.
#[repr(C)]
struct Held<T> {
    state: AtomicU32,
    value: MaybeUninit<T>,
}

const EMPTY: u32 = 0;
const CREATING: u32 = 1;
const PRESENT: u32 = 2;

// SAFETY: only this value refers to the pages, and their `T` may move to another thread.
unsafe impl<T: Send> Send for Unshared<T> {}
// SAFETY: a shared value gives access only to `&T` and atomics.
unsafe impl<T: Sync> Sync for Unshared<T> {}

impl<T> Unshared<T> {
    /// Fails if `make` fails, or the kernel lacks MADV_WIPEONFORK.
    pub fn new(make: impl FnOnce() -> io::Result<T>) -> io::Result<Unshared<T>> {
        const { assert!(align_of::<Held<T>>() <= PAGE_SIZE && !std::mem::needs_drop::<T>()) };
        let pages = Pages::map(size_of::<Held<T>>())?;
        pages.wipe_on_fork()?;
        pages.lock();
        let unshared = Unshared { pages, value: PhantomData };
        unshared.renew(make)?;
        Ok(unshared)
    }

    /// Stores a value if there is none, as in a forked child.
    pub fn renew(&self, make: impl FnOnce() -> io::Result<T>) -> io::Result<()> {
        let held = self.pages.start.cast::<Held<T>>();
        let change =
            self.state().compare_exchange(EMPTY, CREATING, Ordering::Acquire, Ordering::Relaxed);
        if change.is_err() {
            return Ok(());
        }
        // SAFETY: `held` is in the pages, and the state reserves its value for this call.
        let result = wiping(|| make_at(unsafe { &raw mut (*held).value }.cast::<T>(), make));
        self.state().store(if result.is_ok() { PRESENT } else { EMPTY }, Ordering::Release);
        result
    }

    /// Returns `None` in a child without a value. No thread may fork while another is in `body`.
    pub fn with<R>(&self, body: impl FnOnce(&T) -> R) -> Option<R> {
        if self.state().load(Ordering::Acquire) != PRESENT {
            return None;
        }
        let held = self.pages.start.cast::<Held<T>>();
        // SAFETY: the state shows that a value exists. It exists until `self` is dropped or a fork
        // wipes it in the child. The callers promise that no thread is here during a fork.
        Some(body(unsafe { (*held).value.assume_init_ref() }))
    }

    pub fn lock_again(&self) {
        self.pages.lock();
    }

    pub fn is_locked(&self) -> bool {
        self.pages.is_locked.load(Ordering::Relaxed)
    }

    fn state(&self) -> &AtomicU32 {
        // SAFETY: the state is the first word of pages of `self`, and accessed atomically only.
        unsafe { &*self.pages.start.cast::<AtomicU32>() }
    }
}

/// Calls `body` and wipes the stack and the registers that it used.
pub fn wiping<R>(body: impl FnOnce() -> R) -> R {
    let result = call(body);
    wipe_stack();
    wipe_registers();
    wipe_upper_registers();
    result
}

/// Not inlined, so that the whole frame is below the caller's.
#[inline(never)]
fn call<R>(body: impl FnOnce() -> R) -> R {
    body()
}

#[inline(never)]
fn make_at<T>(place: *mut T, make: impl FnOnce() -> io::Result<T>) -> io::Result<()> {
    let value = make()?;
    // SAFETY: the callers pass the address of mapped, aligned space for a `T`, without a value.
    unsafe { place.write(value) };
    Ok(())
}

#[inline(never)]
fn wipe_stack() {
    let mut bytes = [0_u8; STACK_BYTES];
    bytes.zeroize();
    black_box(&mut bytes);
}

/// Overwrites the registers of ciphers' keys: signal frames and core dumps contain them.
pub fn wipe_registers() {
    if is_x86_feature_detected!("avx") {
        // SAFETY: the processor has the instruction, and all changes are declared. Ciphers use the
        // first 16 registers.
        unsafe {
            std::arch::asm!(
                "vzeroall",
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                options(nomem, nostack, preserves_flags)
            );
        }
        return;
    }
    // SAFETY: every x86_64 processor has these instructions, and all changes are declared.
    unsafe {
        std::arch::asm!(
            "pxor xmm0, xmm0", "pxor xmm1, xmm1", "pxor xmm2, xmm2", "pxor xmm3, xmm3",
            "pxor xmm4, xmm4", "pxor xmm5, xmm5", "pxor xmm6, xmm6", "pxor xmm7, xmm7",
            "pxor xmm8, xmm8", "pxor xmm9, xmm9", "pxor xmm10, xmm10", "pxor xmm11, xmm11",
            "pxor xmm12, xmm12", "pxor xmm13, xmm13", "pxor xmm14, xmm14", "pxor xmm15, xmm15",
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
            out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
            options(nomem, nostack, preserves_flags)
        );
    }
}

/// Overwrites the registers of AVX-512: the C library's `memcpy` copies secrets through them.
fn wipe_upper_registers() {
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: processor and kernel support these registers, and all changes are declared.
        unsafe {
            std::arch::asm!(
                "vpxord zmm16, zmm16, zmm16", "vpxord zmm17, zmm17, zmm17",
                "vpxord zmm18, zmm18, zmm18", "vpxord zmm19, zmm19, zmm19",
                "vpxord zmm20, zmm20, zmm20", "vpxord zmm21, zmm21, zmm21",
                "vpxord zmm22, zmm22, zmm22", "vpxord zmm23, zmm23, zmm23",
                "vpxord zmm24, zmm24, zmm24", "vpxord zmm25, zmm25, zmm25",
                "vpxord zmm26, zmm26, zmm26", "vpxord zmm27, zmm27, zmm27",
                "vpxord zmm28, zmm28, zmm28", "vpxord zmm29, zmm29, zmm29",
                "vpxord zmm30, zmm30, zmm30", "vpxord zmm31, zmm31, zmm31",
                out("xmm16") _, out("xmm17") _, out("xmm18") _, out("xmm19") _,
                out("xmm20") _, out("xmm21") _, out("xmm22") _, out("xmm23") _,
                out("xmm24") _, out("xmm25") _, out("xmm26") _, out("xmm27") _,
                out("xmm28") _, out("xmm29") _, out("xmm30") _, out("xmm31") _,
                options(nomem, nostack, preserves_flags)
            );
        }
    }
}

pub fn with_random<const N: usize, R>(body: impl FnOnce(&[u8; N]) -> R) -> io::Result<R> {
    let mut bytes = Zeroizing::new([0; N]);
    let mut done = 0;
    while done < N {
        match getrandom(&mut bytes[done..], GetRandomFlags::empty()) {
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(body(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_wiped_before_release() {
        // A second mapping of the same memory shows the content after the first was dropped.
        let file = rustix::fs::memfd_create("secret", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, PAGE_SIZE as u64).unwrap();
        let map = || {
            // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
            unsafe {
                rustix::mm::mmap(
                    std::ptr::null_mut(),
                    PAGE_SIZE,
                    ProtFlags::READ | ProtFlags::WRITE,
                    MapFlags::SHARED,
                    &file,
                    0,
                )
                .unwrap()
            }
        };
        let (start, remaining) = (map(), map().cast::<[u8; PAGE_SIZE]>());
        // SAFETY: both are mapped, a page long, and used by this test alone.
        unsafe {
            start.cast::<[u8; PAGE_SIZE]>().write_volatile([0xA5; PAGE_SIZE]);
            assert!(remaining.read_volatile() == [0xA5; PAGE_SIZE]);
            drop(Pages { start: start.cast(), len: PAGE_SIZE, is_locked: AtomicBool::new(false) });
            assert!(remaining.read_volatile() == [0; PAGE_SIZE]);
        }
    }

    #[test]
    fn unshared_value_is_zero_in_forked_child() {
        use crate::probe::{Ended, in_child};
        let unshared = Unshared::new(|| Ok([0xA5_u8; 32])).unwrap();
        let seen = in_child(|| {
            // SAFETY: the pages are mapped, and this process has one thread.
            let bytes = unsafe { std::slice::from_raw_parts(unshared.pages.start, PAGE_SIZE) };
            let is_wiped = bytes.iter().all(|byte| *byte == 0) && unshared.with(|_| ()).is_none();
            let is_new = unshared.renew(|| Ok([7; 32])).is_ok()
                && unshared.with(|value| value[0]) == Some(7);
            i32::from(!(is_wiped && is_new))
        });
        assert_eq!(seen.unwrap(), Ended::Exit(0));
        assert_eq!(unshared.with(|value| *value), Some([0xA5; 32]));
        assert!(Unshared::<u8>::new(|| Err(io::ErrorKind::Other.into())).is_err());
    }

    #[test]
    fn construction_failure_is_an_error() {
        let refused = Secret::<u8>::new(|| Err(io::ErrorKind::Other.into()));
        assert!(refused.is_err());
        let shared = std::sync::Arc::new(());
        let held = std::sync::Arc::clone(&shared);
        drop(Secret::new(move || Ok(held)).unwrap());
        assert_eq!(std::sync::Arc::strong_count(&shared), 1);
    }

    #[test]
    fn random_bytes_differ() {
        let draw = || with_random(|bytes: &[u8; 32]| *bytes).unwrap();
        assert_ne!(draw(), draw());
    }

    #[test]
    fn registers_are_wiped() {
        let remaining: u64;
        // SAFETY: only the declared register changes.
        unsafe {
            std::arch::asm!("movq xmm9, {}", in(reg) u64::MAX, out("xmm9") _);
        }
        wipe_registers();
        // SAFETY: the code copies a register into another one, which is declared.
        unsafe {
            std::arch::asm!("movq {}, xmm9", out(reg) remaining);
        }
        assert_eq!(remaining, 0);
    }
}
