//! Swap-in of several pages together, as part of page-in.
//!
//! Slots need not be adjacent: reading all in parallel takes hardly longer than reading one. If the
//! device serves one request at a time, only adjacent slots are read together.

use crate::base::access::Access;
use crate::base::page::{Claim, PageNo, SlotCopy};
use crate::base::stats::Counter;
use crate::core::Core;
use crate::core::errors::FaultError;
use crate::memory::context::Context;
use crate::policy::prefetch::offset_prefetch::Offsets;
use crate::policy::prefetch::readahead;
use crate::policy::prefetch::window::REQUEST_PAGES;
use crate::policy::stored_copies::KeepCopy;
use crate::steps::{decompress, install, read_slots, swap_cache};
use softswap_sys::PAGE_SIZE;
use softswap_sys::raw::current_cpu;
use std::ops::Range;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) page: PageNo,
    pub(crate) access: Access,
    pub(crate) keep_copy: KeepCopy,
    /// Maximum number of pages to read from the swap area, including this one.
    pub(crate) window: usize,
    pub(crate) may_read_offsets: bool,
    /// True if the other pages of the batch are expected to be touched.
    pub(crate) is_stream: bool,
}

/// Pages installed per call: few, so that a thread waiting for the first ones continues early.
const INSTALL_PAGES: usize = 16;

struct Member {
    page: PageNo,
    stored: SlotCopy,
    claim: Claim<'static>,
}

/// Claimed pages, in the order of addition, and their slots, which are in one area.
pub(crate) struct SwapInBatch {
    members: [Option<Member>; REQUEST_PAGES],
    count: usize,
    slots: Slots,
}

#[derive(Clone, Copy)]
pub(crate) struct ReadLimit {
    slots: usize,
    runs: usize,
}

impl ReadLimit {
    pub(crate) fn of(core: &Core, context: &Context, slot: u64, bytes: usize) -> ReadLimit {
        let runs = core.stores.areas.reads_at_once(&context.lanes, slot);
        ReadLimit { slots: bytes / PAGE_SIZE, runs }
    }
}

/// Distinct slots in ascending order. Their pages are in the buffer in this order.
struct Slots {
    all: [u64; REQUEST_PAGES],
    count: usize,
    runs: usize,
    /// A bit for each slot whose seal was opened. Opening it again would garble the page.
    open: u64,
}

const _: () = assert!(REQUEST_PAGES <= u64::BITS as usize);

impl Slots {
    /// Adds a slot unless it is included already. Returns false if that would exceed the limit.
    fn add(&mut self, slot: u64, most: ReadLimit) -> bool {
        debug_assert!(self.open == 0, "`open` has bits by index, and indices change");
        let at = self.at(slot);
        let all = &self.all[..self.count];
        if all.get(at) == Some(&slot) {
            return true;
        }
        let after_one = at > 0 && all[at - 1] + 1 == slot;
        let before_one = all.get(at) == Some(&(slot + 1));
        let runs = self.runs + 1 - usize::from(after_one) - usize::from(before_one);
        if self.count == most.slots.min(REQUEST_PAGES) || runs > most.runs {
            return false;
        }
        self.all.copy_within(at..self.count, at + 1);
        self.all[at] = slot;
        (self.count, self.runs) = (self.count + 1, runs);
        true
    }

    /// Returns the index at which a slot is, or would be inserted.
    fn at(&self, slot: u64) -> usize {
        // Slots are usually in ascending order.
        let all = &self.all[..self.count];
        match all.last() {
            Some(last) if *last >= slot => all.partition_point(|other| *other < slot),
            _ => self.count,
        }
    }

    fn page<'b>(&self, slot: u64, bytes: &'b mut [u8]) -> &'b mut [u8] {
        &mut bytes[self.at(slot) * PAGE_SIZE..][..PAGE_SIZE]
    }

    /// Returns the opened page of a slot. Calls `open` the first time; `None` if `open` fails.
    fn opened<'b>(
        &mut self,
        slot: u64,
        bytes: &'b mut [u8],
        open: impl FnOnce(&mut [u8]) -> bool,
    ) -> Option<&'b [u8]> {
        let bit = 1 << self.at(slot);
        let page = self.page(slot, bytes);
        if self.open & bit == 0 {
            if !open(page) {
                return None;
            }
            self.open |= bit;
        }
        Some(page)
    }
}

