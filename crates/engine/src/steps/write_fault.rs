//! First write to a write-protected page. Frees the page's stored copy, if it has one.

use crate::base::page::{Claim, PageNo, Place};
use crate::base::stats::Counter;
use crate::core::Core;
use crate::steps::swap_cache;
use std::io;

/// Removes the protection and frees the copy. If the kernel refuses, nothing is changed.
pub(crate) fn make_writable(core: &Core, page: PageNo, claim: Claim<'_>) -> io::Result<()> {
    let Place::Resident { age, copy } = claim.before().place() else { return Ok(()) };
    // An earlier operation may have left a page without a copy protected.
    core.memory.window.allow_writes(page)?;
    let Some(copy) = copy else { return Ok(()) };
    claim.publish(Place::resident(age));
    swap_cache::free_copy(core, copy);
    core.policies.stored_copies.note(page, core.policies.clock.refaults.refaults_early(page), true);
    swap_cache::count_copy(core.stats, copy, Counter::CopiesWritten, Counter::PoolCopiesWritten);
    Ok(())
}
