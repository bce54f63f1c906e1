//! The structure of options, which may grow at its end.

use crate::refusal::Refusal;
use softswap::{Builder, Pool};
use std::ffi::{CStr, c_char};

/// Options of a pool. Set all to zero, then `size` to `sizeof(struct softswap_options)`: what is
/// zero has its default, also what a later version adds.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(non_camel_case_types, reason = "the name is C's")]
pub struct softswap_options {
    /// `sizeof(struct softswap_options)`.
    pub size: usize,
    /// The limit on DRAM, in bytes; 0: 1 GiB. At least 8 MiB.
    pub memory_bytes: u64,
    /// Where pages go: "DIRECTORY", "DIRECTORY:SIZE", or a swap file or device; several are
    /// separated by line breaks. NULL: "/var/tmp". Read during the call only.
    pub swap: *const c_char,
    /// 1: what is written to the disk is not encrypted.
    pub no_encrypt: u32,
    /// 1: system calls may be given regions as they are.
    pub guard_calls: u32,
}

/// What C gave, with zeroes for what its version did not have.
///
/// # Safety
/// NULL, or the address of `size` readable bytes, where `size` is what they begin with.
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
    // SAFETY: the structure begins with its size, as asked for above.
    let size = unsafe { (&raw const (*given).size).read_unaligned() };
    let known = size_of::<softswap_options>();
    if size < size_of::<usize>() || size > 4096 {
        return Err(Refusal::Argument("options: size is not that of struct softswap_options"));
    }
    let mut options = none;
    // SAFETY: of the bytes that are there, as many as fit into the local; any bits are valid in
    // its fields.
    unsafe {
        let from = given.cast::<u8>();
        from.copy_to_nonoverlapping((&raw mut options).cast(), size.min(known));
        // A later version's options would be ignored: only zeroes may be.
        let later = (known..size).map(|at| from.add(at).read());
        if later.into_iter().any(|byte| byte != 0) {
            return Err(Refusal::Argument("options: of a later version of softswap than this"));
        }
    }
    if options.no_encrypt > 1 || options.guard_calls > 1 {
        return Err(Refusal::Argument("options: no_encrypt and guard_calls are 0 or 1"));
    }
    Ok(options)
}

/// The settings that the options say.
///
/// # Safety
/// As [`read`]; `swap` is NULL or a C string.
pub(crate) unsafe fn builder(given: *const softswap_options) -> Result<Builder, Refusal> {
    // SAFETY: as asked for above.
    let options = unsafe { read(given)? };
    let mut builder = Pool::builder();
    if options.memory_bytes != 0 {
        builder = builder.memory_bytes(options.memory_bytes);
    }
    if !options.swap.is_null() {
        // SAFETY: a C string, as asked for above.
        let areas = unsafe { CStr::from_ptr(options.swap) };
        let areas = areas.to_str().map_err(|_| Refusal::Argument("swap: is not UTF-8"))?;
        for area in areas.split('\n') {
            builder = builder.swap(area)?;
        }
    }
    Ok(builder.encrypt(options.no_encrypt == 0).guard_calls(options.guard_calls == 1))
}
