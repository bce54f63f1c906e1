//! The program's buffers, prepared for one kernel call.
//!
//! Buffers are pinned, or the kernel gets copies in anonymous memory outside the window; in files
//! the data would reach a disk unsealed. A receive copy is untouched memory, so it takes DRAM only
//! for the bytes that arrive. A send copy takes as much as the buffer; it is used if the call has
//! more ranges than can be pinned.
//!
//! Pins and copies are counted before they are made ([`crate::memory::pins`]), except for received
//! bytes that the kernel's own buffers already hold. A call that exceeds the limit waits for other
//! calls. It fails with ENOMEM on timeout, or if its own buffers exceed the limit.
//!
//! A copy starts at the same offset in its page as the original, and has the same inaccessible
//! parts. So the kernel reports a bad pointer at the same byte.

use crate::base::errno::refused;
use crate::base::instance;
use crate::base::issue_call::engine_syscall;
use crate::base::uaccess::TASK_SIZE;
use crate::memory::pins::{Pins, undivided_limit_bytes};
use libc::iovec;
use softswap_engine::api::engine::Engine;
use softswap_sys::PAGE_SIZE;
use softswap_sys::raw::{now_ns, write_stderr_fmt};
use softswap_sys::signals;
use std::sync::atomic::{AtomicBool, Ordering};

/// Maximum number of vectors that the kernel accepts in one call.
pub(super) const MAX_VECTORS: usize = 1024;
/// Length to which the kernel truncates a transfer.
pub(super) const MAX_TRANSFER_BYTES: usize = 0x7fff_f000;

/// Maximum number of ranges that one call pins: its vectors, addresses and control data.
pub(super) const MAX_RANGES: usize = 1536;

pub(super) const EMPTY: iovec = iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
/// Number of vectors that are stored on the stack; more need a mapping.
pub(super) const INLINE_COUNT: usize = 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Strategy {
    /// The kernel writes. The value is the most bytes that its own buffers do not hold yet.
    In(usize),
    /// The kernel reads the buffers.
    Out,
}

/// The kernel writes data that its own buffers already hold.
pub(super) const RECEIVED: Strategy = Strategy::In(0);

fn is_managed(vector: &iovec) -> bool {
    vector.iov_len > 0 && instance::is_managed(vector.iov_base as usize)
}

pub(super) fn total_bytes(vectors: &[iovec]) -> usize {
    vectors.iter().map(|vector| vector.iov_len).sum()
}

pub(super) fn managed_bytes(vectors: &[iovec]) -> usize {
    let managed = vectors.iter().filter(|vector| is_managed(vector));
    managed.fold(0, |sum, vector| sum.saturating_add(vector.iov_len))
}

/// Truncates vectors as the kernel does. Returns false for a call that the kernel rejects.
pub(super) fn cut(vectors: &mut [iovec]) -> bool {
    let is_good = |vector: &iovec| {
        let end = (vector.iov_base as usize).checked_add(vector.iov_len);
        end.is_some_and(|end| end <= TASK_SIZE)
    };
    if !vectors.iter().all(is_good) {
        return false;
    }
    shorten(vectors, MAX_TRANSFER_BYTES);
    true
}

pub(super) fn shorten(vectors: &mut [iovec], bytes: usize) {
    let mut left = bytes;
    for vector in vectors {
        vector.iov_len = vector.iov_len.min(left);
        left -= vector.iov_len;
    }
}

/// Returns `inline` if `count` values fit, otherwise a mapping that lasts as long as the pins.
pub(super) fn space_for<'p, T: Copy>(
    pins: &mut Pins<'_, MAX_RANGES>,
    inline: &'p mut [T],
    count: usize,
) -> Option<&'p mut [T]> {
    if count <= inline.len() {
        return Some(&mut inline[..count]);
    }
    let len = (count * size_of::<T>()).next_multiple_of(PAGE_SIZE);
    let address = pins.keep_mapping(len, 0, || map_memory(len))? as *mut T;
    let first = *inline.first()?;
    for index in 0..count {
        // SAFETY: the value is within the mapping just made, which is page-aligned.
        unsafe { address.add(index).write(first) };
    }
    // SAFETY: `count` values were written; only the result refers to the mapping.
    Some(unsafe { std::slice::from_raw_parts_mut(address, count) })
}

