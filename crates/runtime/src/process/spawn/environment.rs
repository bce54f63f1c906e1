//! The environment, which the C library itself passes to some children. Its array is moved out of
//! managed memory once: the filter would trap the child's exec otherwise. The strings are pinned
//! while a child starts.

use super::argument_copies::{Strings, count};
use super::fork_safe_mutex::ForkSafeMutex;
use crate::base::instance;
use crate::base::real::real;
use crate::base::resident::ResidentRanges;
use softswap_engine::api::engine::Engine;
use softswap_sys::alloc::HEAP;
use std::ffi::c_char;
use std::sync::atomic::{AtomicPtr, Ordering};

unsafe extern "C" {
    static mut environ: Strings;
}

pub(super) fn environment() -> Strings {
    // SAFETY: reads the pointer; programs that change it meanwhile race with exec in any case.
    unsafe { environ }
}

/// The runtime's array for `environ`, and its capacity in words.
struct Array {
    at: *mut *const c_char,
    capacity: usize,
}

// SAFETY: the array is in the engine's heap, which is not bound to a thread.
unsafe impl Send for Array {}

static ARRAY: ForkSafeMutex<Array> =
    ForkSafeMutex::new(Array { at: std::ptr::null_mut(), capacity: 0 });
/// `Array::at` if the C library has replaced this array by a longer one; it can then be reused. An
/// array that the program has replaced is not reused: the program may set it again.
static SUPERSEDED: AtomicPtr<*const c_char> = AtomicPtr::new(std::ptr::null_mut());

/// Moves the array of `environ` permanently, with space for `additional` strings, but not the
/// strings. Returns false if there is no memory.
///
/// No other thread may change the environment during the call, as C requires in general.
pub(super) fn move_environment(additional: usize) -> bool {
    if additional == 0 && !instance::is_managed(environment() as usize) {
        return true;
    }
    ARRAY.with(|array| {
        let original = environment();
        // SAFETY: `environ` is a null-terminated array, or null.
        let count = if original.is_null() { 0 } else { unsafe { count(original) } };
        let words = count + 1 + additional;
        let has_space = additional == 0 || (original == array.at && array.capacity >= words);
        if has_space && !instance::is_managed(original as usize) {
            return true;
        }
        let reusable = SUPERSEDED.swap(std::ptr::null_mut(), Ordering::Relaxed) == array.at;
        if !reusable || array.capacity < words {
            let capacity = words.next_power_of_two();
            let align = align_of::<usize>();
            let at =
                HEAP.allocate(capacity * size_of::<usize>(), align, false).cast::<*const c_char>();
            if at.is_null() {
                return false;
            }
            if reusable && !array.at.is_null() {
                // SAFETY: the previous array is from the engine's heap and no longer `environ`.
                unsafe { HEAP.release(array.at.cast()) };
            }
            *array = Array { at, capacity };
        }
        // SAFETY: the array has space for these words; C code reads `environ` as after a setenv.
        unsafe {
            std::ptr::copy_nonoverlapping(original, array.at, count);
            array.at.add(count).write(std::ptr::null());
            std::sync::atomic::fence(Ordering::Release);
            (&raw mut environ).write_volatile(array.at);
        }
        true
    })
}

/// Notes if `call` makes the C library replace the runtime's array by a longer one.
fn growing(call: impl FnOnce() -> i32) -> i32 {
    let before = environment();
    let result = call();
    if environment() != before && HEAP.owns(before as usize) {
        SUPERSEDED.store(before.cast_mut(), Ordering::Relaxed);
    }
    result
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn setenv(name: *const c_char, value: *const c_char, replace: i32) -> i32 {
    real!(setenv: fn(*const c_char, *const c_char, i32) -> i32);
    // SAFETY: this is the C library's function of this name; the program passes the arguments.
    growing(|| unsafe { setenv()(name, value, replace) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn putenv(text: *mut c_char) -> i32 {
    real!(putenv: fn(*mut c_char) -> i32);
    // SAFETY: this is the C library's function of this name; the program passes the arguments.
    growing(|| unsafe { putenv()(text) })
}

/// Pins the environment during `call`, which reads it in a child.
pub(super) fn with_environment<R>(engine: Option<&Engine>, call: impl FnOnce() -> R) -> R {
    let Some(engine) = engine else { return call() };
    let mut pinned = ResidentRanges::new(engine);
    let strings = environment();
    if !strings.is_null() {
        // SAFETY: `environ` is a null-terminated array of C strings.
        unsafe {
            let count = count(strings);
            pinned.add(strings as usize, (count + 1) * size_of::<usize>());
            for index in 0..count {
                let text = *strings.add(index);
                pinned.add(text as usize, libc::strlen(text) + 1);
            }
        }
    }
    call()
}
