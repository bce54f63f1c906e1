//! The `mmap` family for managed ranges.
//!
//! All functions are called from program context with signals blocked. They hold the layout lock
//! throughout, and wait for busy pages.

use crate::base::page::{PageNo, Place};
use crate::core::{Core, Memory};
use crate::memory::address_space::{AtFork, Layout};
use crate::steps::{swap_cache, write_fault};
use softswap_sys::window::{Protection, READ_WRITE, Writes};
use std::io;
use std::ops::Range;

/// Alignment, in pages, of large mappings, as allocators want it for their arenas.
const LARGE_ALIGN_PAGES: u64 = 8192;

pub(crate) fn map(
    memory: &Memory,
    count: u64,
    protection: Protection,
) -> io::Result<Option<PageNo>> {
    let mut layout = memory.space.lock();
    let align = count.next_power_of_two().min(LARGE_ALIGN_PAGES);
    let Some(range) =
        memory.space.find(&layout, count, align).or_else(|| memory.space.find(&layout, count, 1))
    else {
        return Ok(None);
    };
    add(memory, &mut layout, range.clone(), protection)?;
    Ok(Some(range.start))
}

pub(crate) fn map_growable(
    memory: &Memory,
    count: u64,
    protection: Protection,
) -> io::Result<Option<PageNo>> {
    let mut layout = memory.space.lock();
    let Some((range, gap)) = memory.space.find_growable(&layout, count) else { return Ok(None) };
    add(memory, &mut layout, range.clone(), protection)?;
    layout.set_growth_gap(gap);
    Ok(Some(range.start))
}

fn add(
    memory: &Memory,
    layout: &mut Layout,
    range: Range<PageNo>,
    protection: Protection,
) -> io::Result<()> {
    // Free pages have a protection if the kernel refused to remove it (`clear`).
    if protection != READ_WRITE || layout.has_protection(&range) {
        memory.window.protect(range.start, (range.end - range.start) as usize, protection)?;
    }
    memory.space.add(layout, range.clone());
    layout.set_protection(range, protection);
    Ok(())
}

pub(crate) fn map_at(
    core: &Core,
    range: Range<PageNo>,
    protection: Protection,
    replace: bool,
) -> io::Result<bool> {
    let mut layout = core.memory.space.lock();
    if !replace && !core.memory.space.is_free(&layout, &range) {
        return Ok(false);
    }
    check_unsealed(&layout, &range)?;
    clear(core, &mut layout, &range)?;
    add(&core.memory, &mut layout, range, protection)?;
    Ok(true)
}

pub(crate) fn unmap(core: &Core, range: Range<PageNo>) -> io::Result<()> {
    let mut layout = core.memory.space.lock();
    check_unsealed(&layout, &range)?;
    clear(core, &mut layout, &range)?;
    core.memory.space.remove(&mut layout, range);
    Ok(())
}

fn check_unsealed(layout: &Layout, range: &Range<PageNo>) -> io::Result<()> {
    layout.first_sealed(range).map_or(Ok(()), |_| Err(not_permitted()))
}

fn not_permitted() -> io::Error {
    const EPERM: i32 = 1;
    io::Error::from_raw_os_error(EPERM)
}

/// Drops the content and attributes of `range`, which stays allocated.
fn clear(core: &Core, layout: &mut Layout, range: &Range<PageNo>) -> io::Result<()> {
    // At its limit on mappings the kernel may refuse these calls, so they precede other changes.
    unlock_in(&core.memory, layout, range)?;
    for unmanaged in layout.unmanaged_in(range) {
        core.memory.window.restore(unmanaged.start, (unmanaged.end - unmanaged.start) as usize)?;
    }
    core.memory.space.close(range);
    drop_content(core, range.clone())?;
    let window = &core.memory.window;
    // Follows the drop, because other threads could access the content until then. A refusal is no
    // error, because the content is gone. The next mapping of these pages tries again (`add`).
    if layout.has_protection(range)
        && window.protect(range.start, (range.end - range.start) as usize, READ_WRITE).is_ok()
    {
        layout.set_protection(range.clone(), READ_WRITE);
    }
    layout.forget(range);
    Ok(())
}

pub(crate) fn reserve(memory: &Memory, count: u64) -> Option<PageNo> {
    let mut layout = memory.space.lock();
    let range = memory.space.find(&layout, count, LARGE_ALIGN_PAGES)?;
    layout.reserve(range.clone());
    Some(range.start)
}

