//! Pages of the swap area that come in together: a part of walk 2.
//!
//! In slots of their own or in shared ones, side by side or not: all slots are read
//! at once, which takes hardly longer than one of them. Where a device serves one
//! request at a time, only what lies side by side is read together.

use crate::base::access::Access;
use crate::base::page::{Claim, PageNo, SlotCopy};
use crate::base::stats::Counter;
use crate::core::Core;
use crate::core::errors::FaultError;
use crate::memory::context::Context;
use crate::policy::prefetch::offset_prefetch::Offsets;
use crate::policy::prefetch::readahead;
use crate::policy::prefetch::window::REQUEST_PAGES;
use crate::policy::stored_copies::Stays;
use crate::steps::decompress;
use crate::steps::install;
use crate::steps::read_slots;
use crate::steps::swap_cache;
use softswap_sys::PAGE_SIZE;
use softswap_sys::raw::current_cpu;
use std::ops::Range;

/// What is to come in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    /// The page.
    pub(crate) page: PageNo,
    /// What for.
    pub(crate) access: Access,
    /// What stays of what is stored of it, for as long as it is not written.
    pub(crate) stays: Stays,
    /// How many pages may come from the swap area, it included.
    pub(crate) window: usize,
    /// Whether pages beside it are to come that mostly follow it.
    pub(crate) may_read_offsets: bool,
    /// Whether those that come with it can be relied on to be touched.
    pub(crate) is_stream: bool,
}

/// Pages installed together: who waits for the first of many can go on while the
/// others come.
const INSTALL_PAGES: usize = 16;

/// A page that nobody waits for.
struct Member {
    page: PageNo,
    stored: SlotCopy,
    claim: Claim<'static>,
}

/// Claimed pages, in the order in which they were added, and the slots of one area
/// that have them.
pub(crate) struct SwapInBatch {
    members: [Option<Member>; REQUEST_PAGES],
    count: usize,
    slots: Slots,
}

/// How many slots there may be, and in how many runs of neighbours they may lie.
#[derive(Clone, Copy)]
pub(crate) struct ReadLimit {
    slots: usize,
    runs: usize,
}

impl ReadLimit {
    /// What is read at once into a buffer of so many bytes from the area of `slot`.
    pub(crate) fn of(core: &Core, context: &Context, slot: u64, bytes: usize) -> ReadLimit {
        let runs = core.stores.areas.reads_at_once(&context.lanes, slot);
        ReadLimit { slots: bytes / PAGE_SIZE, runs }
    }
}

/// Slots in ascending order, each once. What is read of them lies in a buffer in this
/// order.
struct Slots {
    all: [u64; REQUEST_PAGES],
    count: usize,
    /// How many runs of neighbours they are.
    runs: usize,
    /// A bit for each that is open: opened again it would be something else.
    open: u64,
}

const _: () = assert!(REQUEST_PAGES <= u64::BITS as usize);

