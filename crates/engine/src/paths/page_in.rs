//! Page-in: fault -> entry -> same-filled word | pool | slot -> extent -> bounce -> read ->
//! install. Its ten steps are in [`try_page_in`].
//!
//! Page-in runs in the faulting thread's signal handler, so it neither allocates nor logs. It takes
//! no lock whose holder may touch managed memory: that touch may fault, and would deadlock.

use crate::base::access::Access;
use crate::base::page::{Claim, PageNo, Place};
use crate::base::stats::{Counter, Tier};
use crate::codec::same_filled;
use crate::core::errors::FaultError;
use crate::core::recorder::Recorder;
use crate::core::{Core, Memory};
use crate::memory::context::{Context, Contexts};
use crate::paths::reclaim;
use crate::policy::clock::HOT;
use crate::policy::mechanism::Mechanism;
use crate::policy::partition::Stopwatch;
use crate::policy::prefetch::advised::Order;
use crate::policy::prefetch::readahead::{self, Ahead, Touch};
use crate::steps::install::{finish, install, install_zeroes};
use crate::steps::swap_in_batch::{self, Wanted};
use crate::steps::{decompress, fault_around, mapping_pressure, staging, swap_cache, write_fault};
use crate::store::pool::Handle;
use softswap_sys::faults::Faults;
use softswap_sys::raw::current_cpu;
use softswap_sys::signals::Mask;
use softswap_sys::window::Writes;

/// Faults a page in. Returns its previous place, or `None` if it was resident. A wait for memory
/// ends if a signal in `open` is pending. After a failure the page's state is unchanged.
pub(crate) fn page_in(
    core: &Core,
    contexts: &Contexts,
    page: PageNo,
    access: Access,
    open: Mask,
) -> Result<Option<Tier>, FaultError> {
    let window = &core.memory.window;
    let (mut tries, mut fewest) = (0, usize::MAX);
    loop {
        match try_page_in(core, contexts, page, access, open) {
            // The kernel refuses another mapping: evict pages. Other threads may take the mappings
            // that become free, so retry as long as their number falls, and eight times more.
            Err(FaultError::Install(_)) if tries < 8 && window.faults() == Faults::Protection => {
                window.count_mappings();
                reclaim::keep_mappings(core, &mut contexts.claim(current_cpu()));
                tries = if window.mappings() < fewest { 0 } else { tries + 1 };
                fewest = fewest.min(window.mappings());
            }
            result => return result,
        }
    }
}

fn try_page_in(
    core: &Core,
    contexts: &Contexts,
    page: PageNo,
    access: Access,
    open: Mask,
) -> Result<Option<Tier>, FaultError> {
    let watch = Stopwatch::start();
    // 1. If the touch reaches a marker, request the next window before any wait.
    let touch = note_touch(core, page);
    // 2. A context precedes the entry: a fork, which claims all, finds no page half faulted in.
    let mut context = contexts.claim(current_cpu());
    // 3. Claim the entry. No other thread moves the page from here on.
    let Some(claim) = claim_for_fault(&core.memory, page, access)? else { return Ok(None) };
    let place = claim.before().place();
    core.recorder.iter().for_each(|recorder| recorder.touched(page, access));
    let tier = match place {
        // 4. The first write to a clean page.
        Place::Resident { .. } => {
            write_fault::make_writable(core, page, claim).map_err(FaultError::Install)?;
            core.recorder.iter().for_each(Recorder::note_fault_end);
            return Ok(None);
        }
        // 5. The page is still in its staging frame.
        Place::Staged { frame } => restore_staged(core, page, claim, frame)?,
        _ => {
            // 6. Charge the page to the budget, with reclaim if necessary.
            reclaim::charge_pages(core, &mut context, 1, open)?;
            reclaim::keep_mappings(core, &mut context);
            // 7. The policies choose other pages to read, the page's age, and if its copy is kept.
            let (wanted, age) = plan(core, page, place, access, touch);
            // 8. Bring the content into the program's memory.
            let tier = fetch(core, &mut context, place, wanted)?;
            // 9. Keep or free the copy, and publish the entry.
            publish(core, page, claim, place, wanted, age);
            // 10. Prepare for the program's next touches.
            read_ahead_after(core, page, tier, access, touch);
            tier
        }
    };
    bring_cluster(core, &mut context, page, tier);
    drop(context);
    core.report_peaks();
    let ns = core.policies.partition.costs.note_fault(tier, &watch);
    core.stats.record_fault(tier, ns);
    core.recorder.iter().for_each(Recorder::note_fault_end);
    Ok(Some(tier))
}

