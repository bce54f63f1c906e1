//! Recompression: what has lain in the pool for a while is packed again, by the
//! dense codec, when processors are idle. Opt-in: such pages take longer to
//! come back.

use super::objects::claim_pooled;
use crate::base::page::{PageNo, Place};
use crate::base::stats::Counter;
use crate::codec::{self, Packer};
use crate::core::Core;
use crate::memory::context::{Context, Contexts};
use crate::steps::decompress;
use crate::store::pool::Handle;
use softswap_sys::raw::now_ns;
use std::sync::atomic::Ordering::Relaxed;

/// What packs idle pages: dense, at a level that costs little more than the
/// next one down.
const DENSE: Packer = Packer::Zstd { level: 1 };
/// What must be gained, as a share: else the time to unpack is not worth it.
const GAIN_SHARE: usize = 8;

/// How far it has come.
#[derive(Debug, Default)]
pub(crate) struct Recompressor {
    /// Where the search for idle slabs goes on.
    next: u32,
    /// What had been pooled when a whole round found nothing to do.
    settled_at: Option<u64>,
    /// In this round something was packed again, or was not idle for long enough.
    is_restless: bool,
}

impl Recompressor {
    /// Does a little, if it is wanted and no processor is; whether there may be
    /// more to do soon.
    pub(crate) fn step(&mut self, core: &Core, contexts: &Contexts) -> bool {
        if !core.policies.recompresses.load(Relaxed) || self.has_settled(core) {
            return false;
        }
        if !core.steering.pressure.is_contended(now_ns()) {
            self.advance(core, contexts);
        }
        true
    }

    /// Whether a whole round found nothing to do, and nothing was pooled since.
    pub(crate) fn has_settled(&self, core: &Core) -> bool {
        self.settled_at == Some(core.stats.get(Counter::PagesPooled))
    }

    /// Packs the next idle slab's pages again, if there is one near.
    pub(crate) fn advance(&mut self, core: &Core, contexts: &Contexts) {
        let pooled = core.stats.get(Counter::PagesPooled);
        let mut context = contexts.claim_background();
        let search = core.stores.pool.idle_slab(&mut self.next);
        self.is_restless |= search.passed_used;
        if search.wrapped {
            self.settled_at = (!self.is_restless).then_some(pooled);
            self.is_restless = false;
        }
        let Some(slab) = search.slab else { return };
        core.stores.pool.each_object(slab, |page, handle| {
            self.is_restless |= repack(core, &mut context, (page, handle), DENSE).is_some();
        });
    }
}

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
    decompress::peeked(&core.stores, context, handle).ok()?;
    let old_bytes = handle.packed_bytes();
    let room = &mut context.packed.0[..old_bytes - old_bytes / GAIN_SHARE];
    let len = codec::compress(packer, &context.page.0, room, &mut context.scratch)?;
    core.stores.workspaces.note_stored(packer.codec());
    let new = core.stores.pool.store(&room[..len], page, tag).ok()?;
    claim.publish(Place::Pool { handle: new.to_bits() });
    core.stores.pool.free(handle);
    core.stats.add(Counter::PagesRecompressed, 1);
    core.stats.add(Counter::RecompressedSavedBytes, (old_bytes - len) as u64);
    Some(())
}
