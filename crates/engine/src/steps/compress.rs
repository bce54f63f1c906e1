//! Pages that need not be written to leave: those of equal words, and those that
//! the pool takes.

use crate::base::page::{PageNo, Place};
use crate::base::stats::{Counter, Stats};
use crate::codec::same_filled;
use crate::codec::{self, Packer};
use crate::core::Core;
use crate::core::recorder::Recorder;
use crate::memory::context::Context;
use crate::policy::codec_choice::{DENSE, Sample};
use softswap_sys::PAGE_SIZE;
use softswap_sys::raw::now_ns;

/// Where the page can stay without leaving DRAM, if it can.
pub(crate) fn in_dram(
    core: &Core,
    context: &mut Context,
    page: PageNo,
    content: &[u8; PAGE_SIZE],
) -> Option<Place> {
    core.recorder.iter().for_each(|recorder| record(recorder, context, page, content));
    fill(core.stats, content).or_else(|| into_pool(core, context, page, content))
}

/// Writes down what a page holds, by what it packs to.
fn record(recorder: &Recorder, context: &mut Context, page: PageNo, content: &[u8; PAGE_SIZE]) {
    if same_filled::same_filled_word(content).is_some() {
        return recorder.filled(page);
    }
    let Context { packed, scratch, .. } = context;
    let room = &mut packed.0[..codec::MAX_PACKED_BYTES];
    let packed = [Packer::Lz4, DENSE].map(|packer| codec::compress(packer, content, room, scratch));
    recorder.left(page, packed, PAGE_SIZE);
}

/// A page of equal words, if it is one: that word, if it can be kept so.
fn fill(stats: Stats, content: &[u8; PAGE_SIZE]) -> Option<Place> {
    let word = same_filled::same_filled_word(content)?;
    stats.add(Counter::PagesSameFilled, 1);
    same_filled::encode(word).map(|code| Place::Filled { code })
}

/// An object of the pool, if the page is admitted, there is room, and it packs.
fn into_pool(
    core: &Core,
    context: &mut Context,
    page: PageNo,
    content: &[u8; PAGE_SIZE],
) -> Option<Place> {
    let packer = core.policies.packer()?;
    if core.bypasses_pool(page) && !core.policies.admission.is_due(page) {
        core.policies.admission.note_passed();
        core.stats.add(Counter::PoolPassed, 1);
        return None;
    }
    let to_pack = |packer| core.room_for_pool(context.scratch.bytes_to_pack(packer));
    // Before the work: what the pool does not take need not be packed.
    let room = if core.stores.pool.accepts() { to_pack(packer) } else { None };
    let Some(_room) = room else {
        core.stats.add(Counter::PoolRefusals, 1);
        return None;
    };
    // The first time here only if there is room for what it works in, too.
    let try_room = |other| match context.scratch.bytes_to_pack(other) {
        0 => Some(None),
        bytes => Some(Some(core.room_for_pool(bytes)?)),
    };
    let other =
        core.policies.packer_to_try(packer).and_then(|other| Some((other, try_room(other)?)));
    let packers = (packer, other.as_ref().map(|(other, _)| *other));
    let Some(packed) = pack(core, context, packers, content) else {
        core.stats.add(Counter::PagesIncompressible, 1);
        return None;
    };
    let len = packed.len();
    core.stores.workspaces.note_stored(packer.codec());
    let Ok(handle) = core.stores.pool.store(packed, page, packer.codec().tag()) else {
        core.stats.add(Counter::PoolLimitHits, 1);
        return None;
    };
    core.policies.codec_choice.note_pooled();
    core.stats.add(Counter::PagesPooled, 1);
    core.stats.add(Counter::PooledBytes, len as u64);
    Some(Place::Pool { handle: handle.to_bits() })
}

/// Packs a page, if it can be, into the context's buffer; by the `other` codec before, if
/// there is one, to see what that comes to.
fn pack<'c>(
    core: &Core,
    context: &'c mut Context,
    (packer, other): (Packer, Option<Packer>),
    content: &[u8; PAGE_SIZE],
) -> Option<&'c [u8]> {
    let Context { packed, scratch, .. } = context;
    let room = &mut packed.0[..codec::MAX_PACKED_BYTES];
    core.policies.codec_choice.note_packed();
    let mut timed = |packer| {
        let start = now_ns();
        let len = codec::compress(packer, content, room, scratch);
        (len, now_ns() - start)
    };
    let Some(other) = other else {
        let (len, ns) = timed(packer);
        core.policies.admission.packed(len, ns);
        return len.map(|len| &room[..len]);
    };
    // Twice: what it works in is not at hand the first time.
    timed(other);
    let by_other = timed(other);
    let by_packer = timed(packer);
    let sample = |(len, ns): (Option<usize>, u64)| len.map(|len| Sample { bytes: len as u64, ns });
    if let (Some(this), Some(other)) = (sample(by_packer), sample(by_other)) {
        core.policies.codec_choice.note_tried(packer, this, other);
    }
    by_packer.0.map(|len| &room[..len])
}