/// Unmaps `range` but keeps it allocated.
pub(crate) fn retract(core: &Core, range: Range<PageNo>) -> io::Result<()> {
    let mut layout = core.memory.space.lock();
    check_unsealed(&layout, &range)?;
    clear(core, &mut layout, &range)
}

/// Locks `range` in memory. Fails if more than `most` pages would be locked. Returns the new parts.
pub(crate) fn lock(
    memory: &Memory,
    range: Range<PageNo>,
    most: u64,
) -> io::Result<Vec<Range<PageNo>>> {
    let mut layout = memory.space.lock();
    let new = layout.lock_range(range.clone(), most).ok_or_else(no_memory)?;
    for (done, part) in new.iter().enumerate() {
        if let Err(error) = memory.window.lock(part.start, (part.end - part.start) as usize) {
            for part in &new[..done] {
                memory.window.unlock(part.start, (part.end - part.start) as usize)?;
            }
            new.into_iter().for_each(|part| drop(layout.unlock_range(&part)));
            return Err(error);
        }
    }
    Ok(new)
}

pub(crate) fn locked_bytes(memory: &Memory) -> usize {
    let locked = memory.space.lock().locked();
    locked.iter().map(|range| (range.end - range.start) as usize * softswap_sys::PAGE_SIZE).sum()
}

pub(crate) fn unlock(memory: &Memory, range: &Range<PageNo>) -> io::Result<Vec<Range<PageNo>>> {
    unlock_in(memory, &mut memory.space.lock(), range)
}

/// Unlocks `range`. Must precede a discard, because the kernel does not drop locked pages.
fn unlock_in(
    memory: &Memory,
    layout: &mut Layout,
    range: &Range<PageNo>,
) -> io::Result<Vec<Range<PageNo>>> {
    let were = layout.unlock_range(range);
    for part in &were {
        memory.window.unlock(part.start, (part.end - part.start) as usize)?;
    }
    Ok(were)
}

pub(crate) fn map_unmanaged(
    core: &Core,
    range: Range<PageNo>,
    replace: bool,
    place_it: impl FnOnce() -> io::Result<()>,
) -> io::Result<bool> {
    let mut layout = core.memory.space.lock();
    if !replace && !core.memory.space.is_free(&layout, &range) {
        return Ok(false);
    }
    check_unsealed(&layout, &range)?;
    clear(core, &mut layout, &range)?;
    // The new mapping replaces a protection that `clear` could not remove.
    layout.set_protection(range.clone(), READ_WRITE);
    layout.reserve(range.clone());
    if let Err(error) = place_it() {
        // The kernel may have left a partial mapping: restore the window.
        core.memory.window.restore(range.start, (range.end - range.start) as usize)?;
        core.memory.space.remove(&mut layout, range);
        return Err(error);
    }
    for page in range.clone() {
        core.memory.space.touch(page);
        core.memory.pages.claim(page).publish(Place::Unmanaged);
    }
    layout.set_unmanaged(range);
    Ok(true)
}

pub(crate) fn discard(core: &Core, range: Range<PageNo>) -> io::Result<()> {
    let layout = core.memory.space.lock();
    let mut start = range.start;
    for unmanaged in layout.unmanaged_in(&range) {
        drop_content(core, start..unmanaged.start)?;
        core.memory
            .window
            .discard_unmanaged(unmanaged.start, (unmanaged.end - unmanaged.start) as usize)?;
        start = unmanaged.end;
    }
    drop_content(core, start..range.end)
}

/// Changes the protection of `range`, which must be mapped completely, up to the first sealed page.
pub(crate) fn protect(
    memory: &Memory,
    range: Range<PageNo>,
    protection: Protection,
) -> io::Result<()> {
    let mut layout = memory.space.lock();
    let sealed = layout.first_sealed(&range);
    let range = range.start..sealed.unwrap_or(range.end);
    if !range.is_empty() {
        memory.window.protect(range.start, (range.end - range.start) as usize, protection)?;
        layout.set_protection(range, protection);
    }
    sealed.map_or(Ok(()), |_| Err(not_permitted()))
}

fn no_memory() -> io::Error {
    const ENOMEM: i32 = 12;
    io::Error::from_raw_os_error(ENOMEM)
}

