//! Reserves the address space of a window, and places the gates.

use crate::aslr::{self, Bases};
use crate::memory::{self, RESERVE, map, unmap};
use crate::raw;
use std::cell::Cell;
use std::io;
use std::ops::Range;
use std::sync::atomic::AtomicU8;

/// Window sizes, largest first. Limits (RLIMIT_AS, strict overcommit) may forbid larger ones.
pub const WINDOW_SIZES: [usize; 7] =
    [aslr::MAX_WINDOW_BYTES, 1 << 42, 1 << 40, 1 << 38, 1 << 36, 1 << 34, 1 << 32];
const SMALLEST: usize = WINDOW_SIZES[WINDOW_SIZES.len() - 1];
const GATE_TRIES: usize = 8;
const TRIES_IN_RANGE: usize = 4;

#[derive(Debug, thiserror::Error)]
pub enum WindowError {
    #[error(
        "userfaultfd is refused ({0}): {why}; remove `--faults userfaultfd`, or run `softswap \
         doctor` for details",
        why = cause(.0, "the kernel needs CONFIG_USERFAULTFD (Linux 5.11 or newer)")
    )]
    Userfaultfd(io::Error),
    #[error(
        "page protection is refused ({0}): {why}; `softswap doctor` shows what is missing",
        why = cause(
            .0,
            "/proc must be mounted, and the kernel must let a process write to its own memory \
             (the boot option proc_mem.force_override must not be `never`)"
        )
    )]
    Protection(io::Error),
    #[error(
        "cannot reserve {} GiB of address space for managed memory ({error}): \
         raise the limits with `ulimit -v unlimited` and `ulimit -d unlimited`, or set \
         vm.overcommit_memory to 0 or 1",
        bytes >> 30
    )]
    Reserve { bytes: usize, error: io::Error },
    #[error(
        "no address range is free for {} GiB of managed memory: pools and other mappings of this \
         process occupy all of them; destroy a pool, or unmap some memory",
        bytes >> 30
    )]
    Taken { bytes: usize },
}

fn cause(error: &io::Error, of_kernel: &'static str) -> &'static str {
    use rustix::thread::{SecureComputingMode, secure_computing_mode};
    let is_filtered = secure_computing_mode().is_ok_and(|mode| mode == SecureComputingMode::Filter);
    let is_by_filter =
        matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES | libc::ENOSYS));
    match is_filtered && is_by_filter {
        true => {
            "the seccomp filter of the container or service forbids the call; `softswap doctor \
             --profile` prints a profile that allows it"
        }
        false => of_kernel,
    }
}

/// Protection of a range, as bits of `mprotect`.
pub type Protection = i32;
/// The protection of managed memory unless the program sets another.
pub const READ_WRITE: Protection = libc::PROT_READ | libc::PROT_WRITE;

#[derive(Debug, Clone)]
pub struct Part {
    pub range: Range<usize>,
    /// The protection of private, anonymous memory; `None` if the mapping cannot be managed.
    pub managed_as: Option<Protection>,
}

/// Maps the gate page, before the filter that exempts its address is installed. If no address is
/// free, calls come from the library's code: each executed program installs its own filter.
pub fn place_gate() {
    place_gate_for_window();
}

/// Maps the gate page. Returns the preferred first address of the window.
pub(super) fn place_gate_for_window() -> usize {
    let mut bases = aslr::chosen_bases();
    for _ in 0..GATE_TRIES {
        if raw::place_gate(bases.gate()) {
            break;
        }
        bases = Bases::choose();
    }
    bases.window()
}

#[derive(Clone, Copy)]
enum AddressConstraint {
    /// Any address for the largest window: for a process with one window.
    Anywhere,
    ForMany,
    Within(usize, usize),
}

thread_local! {
    static ADDRESS_CONSTRAINT: Cell<AddressConstraint> = const { Cell::new(AddressConstraint::Anywhere) };
}

pub fn within<R>(area: &Range<usize>, body: impl FnOnce() -> R) -> R {
    memory::with_set(&ADDRESS_CONSTRAINT, AddressConstraint::Within(area.start, area.end), body)
}