impl Slots {
    /// Adds a slot, if it is not there yet; false where that would be more than there
    /// may be.
    fn add(&mut self, slot: u64, most: ReadLimit) -> bool {
        debug_assert!(self.open == 0, "bits are by place");
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

    /// Where a slot is, or would be.
    fn at(&self, slot: u64) -> usize {
        // Mostly they come in ascending order.
        let all = &self.all[..self.count];
        match all.last() {
            Some(last) if *last >= slot => all.partition_point(|other| *other < slot),
            _ => self.count,
        }
    }

    /// What was read of a slot, still sealed or not.
    fn page<'b>(&self, slot: u64, bytes: &'b mut [u8]) -> &'b mut [u8] {
        &mut bytes[self.at(slot) * PAGE_SIZE..][..PAGE_SIZE]
    }

    /// What a slot holds, opened by `open` the first time; `None` where that says no.
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
    /// Nothing but the slot of a page that is somebody else's, if there is one.
    pub(crate) fn new(others: Option<SlotCopy>) -> SwapInBatch {
        let slots = Slots { all: [0; REQUEST_PAGES], count: 0, runs: 0, open: 0 };
        let mut batch = SwapInBatch { members: [const { None }; REQUEST_PAGES], count: 0, slots };
        others.into_iter().for_each(|stored| {
            assert!(batch.slots.add(stored.slot(), ReadLimit { slots: 1, runs: 1 }))
        });
        batch
    }

    /// How many pages there are, somebody else's not counted.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Adds a page, if it is in the swap area, in the same one as the others, and
    /// nobody has it. False where nothing more can be added.
    pub(crate) fn add(&mut self, core: &Core, page: PageNo, most: ReadLimit) -> bool {
        if self.count == REQUEST_PAGES {
            return false;
        }
        let Some((stored, claim)) = readahead::claim_stored(&core.memory.pages, page) else {
            return true;
        };
        let first = self.slots.all[..self.slots.count].first();
        if first.is_some_and(|first| !core.stores.areas.are_together(*first, stored.slot())) {
            return true;
        }
        if !self.slots.add(stored.slot(), most) {
            return false;
        }
        self.members[self.count] = Some(Member { page, stored, claim });
        self.count += 1;
        true
    }

    /// Reads all slots into the first pages of `buffer`. False when that cannot be:
    /// perhaps only one of them is bad. `waits` is as for [`read_slots::read_each`].
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

    /// How many pages come by reading; none where there is nothing to read. Those that
    /// share a slot count each: as many slots would hardly take longer at once.
    pub(crate) fn pages_read(&self) -> usize {
        if self.slots.count == 0 { 0 } else { self.count.max(self.slots.count) }
    }

    /// What was read of a slot, sealed as it is.
    pub(crate) fn sealed<'b>(&self, stored: SlotCopy, buffer: &'b mut [u8]) -> &'b [u8] {
        self.slots.page(stored.slot(), buffer)
    }

    /// Installs and publishes the pages, up to the first that is not what it should
    /// be: that is for its toucher to find. Returns how many came.
    pub(crate) fn install(
        &mut self,
        core: &Core,
        context: &mut Context,
        buffer: &mut [u8],
        access: Access,
        is_stream: bool,
    ) -> usize {
        let mut came = 0;
        while came < self.count {
            let run = came..came + self.neighbours(came);
            let wanted = run.len();
            let (stays, done) = match wanted {
                1 => self.install_one(core, context, came, buffer, access),
                _ => self.install_run(core, run, buffer, access),
            };
            for member in self.members[came..came + done].iter_mut().filter_map(Option::take) {
                let Member { page, claim, .. } = member;
                let place = claim.before().place();
                if is_stream {
                    core.policies.note_streamed(page, place, core.stores.pool.limit_bytes());
                }
                let copy = swap_cache::arrive(core, place, stays);
                let resident = core.memory.budget.pages();
                let heat = core.policies.grace_ahead(page, is_stream, resident);
                install::finish(&core.memory, page, claim, heat, copy);
            }
            came += done;
            if done < wanted {
                break;
            }
        }
        // What did not come is where it was.
        self.members.fill_with(|| None);
        core.stats.add(Counter::PagesReadAhead, came as u64);
        came
    }

    /// How many members from `first` on can be installed by one call: neighbours in
    /// memory, each with a slot of its own, that are neighbours in the buffer, too.
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

    /// What is to stay of what is stored of a member.
    fn stays(&self, core: &Core, at: usize, access: Access) -> Stays {
        let stays = |member: &Member| {
            let place = member.claim.before().place();
            swap_cache::stays(core, member.page, place, access, false)
        };
        self.members[at].as_ref().map_or(Stays::Nothing, stays)
    }

    /// Installs neighbours, up to the first that is not what it should be. Returns
    /// what stays of them, and how many came.
    fn install_run(
        &mut self,
        core: &Core,
        run: Range<usize>,
        buffer: &mut [u8],
        access: Access,
    ) -> (Stays, usize) {
        let Some(Member { page, stored, .. }) = self.members[run.start].as_ref() else {
            return (Stays::Nothing, 0);
        };
        let (page, from) = (*page, self.slots.at(stored.slot()));
        let bytes = &mut buffer[from * PAGE_SIZE..][..run.len() * PAGE_SIZE];
        let slots = self.slots.all[from..from + run.len()].iter().copied();
        // Slots of one page each: nobody else opens them.
        let good = read_slots::open_run(&core.stores, slots, bytes);
        if good == 0 {
            return (Stays::Nothing, 0);
        }
        // What holds for the first: one call installs all of them alike.
        let stays = self.stays(core, run.start, access);
        let bytes = &bytes[..good * PAGE_SIZE];
        (stays, install::install_run(&core.memory, page, bytes, stays.writes()).pages)
    }

    /// As [`SwapInBatch::install_run`], a page that is next to none, or packed.
    fn install_one(
        &mut self,
        core: &Core,
        context: &mut Context,
        at: usize,
        buffer: &mut [u8],
        access: Access,
    ) -> (Stays, usize) {
        let stays = self.stays(core, at, access);
        let Some(Member { page, stored, .. }) = self.members[at].as_ref() else {
            return (Stays::Nothing, 0);
        };
        let slot = stored.slot();
        let open = |bytes: &mut [u8]| core.stores.open_sealed(slot, bytes);
        let Some(copy) = self.slots.opened(slot, buffer, open) else { return (Stays::Nothing, 0) };
        let done = put(core, context, *page, stays, *stored, copy);
        (stays, usize::from(done.is_ok()))
    }
}

