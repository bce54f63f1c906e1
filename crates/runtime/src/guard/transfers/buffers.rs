//! The program's buffers, made fit for one call of the kernel's.
//!
//! They are pinned, or the kernel gets copies instead. What is to be received is
//! received into memory that nobody has touched: it takes DRAM for what arrives,
//! however long the buffer is and however long the call waits. What is to be sent
//! is copied into a file without a name, whose pages the kernel writes back and
//! brings in by itself; a little of it, or all where no directory has room, into
//! memory.
//!
//! What is pinned, and what of a copy in memory is more than the kernel's own buffers
//! would hold, is counted first ([`crate::memory::pins`]). Who is refused waits for others, and
//! has no memory (ENOMEM) where that takes too long, or it would never do.
//!
//! A copy begins at the same place in its page as the original, and what of the
//! original may not be accessed, of the copy may not be either: so the kernel finds
//! a bad pointer just where it would have.

use crate::base::errno::refused;
use crate::base::instance;
use crate::base::issue_call::ask;
use crate::base::uaccess::TASK_SIZE;
use crate::memory::pins::Pins;
use crate::memory::spare_files;
use libc::iovec;
use softswap_engine::door::engine::Engine;
use softswap_sys::PAGE_SIZE;
use softswap_sys::exemption;
use softswap_sys::raw::now_ns;
use softswap_sys::{file, signals};
use std::path::PathBuf;
use std::sync::OnceLock;

/// As many vectors as the kernel takes.
pub(super) const MAX_VECTORS: usize = 1024;
/// The kernel cuts transfers here.
const MAX_TRANSFER_BYTES: usize = 0x7fff_f000;

/// Ranges of one call: its vectors, and what surrounds them.
pub(super) const MOST_RANGES: usize = 1536;
/// As much is copied into memory rather than a file.
const IN_MEMORY_BYTES: usize = 64 << 10;

pub(super) const EMPTY: iovec = iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
/// Vectors that need no mapping of their own.
pub(super) const FEW: usize = 10;

/// Where copies may lie, in the order in which they are tried.
static DIRECTORIES: OnceLock<Vec<PathBuf>> = OnceLock::new();

/// Notes the swap directories: copies of what is written whole go there first.
pub(crate) fn set_up(directories: impl Iterator<Item = PathBuf>) {
    let others = ["/var/tmp", "/tmp"].map(PathBuf::from);
    DIRECTORIES.get_or_init(|| directories.chain(others).collect());
}

/// Which way the data goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// In: so many bytes at most arrive that lie in no buffer of the kernel's now.
    In(usize),
    Out,
}

/// In, of what the kernel has in buffers of its own by then.
pub(super) const RECEIVED: Way = Way::In(0);

fn is_managed(vector: &iovec) -> bool {
    vector.iov_len > 0 && instance::is_managed(vector.iov_base as usize)
}

/// Bytes in managed memory that vectors name.
pub(super) fn managed_bytes(vectors: &[iovec]) -> usize {
    let managed = vectors.iter().filter(|vector| is_managed(vector));
    managed.fold(0, |sum, vector| sum.saturating_add(vector.iov_len))
}

/// Cuts vectors where the kernel would. Whether they are such as it takes at all;
/// others are for it to refuse.
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

/// Cuts vectors to so many bytes.
pub(super) fn shorten(vectors: &mut [iovec], bytes: usize) {
    let mut left = bytes;
    for vector in vectors {
        vector.iov_len = vector.iov_len.min(left);
        left -= vector.iov_len;
    }
}

