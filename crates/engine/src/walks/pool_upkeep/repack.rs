//! Packing an object of the pool anew, by a denser codec, instead of sending it on to the
//! disk ([`crate::policy::compression_tier`]).

use super::objects::claim_pooled;
use crate::base::page::{PageNo, Place};
use crate::base::stats::Counter;
use crate::codec::{self, Packer};
use crate::core::Core;
use crate::memory::context::Context;
use crate::steps::decompress;
use crate::store::pool::Handle;
use softswap_sys::raw::thread_cpu_ns;

/// What must be gained, as a share: else the time to unpack is not worth it.
const GAIN_SHARE: usize = 8;

/// Packs one page anew, by `packer`. `None` where its codec has packed it, that gains too
/// little, somebody has the page, it is damaged, or the pool or the budget is full: for a
/// moment both copies are there.
pub(super) fn repack(
    core: &Core,
    context: &mut Context,
    (page, handle): (PageNo, Handle),
    packer: Packer,
) -> Option<()> {
    let tag = packer.codec().tag();
    if handle.tag() == tag || core.stores.pool.used_bytes() >= core.stores.pool.limit_bytes() {
        return None;
    }
    let _room = core.room_for_pool(context.scratch.bytes_to_pack(packer))?;
    let claim = claim_pooled(core, page, handle)?;
    let start_ns = thread_cpu_ns();
    decompress::peeked(&core.stores, context, handle).ok()?;
    let old_bytes = handle.packed_bytes();
    let room = &mut context.packed.0[..old_bytes - old_bytes / GAIN_SHARE];
    let len = codec::compress(packer, &context.page.0, room, &mut context.scratch);
    let new_bytes = len.unwrap_or(old_bytes);
    core.policies.tier.note_repacked(old_bytes, new_bytes, thread_cpu_ns() - start_ns);
    let len = len?;
    core.stores.workspaces.note_stored(packer.codec());
    let new = core.stores.pool.store(&room[..len], page, tag).ok()?;
    claim.publish(Place::Pool { handle: new.to_bits() });
    core.stores.pool.free(handle);
    core.stats.add(Counter::PagesRepacked, 1);
    core.stats.add(Counter::RepackSavedBytes, (old_bytes - len) as u64);
    Some(())
}