pub(super) fn map_memory(len: usize) -> Option<usize> {
    let prot = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as usize;
    let address = engine_syscall(libc::SYS_mmap, [0, len, prot, flags, usize::MAX, 0]);
    if address < 0 {
        return None;
    }
    if len >= 2 << 20 {
        // A huge page would take memory for bytes that never arrive.
        let advice = libc::MADV_NOHUGEPAGE as usize;
        engine_syscall(libc::SYS_madvise, [address as usize, len, advice, 0, 0, 0]);
    }
    Some(address as usize)
}

pub(super) fn too_long(engine: &Engine, originals: &[iovec]) -> isize {
    static IS_REPORTED_ONCE: AtomicBool = AtomicBool::new(false);
    if !IS_REPORTED_ONCE.swap(true, Ordering::Relaxed) {
        let most = undivided_limit_bytes(engine) >> 10;
        write_stderr_fmt(format_args!(
            "softswap: a system call that cannot be split fails with ENOMEM: its buffers have {} \
             KiB, and all such calls together may use {most} KiB of the budget; raise --memory\n",
            managed_bytes(originals).div_ceil(1 << 10)
        ));
    }
    refused(libc::ENOMEM)
}

/// Returns the size of a vector's copy, in whole pages.
fn span(vector: &iovec) -> usize {
    (vector.iov_base as usize % PAGE_SIZE + vector.iov_len).next_multiple_of(PAGE_SIZE)
}

pub(super) struct Buffers<'e, 'v> {
    pins: Pins<'e, MAX_RANGES>,
    originals: &'v [iovec],
    /// Vectors of the copies; the originals if nothing is copied.
    copies: &'v [iovec],
}

impl<'e, 'v> Buffers<'e, 'v> {
    /// Returns `None` if they exceed `most` bytes, or if other calls hold too much of the limit.
    pub(super) fn pinned(
        engine: &'e Engine,
        originals: &'v [iovec],
        most: usize,
    ) -> Option<Buffers<'e, 'v>> {
        let mut buffers = Buffers { pins: Pins::new(engine), originals, copies: originals };
        (managed_bytes(originals) <= most && buffers.pin()).then_some(buffers)
    }

    /// Pins all buffers of a call that cannot be split, within the larger limit of such calls.
    pub(super) fn undivided(engine: &'e Engine, originals: &'v [iovec]) -> Option<Buffers<'e, 'v>> {
        let mut buffers = Buffers { pins: Pins::new(engine), originals, copies: originals };
        let fits = managed_bytes(originals) <= undivided_limit_bytes(engine);
        (fits && buffers.pin_by(Pins::add_undivided)).then_some(buffers)
    }

    pub(super) fn new(
        engine: &'e Engine,
        originals: &'v [iovec],
        strategy: Strategy,
        most: usize,
    ) -> Result<Buffers<'e, 'v>, isize> {
        if let Some(buffers) = Buffers::pinned(engine, originals, most) {
            return Ok(buffers);
        }
        let mut buffers = Buffers { pins: Pins::new(engine), originals, copies: originals };
        let since = now_ns();
        let bytes = managed_bytes(originals);
        loop {
            let fits = bytes <= undivided_limit_bytes(engine);
            if strategy == Strategy::Out && fits && buffers.pin_by(Pins::add_undivided)
                || buffers.copy(engine, strategy)
                || fits && buffers.pin()
            {
                return Ok(buffers);
            }
            if !fits || !buffers.pins.may_wait(since) {
                return Err(too_long(engine, originals));
            }
        }
    }

    pub(super) fn vectors(&self) -> &[iovec] {
        self.copies
    }

    /// Pins all managed buffers or none. The kernel reports unmapped memory.
    fn pin(&mut self) -> bool {
        self.pin_by(Pins::add_held)
    }