/// Requests the next window if the touch reached a marker. A resident page belongs to no stream.
fn note_touch(core: &Core, page: PageNo) -> Touch {
    if is_there(&core.memory, page) {
        return Touch::Isolated;
    }
    let readahead = &core.policies.readahead;
    let touch = readahead.reach(page);
    if let Some(lost) = readahead.next_window(touch, &ahead(&core.memory)) {
        core.stats.add(Counter::WindowsReached, 1);
        core.stats.add(Counter::WindowsLost, lost);
    }
    touch
}

fn ahead(memory: &Memory) -> Ahead<impl Fn(PageNo) -> bool> {
    Ahead { end: memory.window.pages() as PageNo, is_there: |page| is_there(memory, page) }
}

fn is_there(memory: &Memory, page: PageNo) -> bool {
    matches!(memory.pages.load(page).place(), Place::Resident { .. } | Place::Staged { .. })
}

/// Claims the page's entry. Returns `None` for a resident page, except a write to a protected one.
fn claim_for_fault(
    memory: &Memory,
    page: PageNo,
    access: Access,
) -> Result<Option<Claim<'static>>, FaultError> {
    loop {
        let seen = memory.pages.wait(page);
        match seen.place() {
            Place::Unmanaged => return Err(FaultError::Unmanaged),
            Place::Resident { copy, .. } => {
                let is_protected = copy.is_some() && access == Access::Write;
                if !is_protected {
                    let is_absent = matches!(memory.window.is_present(page), Ok(false));
                    if is_absent && memory.pages.load(page).is_resident() {
                        return check_lost(memory, page).map(|()| None);
                    }
                    memory.window.renew(page).map_err(FaultError::Install)?;
                }
                if access == Access::Read {
                    return Ok(None);
                }
            }
            Place::Vacant => memory.space.touch(page),
            _ => {}
        }
        let Some(claim) = memory.pages.try_claim(page, seen) else { continue };
        // Check after claiming: an unmap now waits for the claim.
        if seen.place() == Place::Vacant && !memory.space.is_mapped(page) {
            return Err(FaultError::NotMapped);
        }
        return Ok(Some(claim));
    }
}

/// Fails if a page that its entry calls resident is absent. The claim keeps both unchanged.
fn check_lost(memory: &Memory, page: PageNo) -> Result<(), FaultError> {
    let claim = memory.pages.claim(page);
    let is_resident = claim.before().is_resident();
    if is_resident && matches!(memory.window.is_present(page), Ok(false)) {
        return Err(FaultError::Lost);
    }
    Ok(())
}

/// Returns a page, which is still charged, from its staging frame to the program.
fn restore_staged(
    core: &Core,
    page: PageNo,
    claim: Claim<'_>,
    frame: u32,
) -> Result<Tier, FaultError> {
    if let Err((_, error)) = staging::frame_of(core, frame).restore_to(page) {
        return Err(FaultError::Install(error));
    }
    finish(&core.memory, page, claim, HOT, None);
    Ok(Tier::Staged)
}

/// Gets the policies' decisions. After a failure the page counts as faulted in and evicted.
fn plan(core: &Core, page: PageNo, place: Place, access: Access, touch: Touch) -> (Wanted, u8) {
    core.note_return(page, place);
    let has = |mechanism| core.policies.has(mechanism);
    let order = core.policies.advised.order_of(page);
    let (most, may_read_offsets) = match touch {
        // The following pages are being read.
        _ if touch.is_requested() => (1, false),
        // Only swap-ins from an area read other pages in the same batch, so do not search.
        _ if place.in_slot().is_none() => (1, false),
        _ if order == Order::Random => (1, false),
        _ if order == Order::Sequential => (readahead::MAX_NEIGHBOURS, false),
        _ if !has(Mechanism::FaultReadahead) => (1, has(Mechanism::OffsetPrefetch)),
        _ => match readahead::neighbours(&core.memory.pages, page, || core.resident_of_all()) {
            1 => (1, has(Mechanism::OffsetPrefetch)),
            most => (most, false),
        },
    };
    let window = core.policies.readahead.up_to_marker(page, most);
    let is_stream = readahead::is_stream(most);
    if is_stream || touch == Touch::Early || touch.is_requested() {
        core.policies.note_streamed(page, place, core.stores.pool.limit_bytes());
    } else {
        core.policies.note_waited_for(page, place);
    }
    // First, because it updates the page's refault level, which `keep_copy` reads.
    let age = core.policies.age_of_faulted(page, place, core.memory.budget.pages());
    let keep_copy = swap_cache::keep_copy(core, page, place, access, true);
    (Wanted { page, access, keep_copy, window, may_read_offsets, is_stream }, age)
}

