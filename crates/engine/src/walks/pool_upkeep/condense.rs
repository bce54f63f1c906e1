//! Condensing: once the dense codec packs, what the fast one has packed before follows.
//!
//! The dense codec was chosen because reads from the disk cost more than it takes longer
//! ([`crate::policy::codec_choice`]). But what lies in the pool already takes twice the room until it
//! is touched, and keeps what is on the disk from coming back ([`crate::steps::readmit`]). So
//! where that wants room background reclaim packs the pool's oldest objects anew, each
//! once.

use super::recompress::repack;
use crate::core::Core;
use crate::memory::context::Context;
use crate::store::pool::Handle;

/// Objects looked at in one go: some 10 us each, in which nothing else is reclaimed.
const OBJECTS: usize = 32;

/// Packs some of the oldest objects anew. Returns how many it looked at.
pub(crate) fn condense(core: &Core, context: &mut Context) -> usize {
    let Some(packer) = core.policies.packer() else { return 0 };
    let mut objects = [(0, Handle::default()); OBJECTS];
    let count = core.stores.pool.oldest(&mut objects);
    let Some((_, first)) = objects[..count].first() else {
        core.policies.codec_choice.note_condensed(u64::MAX);
        return 0;
    };
    for object in &objects[..count] {
        repack(core, context, *object, packer);
    }
    // Those that stay are not to be the last of their slab.
    core.stores.pool.reopen_if_gone_through(first.slab());
    core.policies.codec_choice.note_condensed(count as u64);
    count
}