impl SwapInBatch {
    /// Creates a batch that contains only the slot of a page claimed by the caller, if any.
    pub(crate) fn new(others: Option<SlotCopy>) -> SwapInBatch {
        let slots = Slots { all: [0; REQUEST_PAGES], count: 0, runs: 0, open: 0 };
        let mut batch = SwapInBatch { members: [const { None }; REQUEST_PAGES], count: 0, slots };
        others.into_iter().for_each(|stored| {
            assert!(batch.slots.add(stored.slot(), ReadLimit { slots: 1, runs: 1 }))
        });
        batch
    }

    /// Returns the number of pages, without that of the caller.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Adds a page of the same area if it is not busy. Returns false if the batch is full.
    pub(crate) fn add(&mut self, core: &Core, page: PageNo, most: ReadLimit) -> bool {
        if self.count == REQUEST_PAGES {
            return false;
        }
        let Some((stored, claim)) = readahead::claim_stored(&core.memory.pages, page) else {
            return true;
        };
        let first = self.slots.all[..self.slots.count].first();
        if first.is_some_and(|first| !core.stores.areas.are_in_one_area(*first, stored.slot())) {
            return true;
        }
        if !self.slots.add(stored.slot(), most) {
            return false;
        }
        self.members[self.count] = Some(Member { page, stored, claim });
        self.count += 1;
        true
    }

    /// Returns false if any slot cannot be read. `waits`: the calling thread waits for the pages.
    pub(crate) fn read(
        &self,
        core: &Core,
        context: &mut Context,
        buffer: &mut [u8],
        waits: bool,
    ) -> bool {
        let slots = &self.slots.all[..self.slots.count];
        let buffer = &mut buffer[..slots.len() * PAGE_SIZE];
        slots.is_empty() || read_slots::read_each(&core.stores, context, slots, buffer, waits)
    }

    /// Counts pages that share a slot separately: as many slots would take hardly longer.
    pub(crate) fn pages_read(&self) -> usize {
        if self.slots.count == 0 { 0 } else { self.count.max(self.slots.count) }
    }

    pub(crate) fn sealed<'b>(&self, stored: SlotCopy, buffer: &'b mut [u8]) -> &'b [u8] {
        self.slots.page(stored.slot(), buffer)
    }

    /// Installs and publishes the pages, up to the first that fails. Returns their number.
    pub(crate) fn install(
        &mut self,
        core: &Core,
        context: &mut Context,
        buffer: &mut [u8],
        access: Access,
        is_stream: bool,
    ) -> usize {
        let mut installed = 0;
        while installed < self.count {
            let run = installed..installed + self.neighbours(installed);
            let wanted = run.len();
            let (keep_copy, done) = match wanted {
                1 => self.install_one(core, context, installed, buffer, access),
                _ => self.install_run(core, run, buffer, access),
            };
            for member in
                self.members[installed..installed + done].iter_mut().filter_map(Option::take)
            {
                let Member { page, claim, .. } = member;
                let place = claim.before().place();
                if is_stream {
                    core.policies.note_streamed(page, place, core.stores.pool.limit_bytes());
                }
                let copy = swap_cache::on_swap_in(core, place, keep_copy);
                let resident = core.memory.budget.pages();
                let age = core.policies.age_of_read_ahead(page, is_stream, resident);
                install::finish(&core.memory, page, claim, age, copy);
            }
            installed += done;
            if done < wanted {
                break;
            }
        }
        // Release the claims of pages that were not installed.
        self.members.fill_with(|| None);
        core.stats.add(Counter::PagesReadAhead, installed as u64);
        installed
    }

    /// Counts members, from `first` on, adjacent in memory and buffer, each alone in its slot.
    fn neighbours(&self, first: usize) -> usize {
        let at = |index: usize| {
            let member = self.members.get(index)?.as_ref()?;
            let is_whole = member.stored.part().is_none();
            is_whole.then(|| (member.page, self.slots.at(member.stored.slot())))
        };
        let Some((page, place)) = at(first) else { return 1 };
        let is_next =
            |ahead: &usize| at(first + ahead) == Some((page + *ahead as u64, place + ahead));
        (0..INSTALL_PAGES).take_while(is_next).count()
    }

    fn keep_copy(&self, core: &Core, at: usize, access: Access) -> KeepCopy {
        let keep_copy = |member: &Member| {
            let place = member.claim.before().place();
            swap_cache::keep_copy(core, member.page, place, access, false)
        };
        self.members[at].as_ref().map_or(KeepCopy::No, keep_copy)
    }

    /// Installs adjacent pages, up to the first that fails.
    fn install_run(
        &mut self,
        core: &Core,
        run: Range<usize>,
        buffer: &mut [u8],
        access: Access,
    ) -> (KeepCopy, usize) {
        let Some(Member { page, stored, .. }) = self.members[run.start].as_ref() else {
            return (KeepCopy::No, 0);
        };
        let (page, from) = (*page, self.slots.at(stored.slot()));
        let bytes = &mut buffer[from * PAGE_SIZE..][..run.len() * PAGE_SIZE];
        let slots = self.slots.all[from..from + run.len()].iter().copied();
        // Each slot holds one page, so it is opened only once.
        let good = read_slots::open_run(&core.stores, slots, bytes);
        if good == 0 {
            return (KeepCopy::No, 0);
        }
        // Decided for the first page, because one call installs all with the same protection.
        let keep_copy = self.keep_copy(core, run.start, access);
        let bytes = &bytes[..good * PAGE_SIZE];
        (keep_copy, install::install_run(&core.memory, page, bytes, keep_copy.writes()).pages)
    }

    fn install_one(
        &mut self,
        core: &Core,
        context: &mut Context,
        at: usize,
        buffer: &mut [u8],
        access: Access,
    ) -> (KeepCopy, usize) {
        let keep_copy = self.keep_copy(core, at, access);
        let Some(Member { page, stored, .. }) = self.members[at].as_ref() else {
            return (KeepCopy::No, 0);
        };
        let slot = stored.slot();
        let open = |bytes: &mut [u8]| core.stores.open_sealed(slot, bytes);
        let Some(copy) = self.slots.opened(slot, buffer, open) else { return (KeepCopy::No, 0) };
        let done = put(core, context, *page, keep_copy, *stored, copy);
        (keep_copy, usize::from(done.is_ok()))
    }
}