/// Grows a mapping into the free pages after it. Returns false if those are in use.
pub(crate) fn grow(memory: &Memory, range: Range<PageNo>, count: u64) -> io::Result<bool> {
    let mut layout = memory.space.lock();
    let more = range.end..range.start + count;
    if !memory.space.is_free(&layout, &more) {
        return Ok(false);
    }
    let protection = layout.protection(range.end - 1);
    add(memory, &mut layout, more, protection)?;
    layout.copy_fork_treatment(&range, &(range.start..range.start + count));
    Ok(true)
}

/// Applies `AtFork` in a forked child, and clears all locks. No other thread runs.
pub(crate) fn drop_not_inherited(core: &Core, layout: &mut Layout) -> io::Result<()> {
    for part in layout.locked() {
        layout.unlock_range(&part);
        part.for_each(|page| core.memory.pages.unpin(page));
    }
    for wiped in layout.kept_from_children(AtFork::Wiped) {
        drop_content(core, wiped)?;
    }
    for withheld in layout.kept_from_children(AtFork::Withheld) {
        clear(core, layout, &withheld)?;
        core.memory.space.remove(layout, withheld);
    }
    Ok(())
}

/// Moves the content of `from` to the mapped pages at `to`. `from` stays mapped and reads as
/// zeroes. `fetch` faults a page in. On failure, moves all pages back.
pub(crate) fn transfer(
    core: &Core,
    from: Range<PageNo>,
    to: PageNo,
    fetch: impl Fn(PageNo) -> io::Result<()>,
) -> io::Result<()> {
    let start = from.start;
    transfer_until(core, from, to, &fetch).map_err(|(page, error)| {
        if transfer_until(core, to..to + (page - start), start, &fetch).is_err() {
            core.die("a page that was moved to another mapping cannot be moved back");
        }
        error
    })
}

/// On failure returns the failed page and the error. The pages before it have been moved.
fn transfer_until(
    core: &Core,
    from: Range<PageNo>,
    to: PageNo,
    fetch: impl Fn(PageNo) -> io::Result<()>,
) -> Result<(), (PageNo, io::Error)> {
    let mut page = core.memory.space.next_touched(from.clone());
    while page < from.end {
        let target = to + (page - from.start);
        while !transfer_page(core, page, target).map_err(|error| (page, error))? {
            fetch(page).map_err(|error| (page, error))?;
        }
        page = core.memory.space.next_touched(page + 1..from.end);
    }
    Ok(())
}

/// Returns false if the caller must fault the page in and retry. A pool object records its owner,
/// and a staged page's frame belongs to a batch. A stored copy is freed first, because a moved page
/// loses its write protection.
fn transfer_page(core: &Core, source: PageNo, target: PageNo) -> io::Result<bool> {
    let seen = core.memory.pages.load(source).place();
    if matches!(seen, Place::Pool { .. } | Place::Staged { .. }) {
        return Ok(false);
    }
    for page in [source, target] {
        if core.memory.pages.load(page).is_protected() {
            write_fault::make_writable(core, page, core.memory.pages.claim(page))?;
        }
    }
    // Claim the target first: a thread that holds it (fault-around) waits for no other claim.
    core.memory.space.touch(target);
    let target_claim = core.memory.pages.claim(target);
    if target_claim.before().is_protected() {
        return Ok(false);
    }
    // The target may have been faulted in since it was mapped, and evicted.
    match target_claim.before().place() {
        Place::Resident { .. } => {
            core.memory.window.discard(target, 1)?;
            core.memory.space.sub_resident(target);
            core.memory.budget.release(1);
        }
        // As in `drop_content`. Retry without this claim, for which the batch may be waiting.
        Place::Staged { .. } => {
            core.memory.budget.release(1);
            target_claim.publish(Place::Vacant);
            return Ok(false);
        }
        place => core.stores.free(place),
    }
    let source_claim = core.memory.pages.claim(source);
    let place = source_claim.before().place();
    match place {
        Place::SameFilled { .. } | Place::Slot { .. } | Place::CompressedSlot { .. } => {}
        Place::Resident { copy: None, .. } => {
            if let Err(error) = move_content(core, source, target) {
                // The previous content of the target is gone.
                target_claim.publish(Place::Vacant);
                return Err(error);
            }
            core.memory.space.sub_resident(source);
            core.memory.space.add_resident(target, 1);
        }
        Place::Pool { .. } | Place::Staged { .. } | Place::Resident { copy: Some(_), .. } => {
            target_claim.publish(Place::Vacant);
            return Ok(false);
        }
        Place::Vacant | Place::Unmanaged => {
            target_claim.publish(Place::Vacant);
            return Ok(true);
        }
    }
    source_claim.publish(Place::Vacant);
    core.recorder.iter().for_each(|recorder| recorder.moved(source, target));
    target_claim.publish(place);
    Ok(true)
}