/// Room for `count` values: `few` if they are, or a mapping of their own until
/// the pins end.
pub(super) fn room<'p, T: Copy>(
    pins: &mut Pins<'_, MOST_RANGES>,
    few: &'p mut [T],
    count: usize,
) -> Option<&'p mut [T]> {
    if count <= few.len() {
        return Some(&mut few[..count]);
    }
    let len = (count * size_of::<T>()).next_multiple_of(PAGE_SIZE);
    let address = pins.keep_mapping(len, 0, || in_memory(len))? as *mut T;
    let first = *few.first()?;
    for index in 0..count {
        // SAFETY: within the mapping just made, which is page-aligned.
        unsafe { address.add(index).write(first) };
    }
    // SAFETY: `count` values were written; nothing else refers to the mapping,
    // which lasts as long as the pins.
    Some(unsafe { std::slice::from_raw_parts_mut(address, count) })
}

fn map_memory(len: usize) -> Option<usize> {
    let prot = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as usize;
    let address = ask(libc::SYS_mmap, [0, len, prot, flags, usize::MAX, 0]);
    if address < 0 {
        return None;
    }
    if len >= 2 << 20 {
        // A huge page would take memory for what never arrives.
        let advice = libc::MADV_NOHUGEPAGE as usize;
        ask(libc::SYS_madvise, [address as usize, len, advice, 0, 0, 0]);
    }
    Some(address as usize)
}

pub(super) fn in_memory(len: usize) -> Option<(usize, u32)> {
    map_memory(len).map(|address| (address, 0))
}

/// A file, and which of the spare ones it is.
fn map_file(len: usize) -> Option<(usize, u32)> {
    if exemption::is_in_force() {
        // It may forbid to open one.
        return spare_files::map(len);
    }
    let mut directories = DIRECTORIES.get()?.iter();
    directories.find_map(|directory| Some((file::map_unnamed(directory, len).ok()?, 0)))
}

/// A filter of the program's own is about to be installed: what it may forbid is done now.
pub(crate) fn before_filter() {
    if let Some(directories) = DIRECTORIES.get() {
        spare_files::open(directories);
    }
}

/// Bytes that a copy of a vector takes.
fn span(vector: &iovec) -> usize {
    (vector.iov_base as usize % PAGE_SIZE + vector.iov_len).next_multiple_of(PAGE_SIZE)
}

/// The buffers of one call.
pub(super) struct Buffers<'e, 'v> {
    pins: Pins<'e, MOST_RANGES>,
    originals: &'v [iovec],
    /// The vectors that name the copies; the originals themselves where there
    /// are none.
    copies: &'v [iovec],
}

impl<'e, 'v> Buffers<'e, 'v> {
    /// Pins up to `most` bytes, if other calls leave room for them.
    pub(super) fn pinned(
        engine: &'e Engine,
        originals: &'v [iovec],
        most: usize,
    ) -> Option<Buffers<'e, 'v>> {
        let mut buffers = Buffers { pins: Pins::new(engine), originals, copies: originals };
        (managed_bytes(originals) <= most && buffers.pin()).then_some(buffers)
    }

    /// The same, or copies. The kernel's error where there is no room for copies either.
    pub(super) fn new(
        engine: &'e Engine,
        originals: &'v [iovec],
        way: Way,
        most: usize,
    ) -> Result<Buffers<'e, 'v>, isize> {
        if let Some(buffers) = Buffers::pinned(engine, originals, most) {
            return Ok(buffers);
        }
        let mut buffers = Buffers { pins: Pins::new(engine), originals, copies: originals };
        let (since, most) = (now_ns(), engine.hold_limit_bytes());
        let may_fit = managed_bytes(originals) <= most;
        loop {
            if buffers.copy(engine, way) || may_fit && buffers.pin() {
                return Ok(buffers);
            }
            let may_come = may_fit || exemption::is_in_force() && spare_files::are_there();
            if !may_come || !buffers.pins.may_wait(since) {
                return Err(refused(libc::ENOMEM));
            }
        }
    }

    /// What the kernel is to be given.
    pub(super) fn vectors(&self) -> &[iovec] {
        self.copies
    }

