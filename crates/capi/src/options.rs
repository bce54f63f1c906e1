//! The structure of options, to which later versions may append.

use crate::refusal::Refusal;
use softswap::{Builder, Pool};
use std::ffi::{CStr, c_char};

/// Options of a pool. Zero the structure, then set `size` to `sizeof(struct softswap_options)`.
/// Zero selects the default, also in fields that a later version adds.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(non_camel_case_types, reason = "the name is C's")]
pub struct softswap_options {
    /// `sizeof(struct softswap_options)`.
    pub size: usize,
    /// Limit on DRAM in bytes, at least 8 MiB; 0 selects 1 GiB, or half of the available memory if
    /// that is less.
    pub memory_bytes: u64,
    /// Swap areas: "DIRECTORY", "DIRECTORY:SIZE", or a swap file or device, separated by line
    /// breaks. NULL selects "/var/tmp". Read during the call only.
    pub swap: *const c_char,
    /// 1 disables encryption of data on the disk.
    pub no_encrypt: u32,
    /// 1 allows system calls to use regions directly.
    pub guard_calls: u32,
}

/// Copies the caller's options, with zeroes for fields that its version does not have.
///
/// # Safety
/// `given` is NULL, or the address of `size` readable bytes that start with `size`.
unsafe fn read(given: *const softswap_options) -> Result<softswap_options, Refusal> {
    let none = softswap_options {
        size: 0,
        memory_bytes: 0,
        swap: std::ptr::null(),
        no_encrypt: 0,
        guard_calls: 0,
    };
    if given.is_null() {
        return Ok(none);
    }
    // SAFETY: the caller promises that the structure starts with its size.
    let size = unsafe { (&raw const (*given).size).read_unaligned() };
    let known = size_of::<softswap_options>();
    if size < size_of::<usize>() || size > 4096 {
        return Err(Refusal::Argument("options: size must be sizeof(struct softswap_options)"));
    }
    let mut options = none;
    // SAFETY: the caller promises that `size` bytes are readable. The copy writes at most the size
    // of `options`, whose fields accept any bits.
    unsafe {
        let from = given.cast::<u8>();
        from.copy_to_nonoverlapping((&raw mut options).cast(), size.min(known));
        // Options of a later version would be ignored, so they must be zero.
        let later = (known..size).map(|at| from.add(at).read());
        if later.into_iter().any(|byte| byte != 0) {
            return Err(Refusal::Argument(
                "options: a field that this libsoftswap_c does not know is set; install a newer \
                 version, or set the field to 0",
            ));
        }
    }
    if options.no_encrypt > 1 || options.guard_calls > 1 {
        return Err(Refusal::Argument("options: no_encrypt and guard_calls must be 0 or 1"));
    }
    Ok(options)
}

/// # Safety
/// `given` is NULL, or the address of `size` readable bytes that start with `size`. Its `swap` is
/// NULL or a C string.
pub(crate) unsafe fn builder(given: *const softswap_options) -> Result<Builder, Refusal> {
    // SAFETY: the caller promises what `read` requires.
    let options = unsafe { read(given)? };
    let mut builder = Pool::builder();
    if options.memory_bytes != 0 {
        builder = builder.memory_bytes(options.memory_bytes);
    }
    if !options.swap.is_null() {
        // SAFETY: the caller promises that `swap` is a C string if it is not NULL.
        let areas = unsafe { CStr::from_ptr(options.swap) };
        let areas = areas.to_str().map_err(|_| Refusal::Argument("swap: the text is not UTF-8"))?;
        for area in areas.split('\n') {
            builder = builder.swap(area)?;
        }
    }
    Ok(builder.encrypt(options.no_encrypt == 0).guard_calls(options.guard_calls == 1))
}
