//! Pools, regions and pins, by their handles in C.
//!
//! The handle of a pool or a pin is a number that is never reused; the handle of a region is its
//! address. So a handle that was released before, or never returned, is refused and affects no
//! other object.

use crate::options::{self, softswap_options};
use crate::refusal::{Refusal, to_errno};
use softswap::{Advice, PinOwned, Pool, Region};
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A pool's handle in C.
#[repr(C)]
#[allow(non_camel_case_types, reason = "the name is C's")]
pub struct softswap_pool {
    _opaque: [u8; 0],
}

/// Figures of a pool. Set `size` to `sizeof(struct softswap_stats)` before the call.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
#[allow(non_camel_case_types, reason = "the name is C's")]
pub struct softswap_stats {
    /// `sizeof(struct softswap_stats)`.
    pub size: usize,
    /// The limit on DRAM, in bytes.
    pub budget_bytes: u64,
    /// DRAM in use, in bytes.
    pub used_bytes: u64,
    /// Maximum of `used_bytes`.
    pub used_peak_bytes: u64,
    /// Touches that waited for a page.
    pub faults: u64,
    /// Touches that waited for a page from the disk.
    pub faults_disk: u64,
    /// Time that threads waited for pages, in ns.
    pub stalled_ns: u64,
    /// Bytes written to the disk.
    pub written_bytes: u64,
    /// Bytes read from the disk.
    pub read_bytes: u64,
}

static NEXT_HANDLE: AtomicU64 = AtomicU64::new(1);
static POOLS: Mutex<BTreeMap<u64, Pool>> = Mutex::new(BTreeMap::new());
static REGIONS: Mutex<BTreeMap<usize, Arc<Region>>> = Mutex::new(BTreeMap::new());
static PINS: Mutex<BTreeMap<u64, PinOwned>> = Mutex::new(BTreeMap::new());

fn lock<T>(table: &Mutex<T>) -> MutexGuard<'_, T> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

fn new_handle() -> u64 {
    NEXT_HANDLE.fetch_add(1, Relaxed)
}

const NO_POOL: Refusal =
    Refusal::Argument("pool: the handle is unknown, or the pool was destroyed");

fn pool_of(pool: *const softswap_pool) -> Result<Pool, Refusal> {
    let found = lock(&POOLS).get(&(pool.addr() as u64)).cloned();
    found.ok_or(NO_POOL)
}

fn region_of(address: *const c_void, len: usize) -> Result<(Arc<Region>, usize), Refusal> {
    let regions = lock(&REGIONS);
    let (start, region) = regions.range(..=address.addr()).next_back().ok_or(NO_REGION)?;
    let offset = address.addr() - start;
    let fits = offset.checked_add(len).is_some_and(|end| end <= region.len());
    if fits { Ok((Arc::clone(region), offset)) } else { Err(NO_REGION) }
}

const NO_REGION: Refusal = Refusal::Argument("address, len: the range is not in a mapped region");

/// # Safety
/// `to` is NULL, or the address of a writable `T`.
unsafe fn write_result<T>(to: *mut T, value: T) -> Result<(), Refusal> {
    if to.is_null() {
        return Err(Refusal::Argument("the result's address is NULL"));
    }
    // SAFETY: `to` is not NULL, so it is writable, as the caller promises.
    unsafe { to.write(value) };
    Ok(())
}

/// Creates a pool: see `softswap.h`.
///
/// # Safety
/// `options` is NULL, or starts with its size and has this many bytes; `pool` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softswap_pool_create(
    options: *const softswap_options,
    pool: *mut *mut softswap_pool,
) -> c_int {
    to_errno(|| {
        // SAFETY: the caller promises that `pool` is NULL or writable.
        unsafe { write_result(pool, std::ptr::null_mut())? };
        // SAFETY: the caller promises that `options` is NULL, or starts with its size and has this
        // many bytes.
        let created = unsafe { options::builder(options)? }.build()?;
        let handle = new_handle();
        lock(&POOLS).insert(handle, created);
        // SAFETY: the caller promises that `pool` is NULL or writable.
        unsafe { write_result(pool, std::ptr::without_provenance_mut(handle as usize)) }
    })
}

/// Releases a pool's handle. The pool is freed when its last region is unmapped.
#[unsafe(no_mangle)]
pub extern "C" fn softswap_pool_destroy(pool: *mut softswap_pool) -> c_int {
    to_errno(|| {
        if pool.is_null() {
            return Ok(());
        }
        let removed = lock(&POOLS).remove(&(pool.addr() as u64));
        removed.map(drop).ok_or(NO_POOL)
    })
}

/// Maps a zeroed region.
///
/// # Safety
/// `address` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softswap_map(
    pool: *mut softswap_pool,
    len: usize,
    address: *mut *mut c_void,
) -> c_int {
    to_errno(|| {
        // SAFETY: the caller promises that `address` is NULL or writable.
        unsafe { write_result(address, std::ptr::null_mut())? };
        let mut region = pool_of(pool)?.map(len)?;
        let start = region.as_mut_ptr();
        lock(&REGIONS).insert(start.addr(), Arc::new(region));
        // SAFETY: the caller promises that `address` is NULL or writable.
        unsafe { write_result(address, start.cast()) }
    })
}

