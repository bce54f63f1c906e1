//! Blocks of `realloc` that grow where they are.
//!
//! mimalloc makes a large block larger by a new one and a copy. Of memory that
//! is mostly out that is the worst that can be done: all of the old block comes
//! in, and as much leaves again for the new one; in small steps a block of 64 MiB
//! is copied dozens of times. So a block that grows beyond
//! a megabyte is copied once more, to a mapping of its own with room after
//! it, and grows there from then on.
//!
//! Such a block begins at a multiple of [`ROOMY_ALIGN_BYTES`], where hardly any
//! other does: one instruction tells the others apart. Its length is in a table
//! by address. Nobody waits for anybody there: a block belongs to who frees it
//! or lets it grow, and an entry is written before the address is handed out and
//! after it was given up. So a forked child finds the table whole.

use crate::base::instance;
use crate::base::issue_call::issue;
use crate::memory::asleep;
use softswap_engine::door::engine::{Engine, Move, ROOMY_ALIGN_BYTES};
use softswap_sys::memory::reserve_u64;
use softswap_sys::window::READ_WRITE;
use softswap_sys::{PAGE_SIZE, signals};
use std::io;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Blocks become growing ones when they grow to so much: first this, for each
/// takes tables of its own, 12 KiB. Its pages are fresh ones, too, where mimalloc
/// has some at hand that were freed; so where growing blocks are freed again,
/// only longer ones become such, up to eight times as long.
const LEAST_BYTES: usize = 1 << 20;
static LEAST: AtomicUsize = AtomicUsize::new(LEAST_BYTES);
/// What shrinks below this becomes an ordinary block again, so that many small
/// ones do not each hold a page and tables.
pub(crate) const SMALL_BYTES: usize = LEAST_BYTES / 8;

/// Where growing blocks can be, and how long they are.
struct Blocks {
    places: Range<usize>,
    /// Bytes of the block at each place; 0 where there is none.
    lens: &'static [AtomicU64],
}

static BLOCKS: OnceLock<Blocks> = OnceLock::new();

/// Makes the table, for an engine that has just come up.
pub(crate) fn set_up(engine: &Engine) -> io::Result<()> {
    make_table(engine.roomy())
}

/// The table, unless a process that slept has made it.
fn make_table(places: Range<usize>) -> io::Result<()> {
    if BLOCKS.get().is_some() {
        return Ok(());
    }
    let lens = reserve_u64(places.len().div_ceil(ROOMY_ALIGN_BYTES))?;
    BLOCKS.get_or_init(|| Blocks { places, lens });
    Ok(())
}

impl Blocks {
    fn len_at(&self, address: usize) -> Option<&AtomicU64> {
        let is_place = self.places.contains(&address) && address.is_multiple_of(ROOMY_ALIGN_BYTES);
        is_place.then(|| &self.lens[(address - self.places.start) / ROOMY_ALIGN_BYTES])
    }
}

fn note(address: usize, len: usize) {
    if let Some(entry) = BLOCKS.get().and_then(|blocks| blocks.len_at(address)) {
        entry.store(len as u64, Ordering::Release);
    }
}

/// The bytes of a growing block; `None` for all other pointers.
#[inline]
pub(crate) fn usable(address: usize) -> Option<usize> {
    if address.is_multiple_of(ROOMY_ALIGN_BYTES) { look_up(address) } else { None }
}

#[cold]
fn look_up(address: usize) -> Option<usize> {
    let len = BLOCKS.get()?.len_at(address)?.load(Ordering::Acquire);
    (len > 0).then_some(len as usize)
}

/// Whole pages for `size` bytes, if the engine serves such mappings.
fn pages_for(engine: &Engine, size: usize) -> Option<usize> {
    let len = size.checked_next_multiple_of(PAGE_SIZE)?;
    (len <= engine.window().1 / 4).then_some(len)
}

/// Whether a block that grows to `size` bytes is to be a growing one.
#[inline]
pub(crate) fn is_worth_it(size: usize) -> bool {
    size >= LEAST.load(Ordering::Relaxed)
}

/// A new growing block of at least `size` bytes.
pub(crate) fn allocate(size: usize) -> Option<usize> {
    if let Some(address) = allocate_asleep(size) {
        return Some(address);
    }
    let engine = instance::engine()?;
    let len = pages_for(engine, size)?;
    let address = signals::with_all_blocked(|| engine.map_roomy(len, READ_WRITE)).ok()??;
    note(address, len);
    Some(address)
}

/// As [`allocate`], while this process sleeps.
fn allocate_asleep(size: usize) -> Option<usize> {
    if !instance::is_asleep() {
        return None;
    }
    let (base, len) = instance::window()?;
    make_table(base + len / 2..base + len).ok()?;
    let len = size.checked_next_multiple_of(PAGE_SIZE)?;
    let address = asleep::map_roomy(len)?;
    note(address, len);
    Some(address)
}

/// Makes the growing block at `address`, of `old_len` bytes, longer or shorter.
/// Returns where it is now; `None` when that cannot be, and it is what it was.
pub(crate) fn resize(address: usize, old_len: usize, size: usize) -> Option<usize> {
    if instance::is_asleep() {
        let len = size.checked_next_multiple_of(PAGE_SIZE)?;
        note(address, 0);
        let there = asleep::resize_roomy(address, old_len, len);
        // Awake by now, it is the engine's.
        let is_done = there.is_some() || instance::is_asleep();
        note(there.unwrap_or(address), if there.is_some() { len } else { old_len });
        if is_done {
            return there;
        }
    }
    let engine = instance::engine()?;
    let len = pages_for(engine, size)?;
    if len == old_len {
        return Some(address);
    }
    // What it leaves may be another thread's at once.
    note(address, 0);
    let moved = signals::with_all_blocked(|| engine.remap(address, old_len, len, Move::ToRoom));
    note(*moved.as_ref().unwrap_or(&address), if moved.is_ok() { len } else { old_len });
    moved.ok()
}

/// Frees the growing block at `address`.
pub(crate) fn release(address: usize, len: usize) {
    LEAST.fetch_max((len + 1).min(8 * LEAST_BYTES), Ordering::Relaxed);
    note(address, 0);
    if asleep::unmap(address, len) {
        return;
    }
    let Some(engine) = instance::engine() else {
        issue(libc::SYS_munmap, [address, len, 0, 0, 0, 0]);
        return;
    };
    // Refused, it stays mapped and nobody's: there is nobody to tell.
    let _ = signals::with_all_blocked(|| engine.unmap(address, len));
}
