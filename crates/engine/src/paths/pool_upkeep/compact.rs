//! Compaction of sparse slabs.

use super::objects::{claim_stored, copy_packed};
use crate::base::page::PageNo;
use crate::base::stats::Counter;
use crate::core::Core;
use crate::memory::context::Context;
use crate::policy::mechanism::Mechanism;
use crate::steps::swap_cache;
use crate::store::pool::Handle;

/// Moves the objects of the sparsest slab into gaps of others, if that pays. Returns the number of
/// pages moved.
pub(crate) fn compact(core: &Core, context: &mut Context) -> usize {
    if !core.policies.has(Mechanism::Compaction) {
        return 0;
    }
    let Some(slab) = core.stores.pool.sparsest() else { return 0 };
    let mut moved = 0;
    core.stores.pool.each_object(slab, |page, handle| {
        moved += usize::from(move_object(core, context, page, handle));
    });
    core.stores.pool.reopen(slab);
    core.stats.add(Counter::PagesCompacted, moved as u64);
    moved
}

/// Moves a page's object. Returns false if the page is busy, there is no gap, or the object is
/// damaged, which is reported by a touch.
fn move_object(core: &Core, context: &mut Context, page: PageNo, handle: Handle) -> bool {
    let Some(claim) = claim_stored(core, page, handle) else { return false };
    let packed = copy_packed(core, context, handle);
    let moved = packed.map(|packed| core.stores.pool.store_in_gap(packed, page, handle.tag()));
    let Some(Ok(new)) = moved else { return false };
    let at = claim.before().place();
    claim.publish(swap_cache::renamed(at, new));
    core.stores.pool.free(handle);
    true
}