/// Runs `body`, which reserves windows among many. They become shorter as their number grows.
pub fn among_many<R>(body: impl FnOnce() -> R) -> R {
    memory::with_set(&ADDRESS_CONSTRAINT, AddressConstraint::ForMany, body)
}

fn places(constraint: AddressConstraint, first: usize, len: usize) -> Vec<usize> {
    match constraint {
        AddressConstraint::Anywhere => {
            let ranges = aslr::windows(first).filter(|range| range.len() >= len);
            let bases = |Range { start, end }| (start..=end - len).step_by(len);
            ranges.flat_map(|range| bases(range).take(TRIES_IN_RANGE)).collect()
        }
        AddressConstraint::Within(start, end) => places_in(start, end, len).collect(),
        AddressConstraint::ForMany => {
            let areas = aslr::areas_for_many().into_iter();
            let mut places: Vec<_> =
                areas.flat_map(|area| places_in(area.start, area.end, len)).collect();
            let first = aslr::below(places.len());
            places.rotate_left(first);
            places
        }
    }
}

/// Returns addresses in an area. Its first half is for the largest windows, half of the rest for
/// the next size, and so on: there is always space for many.
fn places_in(start: usize, end: usize, len: usize) -> impl Iterator<Item = usize> {
    let sizes = WINDOW_SIZES.into_iter().filter(|size| *size <= (end - start) / 2);
    let rank = sizes.take_while(|size| *size > len).count();
    let from = end - ((end - start) >> rank);
    let to = if len == SMALLEST { end } else { end - ((end - start) >> (rank + 1)) };
    (from..to).step_by(len).take_while(move |base| base + len <= to)
}

pub(super) fn reserve_range(first: usize) -> Result<(usize, usize), WindowError> {
    let constraint = ADDRESS_CONSTRAINT.get();
    // The other half is for the engine's tables, code, stacks and unmanaged memory.
    let max_bytes = memory::address_space_limit() / 2;
    let mut refused = None;
    for len in WINDOW_SIZES.into_iter().filter(|len| *len <= max_bytes || *len == SMALLEST) {
        refused = None;
        for base in places(constraint, first, len) {
            // SAFETY: MAP_FIXED_NOREPLACE never displaces a mapping.
            match unsafe { map(base, len, READ_WRITE, RESERVE | libc::MAP_FIXED_NOREPLACE) } {
                Ok(address) if address == base => return Ok((base, len)),
                Ok(elsewhere) => {
                    // A kernel without NOREPLACE takes the address as a hint.
                    // SAFETY: the range was mapped just now, and nothing refers to it.
                    unsafe { unmap(elsewhere, len) };
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => refused = Some(error),
            }
        }
    }
    Err(match refused {
        Some(error) => WindowError::Reserve { bytes: SMALLEST, error },
        None => WindowError::Taken { bytes: SMALLEST },
    })
}

/// Returns the largest length at the start of `range`; `None` if taken, or without space.
pub fn max_len_at(range: &Range<usize>) -> Option<usize> {
    let (base, most) = (range.start, range.len().min(memory::address_space_limit() / 2));
    WINDOW_SIZES.into_iter().filter(|len| *len <= most).find(|len| {
        let flags = RESERVE | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: MAP_FIXED_NOREPLACE never displaces a mapping.
        let Ok(there) = (unsafe { map(base, *len, READ_WRITE, flags) }) else { return false };
        // SAFETY: the range was mapped just now, and nothing refers to it.
        unsafe { unmap(there, *len) };
        there == base
    })
}

pub(super) fn frame_states(count: usize) -> io::Result<&'static [AtomicU8]> {
    let bytes: &'static [u8] = memory::reserve_bytes(count)?;
    // SAFETY: an AtomicU8 has the size, alignment and values of a u8. The bytes are new and
    // writable, and their only reference is converted into this one.
    Ok(unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast::<AtomicU8>(), count) })
}