/// Swaps in a touched page and others with it. Fails only if the touched page fails.
pub(crate) fn bring(
    core: &Core,
    context: &mut Context,
    stored: SlotCopy,
    wanted: Wanted,
) -> Result<(), FaultError> {
    let along = offsets_along(core, wanted.page, wanted.may_read_offsets);
    let is_alone = wanted.window == 1 && along.is_empty();
    if is_alone || !bring_all(core, context, stored, wanted, along)? {
        read_one(core, context, stored, wanted)?;
    }
    Ok(())
}

/// Chooses offsets to read with a touched page. Records others, to learn if they are touched.
fn offsets_along(core: &Core, page: PageNo, may_be: bool) -> Offsets {
    if !may_be {
        core.policies.offset_prefetch.note(page, Offsets::default());
        return Offsets::default();
    }
    let end = core.memory.window.pages() as PageNo;
    let is_out = |near| near < end && core.memory.pages.load(near).place().in_slot().is_some();
    let out = Offsets::of(page, |near| is_out(near) && !core.policies.readahead.is_marker(near));
    let along = core.policies.offset_prefetch.likely(page, out);
    core.policies.offset_prefetch.note(page, out.without(along));
    along
}

fn read_one(
    core: &Core,
    context: &mut Context,
    stored: SlotCopy,
    wanted: Wanted,
) -> Result<(), FaultError> {
    let slot = stored.slot();
    // The reserve has a buffer for each context.
    let Some(mut buffer) = core.stores.bounce.take_for_read(current_cpu()) else {
        core.die("no bounce buffer is left for a read");
    };
    let tenant = (slot, core.stores.areas.generation(slot));
    // If the cached bytes do not match the seal, the slot is read again.
    if !(core.stores.read_ahead_pages.take(tenant, &mut buffer)
        && core.stores.open_sealed(slot, &mut buffer))
    {
        read_slots::read_slot(&core.stores, context, slot, &mut buffer)?;
    }
    put(core, context, wanted.page, wanted.keep_copy, stored, &buffer)?;
    Ok(())
}