/// Moves a claimed resident page to the absent page `target`. On an error the page is unchanged.
fn move_content(core: &Core, source: PageNo, target: PageNo) -> io::Result<()> {
    let window = &core.memory.window;
    match window.relocate(target, source, 1).error {
        None => Ok(()),
        // The page may be shared with a child: unshare it. If a device has the page pinned, the
        // kernel refuses again, and a copy would lose the device's writes.
        Some(error) if error.kind() == io::ErrorKind::ResourceBusy => {
            let is_moved =
                window.move_unshared(source, || window.relocate(target, source, 1).pages == 1);
            if is_moved { Ok(()) } else { Err(no_memory()) }
        }
        // The memory is not writable, or UFFDIO_MOVE is not available.
        Some(_) => copy_over(core, source, target),
    }
}

fn copy_over(core: &Core, source: PageNo, target: PageNo) -> io::Result<()> {
    let window = &core.memory.window;
    let mut copy = Box::new(softswap_sys::Page([0; softswap_sys::PAGE_SIZE]));
    // Protect the page first, because a store between copy and drop would be lost.
    let taken = window
        .set_writes(source, 1, Writes::Caught)
        .and_then(|()| window.take_page(source, &mut copy.0));
    if let Err(error) = taken {
        let _ = window.allow_writes(source);
        return Err(error);
    }
    match window.install(target, &copy.0, Writes::Allowed).error {
        None => Ok(()),
        Some(error) if window.install(source, &copy.0, Writes::Allowed).error.is_none() => {
            Err(error)
        }
        Some(_) => core.die("a page could be neither moved nor restored"),
    }
}

/// Frees the content of all pages of `range`, runs of resident pages in one call.
fn drop_content(core: &Core, range: Range<PageNo>) -> io::Result<()> {
    const RUN: usize = 64;
    core.recorder.iter().for_each(|recorder| recorder.note_freed(&range));
    let mut run: [Option<crate::base::page::Claim<'_>>; RUN] = [const { None }; RUN];
    let (mut first, mut len) = (range.start, 0);
    let mut page = core.memory.space.next_touched(range.clone());
    while page < range.end {
        let seen = core.memory.pages.load(page);
        if seen.place() == Place::Vacant && !seen.is_busy() {
            page = core.memory.space.next_touched(page + 1..range.end);
            continue;
        }
        let claim = match core.memory.pages.try_claim(page, seen) {
            Some(claim) => claim,
            // Release the claims first: the page's holder may be waiting for one of them.
            None => {
                drop_run(core, first, &mut run[..len])?;
                len = 0;
                core.memory.pages.claim(page)
            }
        };
        match claim.before().place() {
            Place::Vacant => drop(claim),
            Place::Resident { .. } => {
                if len == RUN || (len > 0 && first + len as u64 != page) {
                    drop_run(core, first, &mut run[..len])?;
                    len = 0;
                }
                if len == 0 {
                    first = page;
                }
                run[len] = Some(claim);
                len += 1;
            }
            // The batch counts the page as rescued and does not uncharge it, so uncharge it here.
            Place::Staged { .. } => {
                core.memory.budget.release(1);
                claim.publish(Place::Vacant);
            }
            place => {
                core.stores.free(place);
                claim.publish(Place::Vacant);
            }
        }
        page = core.memory.space.next_touched(page + 1..range.end);
    }
    drop_run(core, first, &mut run[..len])
}

fn drop_run(
    core: &Core,
    first: PageNo,
    run: &mut [Option<crate::base::page::Claim<'_>>],
) -> io::Result<()> {
    if run.is_empty() {
        return Ok(());
    }
    core.memory.window.discard(first, run.len())?;
    for (page, claim) in (first..).zip(run.iter_mut()) {
        if let Some(claim) = claim.take() {
            core.memory.space.sub_resident(page);
            let copy = claim.before().place().copy();
            claim.publish(Place::Vacant);
            copy.into_iter().for_each(|copy| swap_cache::free_copy(core, copy));
        }
    }
    core.memory.budget.release(run.len());
    Ok(())
}