/// Unmaps a whole region, given its first address.
#[unsafe(no_mangle)]
pub extern "C" fn softswap_unmap(address: *mut c_void) -> c_int {
    to_errno(|| {
        if address.is_null() {
            return Ok(());
        }
        let mut regions = lock(&REGIONS);
        let region = regions.remove(&address.addr()).ok_or(NO_REGION)?;
        match Arc::try_unwrap(region) {
            Ok(region) => {
                drop(regions);
                drop(region);
                Ok(())
            }
            Err(used) => {
                regions.insert(address.addr(), used);
                Err(softswap::Error::Shared.into())
            }
        }
    })
}

/// Announces the use of a range of a region.
#[unsafe(no_mangle)]
pub extern "C" fn softswap_advise(address: *mut c_void, len: usize, advice: c_int) -> c_int {
    to_errno(|| {
        let advice = match advice {
            0 => Advice::WillNeed,
            1 => Advice::Cold,
            2 => Advice::DontNeed,
            3 => Advice::Sequential,
            4 => Advice::Random,
            5 => Advice::Normal,
            _ => return Err(Refusal::Argument("advice: the value is not in enum softswap_advice")),
        };
        let (region, at) = region_of(address, len)?;
        if advice != Advice::DontNeed {
            return Ok(region.advise_shared(at..at + len, advice)?);
        }
        drop(region);
        let mut regions = lock(&REGIONS);
        let region = regions.get_mut(&(address.addr() - at)).ok_or(NO_REGION)?;
        let region = Arc::get_mut(region).ok_or(softswap::Error::Shared)?;
        Ok(region.advise(at..at + len, advice)?)
    })
}

/// Pins a range of a region in DRAM.
///
/// # Safety
/// `pin` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softswap_pin(address: *mut c_void, len: usize, pin: *mut u64) -> c_int {
    to_errno(|| {
        // SAFETY: the caller promises that `pin` is NULL or writable.
        unsafe { write_result(pin, 0)? };
        let (region, at) = region_of(address, len)?;
        let created = Region::pin_owned(&region, at..at + len)?;
        let handle = new_handle();
        lock(&PINS).insert(handle, created);
        // SAFETY: the caller promises that `pin` is NULL or writable.
        unsafe { write_result(pin, handle) }
    })
}

/// Releases a pin.
#[unsafe(no_mangle)]
pub extern "C" fn softswap_unpin(pin: u64) -> c_int {
    to_errno(|| {
        let removed = lock(&PINS).remove(&pin);
        removed
            .map(drop)
            .ok_or(Refusal::Argument("pin: the handle is unknown, or the pin was released"))
    })
}

/// Changes the limit on DRAM.
#[unsafe(no_mangle)]
pub extern "C" fn softswap_set_memory(pool: *mut softswap_pool, bytes: u64) -> c_int {
    to_errno(|| Ok(pool_of(pool)?.set_memory_bytes(bytes)?))
}

/// Returns figures of a pool.
///
/// # Safety
/// `stats` is NULL, or starts with its size and has this many writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softswap_pool_stats(
    pool: *mut softswap_pool,
    stats: *mut softswap_stats,
) -> c_int {
    to_errno(|| {
        let found = pool_of(pool)?.stats();
        if stats.is_null() {
            return Err(Refusal::Argument("stats: the pointer is NULL"));
        }
        // SAFETY: the caller promises that `stats` starts with its size.
        let size = unsafe { (&raw const (*stats).size).read_unaligned() };
        if !(size_of::<usize>()..=4096).contains(&size) {
            return Err(Refusal::Argument("stats: size must be sizeof(struct softswap_stats)"));
        }
        let stats_out = softswap_stats {
            size,
            budget_bytes: found.budget_bytes,
            used_bytes: found.used_bytes,
            used_peak_bytes: found.used_peak_bytes,
            faults: found.faults,
            faults_disk: found.faults_disk,
            stalled_ns: found.stalled_ns,
            written_bytes: found.written_bytes,
            read_bytes: found.read_bytes,
        };
        let len = size.min(size_of::<softswap_stats>());
        // SAFETY: the caller promises that `size` bytes are writable. `len` is at most `size`, and
        // at most the size of `stats_out`.
        unsafe { (&raw const stats_out).cast::<u8>().copy_to_nonoverlapping(stats.cast(), len) };
        Ok(())
    })
}

/// Returns all figures of a pool as one JSON object.
///
/// # Safety
/// `buffer` has `len` writable bytes; `needed` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softswap_pool_stats_json(
    pool: *mut softswap_pool,
    buffer: *mut c_char,
    len: usize,
    needed: *mut usize,
) -> c_int {
    to_errno(|| {
        let text = pool_of(pool)?.snapshot_stats_json();
        if !needed.is_null() {
            // SAFETY: `needed` is not NULL, so it is writable, as the caller promises.
            unsafe { needed.write(text.len() + 1) };
        }
        if buffer.is_null() || len <= text.len() {
            return Err(Refusal::Argument(
                "buffer: the buffer is too short; *needed has the required size",
            ));
        }
        // SAFETY: the text and its terminating zero fit into the `len` bytes, which are writable.
        unsafe {
            text.as_ptr().copy_to_nonoverlapping(buffer.cast(), text.len());
            buffer.add(text.len()).write(0);
        }
        Ok(())
    })
}