/// Swaps in a touched page and others. Returns false, with nothing done, if it must be read alone.
fn bring_all(
    core: &Core,
    context: &mut Context,
    stored: SlotCopy,
    wanted: Wanted,
    along: Offsets,
) -> Result<bool, FaultError> {
    let Wanted { page, window, access, is_stream, .. } = wanted;
    let Some(mut buffer) = core.stores.bounce.take_up_to(current_cpu(), window + along.count())
    else {
        return Ok(false);
    };
    let most = ReadLimit::of(core, context, stored.slot(), buffer.len());
    let mut batch = SwapInBatch::new(Some(stored));
    let end = core.memory.window.pages() as PageNo;
    let others = (page + 1..page + window as u64).chain(along.pages(page));
    for other in others.filter(|other| *other < end) {
        // Pages beyond the limit are skipped; a later one may fit.
        batch.add(core, other, most);
    }
    // The other pages are a guess, so they must not cause direct reclaim.
    let count = batch.count();
    if count == 0 || !core.memory.budget.try_charge(count, core.other_bytes()) {
        return Ok(false);
    }
    let touched = bring_touched(core, context, stored, wanted, &mut batch, &mut buffer);
    // Writes continue on the following pages, but not on pages at learnt offsets.
    let access = if along.is_empty() { access } else { Access::Read };
    let installed = match touched {
        Ok(true) => batch.install(core, context, &mut buffer, access, is_stream),
        _ => 0,
    };
    drop(batch);
    core.memory.budget.release(count - installed);
    touched
}

/// Returns false if a read failed or a seal did not match, so that the page is retried alone.
fn bring_touched(
    core: &Core,
    context: &mut Context,
    stored: SlotCopy,
    wanted: Wanted,
    batch: &mut SwapInBatch,
    buffer: &mut [u8],
) -> Result<bool, FaultError> {
    if !batch.read(core, context, buffer, true) {
        return Ok(false);
    }
    let slot = stored.slot();
    let open = |bytes: &mut [u8]| core.stores.open_sealed(slot, bytes);
    let Some(copy) = batch.slots.opened(slot, buffer, open) else { return Ok(false) };
    put(core, context, wanted.page, wanted.keep_copy, stored, copy)?;
    Ok(true)
}

fn put(
    core: &Core,
    context: &mut Context,
    page: PageNo,
    keep_copy: KeepCopy,
    stored: SlotCopy,
    copy: &[u8],
) -> Result<(), FaultError> {
    let writes = keep_copy.writes();
    match stored.part() {
        None => install::install(&core.memory, page, copy, writes),
        Some(part) => {
            decompress::part(&core.stores, context, copy, part)?;
            install::install(&core.memory, page, &context.page.0, writes)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn none() -> Slots {
        Slots { all: [0; REQUEST_PAGES], count: 0, runs: 0, open: 0 }
    }

    fn runs(slots: &BTreeSet<u64>) -> usize {
        slots.iter().filter(|slot| !slots.contains(&slot.wrapping_sub(1))).count()
    }

    proptest! {
        #[test]
        fn slot_set_matches_model(
            wanted in prop::collection::vec(0..100u64, 0..200),
            max_slots in 1..80usize,
            most_runs in 1..40usize,
        ) {
            let (mut slots, mut model) = (none(), BTreeSet::new());
            for slot in wanted {
                let mut with = model.clone();
                with.insert(slot);
                let fits = with.len() <= max_slots.min(REQUEST_PAGES) && runs(&with) <= most_runs;
                let is_new = !model.contains(&slot);
                let most = ReadLimit { slots: max_slots, runs: most_runs };
                prop_assert_eq!(slots.add(slot, most), fits || !is_new);
                if fits {
                    model = with;
                }
                prop_assert_eq!(&slots.all[..slots.count], &model.iter().copied().collect::<Vec<_>>()[..]);
                prop_assert_eq!(slots.runs, runs(&model));
            }
            for (at, slot) in model.iter().enumerate() {
                prop_assert_eq!(slots.at(*slot), at);
            }
        }
    }

    #[test]
    fn slots_are_opened_once_unless_failed() {
        let mut slots = none();
        let most = ReadLimit { slots: 4, runs: 4 };
        assert!(slots.add(7, most) && slots.add(3, most));
        let mut bytes = vec![0; 2 * PAGE_SIZE];
        assert_eq!(slots.opened(7, &mut bytes, |_| false), None);
        let mut opened = 0;
        for _ in 0..3 {
            let open = |page: &mut [u8]| {
                page.fill(9);
                opened += 1;
                true
            };
            assert!(slots.opened(7, &mut bytes, open).unwrap().iter().all(|byte| *byte == 9));
        }
        assert_eq!(opened, 1);
        assert!(bytes[..PAGE_SIZE].iter().all(|byte| *byte == 0), "slot 3 comes first");
    }
}
