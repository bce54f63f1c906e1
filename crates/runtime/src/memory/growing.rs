//! Blocks that `realloc` grows in place.
//!
//! mimalloc grows a large block by copying. If most of the block is evicted, the copy faults all of
//! it in, dozens of times on the way to 64 MiB. Therefore a block that grows beyond 1 MiB is copied
//! once more, to a separate mapping with free addresses after it, and then grows in place.
//!
//! Such a block starts at a multiple of [`GROWABLE_ALIGN_BYTES`], unlike nearly all other blocks. A
//! table by address stores its length. The table needs no locks: only one thread at a time may free
//! or resize a block. An entry is written before the address is returned and cleared before the
//! address is unmapped, so a forked child inherits a consistent table.

use crate::base::instance;
use crate::base::issue_call::issue;
use crate::memory::asleep;
use softswap_engine::api::engine::{Engine, GROWABLE_ALIGN_BYTES, Move};
use softswap_sys::memory::reserve_u64;
use softswap_sys::window::READ_WRITE;
use softswap_sys::{PAGE_SIZE, signals};
use std::io;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A growing block costs 12 KiB of tables, and new pages even if mimalloc has free ones.
const MIN_BYTES: usize = 1 << 20;
/// Size in bytes from which `realloc` makes a block grow in place. Freeing such a block raises the
/// threshold above its size, up to 8 × [`MIN_BYTES`].
static MIN: AtomicUsize = AtomicUsize::new(MIN_BYTES);
/// `realloc` moves a block shrunk below this size back to mimalloc's heap, to free its tables.
pub(crate) const MIN_KEPT_BYTES: usize = MIN_BYTES / 8;

struct Blocks {
    places: Range<usize>,
    /// Length in bytes of the block at each possible address; 0: none.
    lens: &'static [AtomicU64],
}

static BLOCKS: OnceLock<Blocks> = OnceLock::new();

pub(crate) fn set_up(engine: &Engine) -> io::Result<()> {
    make_table(engine.growable())
}

fn make_table(places: Range<usize>) -> io::Result<()> {
    if BLOCKS.get().is_some() {
        return Ok(());
    }
    let lens = reserve_u64(places.len().div_ceil(GROWABLE_ALIGN_BYTES))?;
    BLOCKS.get_or_init(|| Blocks { places, lens });
    Ok(())
}

impl Blocks {
    fn len_at(&self, address: usize) -> Option<&AtomicU64> {
        let is_place =
            self.places.contains(&address) && address.is_multiple_of(GROWABLE_ALIGN_BYTES);
        is_place.then(|| &self.lens[(address - self.places.start) / GROWABLE_ALIGN_BYTES])
    }
}

fn store_len(address: usize, len: usize) {
    if let Some(entry) = BLOCKS.get().and_then(|blocks| blocks.len_at(address)) {
        entry.store(len as u64, Ordering::Release);
    }
}

/// Returns the length of the growing block at `address`; `None` for all other pointers.
#[inline]
pub(crate) fn usable_size(address: usize) -> Option<usize> {
    if address.is_multiple_of(GROWABLE_ALIGN_BYTES) { find_block(address) } else { None }
}

#[cold]
fn find_block(address: usize) -> Option<usize> {
    let len = BLOCKS.get()?.len_at(address)?.load(Ordering::Acquire);
    (len > 0).then_some(len as usize)
}

/// Returns `size` rounded up to whole pages; `None` beyond a quarter of the window.
fn mapping_len(engine: &Engine, size: usize) -> Option<usize> {
    let len = size.checked_next_multiple_of(PAGE_SIZE)?;
    (len <= engine.window().1 / 4).then_some(len)
}

#[inline]
pub(crate) fn is_worthwhile(size: usize) -> bool {
    size >= MIN.load(Ordering::Relaxed)
}

pub(crate) fn allocate(size: usize) -> Option<usize> {
    if let Some(address) = allocate_asleep(size) {
        return Some(address);
    }
    let engine = instance::engine()?;
    let len = mapping_len(engine, size)?;
    let address = signals::with_all_blocked(|| engine.map_growable(len, READ_WRITE)).ok()??;
    store_len(address, len);
    Some(address)
}

fn allocate_asleep(size: usize) -> Option<usize> {
    if !instance::is_asleep() {
        return None;
    }
    let (base, len) = instance::window()?;
    make_table(base + len / 2..base + len).ok()?;
    let len = size.checked_next_multiple_of(PAGE_SIZE)?;
    let address = asleep::map_growable(len)?;
    store_len(address, len);
    Some(address)
}

/// Returns the block's address afterwards, or `None` on failure; then the block is unchanged.
pub(crate) fn resize(address: usize, old_len: usize, size: usize) -> Option<usize> {
    if instance::is_asleep() {
        let len = size.checked_next_multiple_of(PAGE_SIZE)?;
        store_len(address, 0);
        let there = asleep::resize_growable(address, old_len, len);
        // If the process has woken meanwhile, the engine resizes the block.
        let is_done = there.is_some() || instance::is_asleep();
        store_len(there.unwrap_or(address), if there.is_some() { len } else { old_len });
        if is_done {
            return there;
        }
    }
    let engine = instance::engine()?;
    let len = mapping_len(engine, size)?;
    if len == old_len {
        return Some(address);
    }
    // Clear the entry first: another thread may reuse the old address immediately.
    store_len(address, 0);
    let moved = signals::with_all_blocked(|| engine.remap(address, old_len, len, Move::ToGrowable));
    store_len(*moved.as_ref().unwrap_or(&address), if moved.is_ok() { len } else { old_len });
    moved.ok()
}

pub(crate) fn release(address: usize, len: usize) {
    MIN.fetch_max((len + 1).min(8 * MIN_BYTES), Ordering::Relaxed);
    store_len(address, 0);
    if asleep::unmap(address, len) {
        return;
    }
    let Some(engine) = instance::engine() else {
        issue(libc::SYS_munmap, [address, len, 0, 0, 0, 0]);
        return;
    };
    // On failure the block stays mapped and is leaked: `free` cannot report errors.
    let _ = signals::with_all_blocked(|| engine.unmap(address, len));
}
