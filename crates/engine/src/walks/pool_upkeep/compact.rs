//! Compaction: what is left in sparse slabs moves together.

use super::objects::{claim_stored, copy_packed};
use crate::base::page::PageNo;
use crate::base::stats::Counter;
use crate::core::Core;
use crate::memory::context::Context;
use crate::policy::mechanism::Mechanism;
use crate::steps::swap_cache;
use crate::store::pool::Handle;

/// Empties the sparsest slab into the gaps of others, where that is worth while.
/// Returns how many pages moved.
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

/// Moves one page's object; false where it stays, because somebody has the page
/// or there is no gap. What is damaged stays, too: whoever touches it is told.
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