    /// Pins what is managed, all of it or nothing. What is not mapped stays as it is: the
    /// kernel says so.
    fn pin(&mut self) -> bool {
        let managed = || self.originals.iter().filter(|vector| is_managed(vector));
        if managed().count() > self.pins.room() {
            return false;
        }
        let mark = self.pins.mark();
        for vector in managed() {
            let (base, len) = (vector.iov_base as usize, vector.iov_len);
            // A page a copy of which elsewhere would take as much.
            let is_alone = self.originals.len() == 1 && len <= PAGE_SIZE;
            let pinned = self.pins.add_held(base, len);
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

    fn copy(&mut self, engine: &Engine, way: Way) -> bool {
        let array = size_of_val(self.originals).next_multiple_of(PAGE_SIZE);
        let managed = self.originals.iter().filter(|vector| is_managed(vector));
        let len = managed.fold(array, |sum, vector| sum + span(vector));
        let pins = &mut self.pins;
        let (held, file_first) = match way {
            Way::In(held) => (held.min(len), false),
            Way::Out => (len, len - array > IN_MEMORY_BYTES),
        };
        let base = [file_first, !file_first].into_iter().find_map(|in_file| match in_file {
            true if held > 0 => pins.keep_mapping(len, 0, || map_file(len)),
            true => None,
            false => pins.keep_mapping(len, held, || in_memory(len)),
        });
        let Some(base) = base else { return false };
        let mut at = base + array;
        for (index, vector) in self.originals.iter().enumerate() {
            let mut copied = *vector;
            if is_managed(vector) {
                copied.iov_base = copy_of(engine, vector, at, way) as *mut _;
                at += span(vector);
            }
            // SAFETY: the array's room at the start of the new mapping.
            unsafe { (base as *mut iovec).add(index).write(copied) };
        }
        // SAFETY: all of it was written; it lasts as long as the pins.
        self.copies =
            unsafe { std::slice::from_raw_parts(base as *const iovec, self.originals.len()) };
        true
    }

    /// Gives the program the `bytes` that the kernel put into the vectors from
    /// `first` to `end`.
    pub(super) fn hand_back(&self, first: usize, end: usize, bytes: usize) {
        let mut left = bytes;
        for (copied, original) in self.copies[first..end].iter().zip(&self.originals[first..end]) {
            let len = copied.iov_len.min(left);
            left -= len;
            if copied.iov_base != original.iov_base && len > 0 {
                // SAFETY: the kernel wrote as much into the copy, which it may
                // only where the program may write to the original.
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

/// Makes the copy of a vector in the room at `at`; its address.
fn copy_of(engine: &Engine, vector: &iovec, at: usize, way: Way) -> usize {
    let wanted = if way == Way::Out { libc::PROT_READ } else { libc::PROT_WRITE };
    let (base, len) = (vector.iov_base as usize, vector.iov_len);
    let allowed = signals::with_all_blocked(|| engine.allowed_bytes(base, len, wanted));
    let address = at + base % PAGE_SIZE;
    if way == Way::Out {
        // SAFETY: the program may read the original, which a touch brings in; the
        // copy's room is in a mapping just made.
        unsafe {
            std::ptr::copy_nonoverlapping(base as *const u8, address as *mut u8, allowed);
        }
    }
    if allowed < len {
        let bad = if allowed == 0 { at } else { address + allowed };
        let len = at + span(vector) - bad;
        ask(libc::SYS_mprotect, [bad, len, libc::PROT_NONE as usize, 0, 0, 0]);
    }
    address
}

/// One call over whole buffers.
pub(super) fn whole(
    engine: &Engine,
    originals: &[iovec],
    way: Way,
    most: usize,
    go: impl FnOnce(&[iovec]) -> isize,
) -> isize {
    let buffers = match Buffers::new(engine, originals, way, most) {
        Ok(buffers) => buffers,
        Err(error) => return error,
    };
    let result = go(buffers.vectors());
    if way != Way::Out && result > 0 {
        buffers.hand_back(0, originals.len(), result as usize);
    }
    result
}