/// Brings in a touched page that lies at `stored`, and those that are to come with
/// it. Only the touched one counts: trouble with the others leaves them where they
/// are.
pub(crate) fn bring(
    core: &Core,
    context: &mut Context,
    stored: SlotCopy,
    wanted: Wanted,
) -> Result<(), FaultError> {
    let along = offsets_along(core, wanted.page, wanted.may_read_offsets);
    let is_alone = wanted.window == 1 && along.is_empty();
    if is_alone || !bring_all(core, context, stored, wanted, along)? {
        bring_alone(core, context, stored, wanted)?;
    }
    Ok(())
}

/// Which pages beside a touched one, which is in the swap area, are to come with it,
/// if any may. What else might follow is watched.
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

/// Reads one slot, through a bounce buffer, and installs one page of it.
fn bring_alone(
    core: &Core,
    context: &mut Context,
    stored: SlotCopy,
    wanted: Wanted,
) -> Result<(), FaultError> {
    let slot = stored.slot();
    // The reserve has one for each context.
    let Some(mut buffer) = core.stores.bounce.take_for_read(current_cpu()) else {
        core.die("no bounce buffer is left for a read");
    };
    // What does not match its seal was cached before the slot held this page.
    if !(core.stores.read_ahead_pages.take(slot, &mut buffer)
        && core.stores.open_sealed(slot, &mut buffer))
    {
        read_slots::read_alone(&core.stores, context, slot, &mut buffer)?;
    }
    put(core, context, wanted.page, wanted.stays, stored, &buffer)?;
    Ok(())
}

/// As [`bring`]; false, and nothing done, where the page had better come alone.
fn bring_all(
    core: &Core,
    context: &mut Context,
    stored: SlotCopy,
    wanted: Wanted,
    along: Offsets,
) -> Result<bool, FaultError> {
    let Wanted { page, stays, window, access, is_stream, .. } = wanted;
    let Some(mut buffer) = core.stores.bounce.take_up_to(current_cpu(), window + along.count())
    else {
        return Ok(false);
    };
    let most = ReadLimit::of(core, context, stored.slot(), buffer.len());
    let mut batch = SwapInBatch::new(Some(stored));
    let end = core.memory.window.pages() as PageNo;
    let others = (page + 1..page + window as u64).chain(along.pages(page));
    for other in others.filter(|other| *other < end) {
        // One that is too many, or lies too far off, stays; perhaps the next does not.
        batch.add(core, other, most);
    }
    // Never at the price of direct reclaim: this is a guess.
    let count = batch.count();
    if count == 0 || !core.memory.budget.try_charge(count, core.other_bytes()) {
        return Ok(false);
    }
    let touched = bring_touched(core, context, page, stored, stays, &mut batch, &mut buffer);
    // Who writes a page writes those that follow it, but not those beside it.
    let access = if along.is_empty() { access } else { Access::Read };
    let came = match touched {
        Ok(true) => batch.install(core, context, &mut buffer, access, is_stream),
        _ => 0,
    };
    drop(batch);
    core.memory.budget.release(count - came);
    touched
}

/// Reads all that is batch, and installs the touched page. False where that must
/// be tried alone: something cannot be read, or is not what it should be.
fn bring_touched(
    core: &Core,
    context: &mut Context,
    page: PageNo,
    stored: SlotCopy,
    stays: Stays,
    batch: &mut SwapInBatch,
    buffer: &mut [u8],
) -> Result<bool, FaultError> {
    if !batch.read(core, context, buffer, true) {
        return Ok(false);
    }
    let slot = stored.slot();
    let open = |bytes: &mut [u8]| core.stores.open_sealed(slot, bytes);
    let Some(copy) = batch.slots.opened(slot, buffer, open) else { return Ok(false) };
    put(core, context, page, stays, stored, copy)?;
    Ok(true)
}

/// Puts what a slot holds of a page into the program's memory.
fn put(
    core: &Core,
    context: &mut Context,
    page: PageNo,
    stays: Stays,
    stored: SlotCopy,
    copy: &[u8],
) -> Result<(), FaultError> {
    let writes = stays.writes();
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
        fn slots_are_what_a_set_of_them_is(
            wanted in prop::collection::vec(0..100u64, 0..200),
            most_slots in 1..80usize,
            most_runs in 1..40usize,
        ) {
            let (mut slots, mut model) = (none(), BTreeSet::new());
            for slot in wanted {
                let mut with = model.clone();
                with.insert(slot);
                let fits = with.len() <= most_slots.min(REQUEST_PAGES) && runs(&with) <= most_runs;
                let is_new = !model.contains(&slot);
                let most = ReadLimit { slots: most_slots, runs: most_runs };
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
    fn each_slot_is_opened_once_and_again_after_it_could_not_be() {
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
