//! First write to a write-protected page. Frees the page's stored copy, if it has one.

use crate::base::page::{Claim, PageNo, Place};
use crate::base::stats::Counter;
use crate::core::Core;
use crate::steps::swap_cache;
use std::io;

/// Makes a claimed page writable: removes the protection and frees the page's copy. If the kernel
/// refuses, nothing is changed.
pub(crate) fn make_writable(core: &Core, page: PageNo, claim: Claim<'_>) -> io::Result<()> {
    let Place::Resident { age, copy } = claim.before().place() else { return Ok(()) };
    // Also called for a page without a copy, because an earlier operation may have left it
    // protected.
    core.memory.window.allow_writes(page)?;
    let Some(copy) = copy else { return Ok(()) };
    claim.publish(Place::resident(age));
    swap_cache::free_copy(core, copy);
    core.policies.stored_copies.note(page, core.policies.clock.refaults.refaults_early(page), true);
    swap_cache::count_copy(core.stats, copy, Counter::CopiesWritten, Counter::PoolCopiesWritten);
    Ok(())
}