/// Reads the page and others with it. Publishes only the others. On failure uncharges the page.
fn fetch(
    core: &Core,
    context: &mut Context,
    place: Place,
    wanted: Wanted,
) -> Result<Tier, FaultError> {
    let (Wanted { page, access, .. }, memory) = (wanted, &core.memory);
    let install_content = |context: &mut Context, tier| {
        install(memory, page, &context.page.0, wanted.keep_copy.writes()).map(|()| tier)
    };
    let fetched = match place {
        Place::SameFilled { code } => install_same_filled(memory, context, page, code, access),
        Place::Pool { handle } => {
            decompress::pooled(&core.stores, context, Handle::from_bits(handle))
                .map_err(FaultError::from)
                .and_then(|()| install_content(context, Tier::Pool))
        }
        Place::Slot { slot, .. } if core.stores.take_from_standby(slot, &mut context.page.0) => {
            install_content(context, Tier::Standby)
        }
        _ => match place.in_slot() {
            Some(stored) => {
                swap_in_batch::bring(core, context, stored, wanted).map(|()| Tier::Disk)
            }
            None => install_zeroes(memory, page, access).map(|()| Tier::Zero),
        },
    };
    fetched.inspect_err(|_| memory.budget.release(1))
}

fn install_same_filled(
    memory: &Memory,
    context: &mut Context,
    page: PageNo,
    code: u64,
    access: Access,
) -> Result<Tier, FaultError> {
    match same_filled::decode(code) {
        0 => install_zeroes(memory, page, access)?,
        word => {
            same_filled::fill(&mut context.page.0, word);
            install(memory, page, &context.page.0, Writes::Allowed)?;
        }
    }
    Ok(Tier::SameFilled)
}

fn publish(core: &Core, page: PageNo, claim: Claim<'_>, place: Place, wanted: Wanted, age: u8) {
    let copy = swap_cache::on_swap_in(core, place, wanted.keep_copy);
    finish(&core.memory, page, claim, age, copy);
}

/// Swaps in the stored pages of a page's cluster. Pages that fail keep their place.
fn bring_cluster(core: &Core, context: &mut Context, page: PageNo, tier: Tier) {
    let memory = &core.memory;
    let cluster = mapping_pressure::cluster_pages(memory);
    if cluster == 1 || matches!(tier, Tier::Zero | Tier::Staged) {
        return;
    }
    for near in mapping_pressure::cluster_of(page, cluster) {
        let seen = memory.pages.load(near);
        let is_stored = matches!(
            seen.place(),
            Place::SameFilled { .. }
                | Place::Pool { .. }
                | Place::Slot { .. }
                | Place::CompressedSlot { .. }
        );
        if !is_stored || seen.is_busy() {
            continue;
        }
        if reclaim::charge_pages(core, context, 1, 0).is_err() {
            return;
        }
        // Reclaim may have changed other pages of the cluster; skip those.
        let Some(claim) = memory.pages.try_claim(near, seen) else {
            memory.budget.release(1);
            continue;
        };
        let place = claim.before().place();
        let (wanted, age) = plan(core, near, place, Access::Read, Touch::Isolated);
        let wanted = Wanted { may_read_offsets: false, ..wanted };
        if fetch(core, context, place, wanted).is_err() {
            return;
        }
        publish(core, near, claim, place, wanted, age);
    }
}

/// Installs fresh pages after a first write. After a swap-in sets markers or requests windows.
fn read_ahead_after(core: &Core, page: PageNo, tier: Tier, access: Access, touch: Touch) {
    match tier {
        Tier::Zero if access == Access::Write && core.policies.has(Mechanism::FaultAround) => {
            fault_around::run_ahead(core, page);
        }
        Tier::Standby | Tier::Pool | Tier::Disk => {
            let (readahead, ahead) = (&core.policies.readahead, ahead(&core.memory));
            let lost = match core.policies.advised.order_of(page) {
                Order::Random => 0,
                Order::Sequential => readahead.follow(page, touch, &ahead),
                Order::Unknown => readahead.expect(page, touch, &ahead),
            };
            if lost > 0 {
                core.stats.add(Counter::WindowsLost, lost);
            }
        }
        _ => {}
    }
}