    fn pin_by(
        &mut self,
        pin: impl Fn(&mut Pins<'e, MAX_RANGES>, usize, usize) -> Option<usize>,
    ) -> bool {
        let managed = || self.originals.iter().filter(|vector| is_managed(vector));
        if managed().count() > self.pins.free_entries() {
            return false;
        }
        let mark = self.pins.mark();
        for vector in managed() {
            let (base, len) = (vector.iov_base as usize, vector.iov_len);
            // A copy of a single page would take as much memory as pinning it.
            let is_alone = self.originals.len() == 1 && len <= PAGE_SIZE;
            let pinned = pin(&mut self.pins, base, len);
            if pinned.is_none() && !is_alone {
                self.pins.back_to(mark);
                return false;
            }
            if pinned.is_none() {
                self.pins.add(base, len, len);
            }
        }
        true
    }

    fn copy(&mut self, engine: &Engine, strategy: Strategy) -> bool {
        let array = size_of_val(self.originals).next_multiple_of(PAGE_SIZE);
        let managed = self.originals.iter().filter(|vector| is_managed(vector));
        let len = managed.fold(array, |sum, vector| sum + span(vector));
        let pins = &mut self.pins;
        let held = match strategy {
            Strategy::In(held) => held.min(len),
            Strategy::Out => len,
        };
        let Some(base) = pins.keep_mapping(len, held, || map_memory(len)) else { return false };
        let mut at = base + array;
        for (index, vector) in self.originals.iter().enumerate() {
            let mut copied = *vector;
            if is_managed(vector) {
                copied.iov_base = copy_of(engine, vector, at, strategy) as *mut _;
                at += span(vector);
            }
            // SAFETY: the entry is within the array at the start of the new mapping.
            unsafe { (base as *mut iovec).add(index).write(copied) };
        }
        // SAFETY: all entries were written; the mapping lasts as long as the pins.
        self.copies =
            unsafe { std::slice::from_raw_parts(base as *const iovec, self.originals.len()) };
        true
    }

    /// Copies `bytes` that the kernel has written to the vectors `first..end` into the originals.
    pub(super) fn hand_back(&self, first: usize, end: usize, bytes: usize) {
        let mut left = bytes;
        for (copied, original) in self.copies[first..end].iter().zip(&self.originals[first..end]) {
            let len = copied.iov_len.min(left);
            left -= len;
            if copied.iov_base != original.iov_base && len > 0 {
                // SAFETY: the kernel wrote `len` bytes to the copy; the original is as writable.
                unsafe {
                    std::ptr::copy_nonoverlapping(
                        copied.iov_base.cast::<u8>(),
                        original.iov_base.cast::<u8>(),
                        len,
                    );
                }
            }
        }
    }
}

fn copy_of(engine: &Engine, vector: &iovec, at: usize, strategy: Strategy) -> usize {
    let wanted = if strategy == Strategy::Out { libc::PROT_READ } else { libc::PROT_WRITE };
    let (base, len) = (vector.iov_base as usize, vector.iov_len);
    let allowed = signals::with_all_blocked(|| engine.allowed_bytes(base, len, wanted));
    let address = at + base % PAGE_SIZE;
    if strategy == Strategy::Out {
        // SAFETY: the program may read the original; the copy's space is in a new mapping.
        unsafe {
            std::ptr::copy_nonoverlapping(base as *const u8, address as *mut u8, allowed);
        }
    }
    if allowed < len {
        let bad = if allowed == 0 { at } else { address + allowed };
        let len = at + span(vector) - bad;
        engine_syscall(libc::SYS_mprotect, [bad, len, libc::PROT_NONE as usize, 0, 0, 0]);
    }
    address
}

pub(super) fn whole(
    engine: &Engine,
    originals: &[iovec],
    strategy: Strategy,
    most: usize,
    issue: impl FnOnce(&[iovec]) -> isize,
) -> isize {
    let buffers = match Buffers::new(engine, originals, strategy, most) {
        Ok(buffers) => buffers,
        Err(error) => return error,
    };
    let result = issue(buffers.vectors());
    if strategy != Strategy::Out && result > 0 {
        buffers.hand_back(0, originals.len(), result as usize);
    }
    result
}
