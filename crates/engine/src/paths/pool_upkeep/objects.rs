//! Claims objects of the pool through their pages.

use crate::base::page::{Claim, PageNo, Place, StoredCopy};
use crate::core::Core;
use crate::memory::context::Context;
use crate::store::pool::Handle;

/// Copies an object to the context. `None` if it is damaged.
pub(super) fn copy_packed<'c>(
    core: &Core,
    context: &'c mut Context,
    handle: Handle,
) -> Option<&'c [u8]> {
    let room = &mut context.packed.0[..handle.packed_bytes()];
    core.stores.pool.peek(handle, |packed| room.copy_from_slice(packed)).ok()?;
    Some(room)
}

/// Claims a page if it is this object, or has it as its copy, and is not busy.
pub(super) fn claim_stored(core: &Core, page: PageNo, handle: Handle) -> Option<Claim<'static>> {
    let bits = handle.to_bits();
    let is_copy = |place: Place| place.copy() == Some(StoredCopy::pooled(bits));
    claim_at(core, page, |place| place == Place::Pool { handle: bits } || is_copy(place))
}

pub(super) fn claim_at(
    core: &Core,
    page: PageNo,
    is_it: impl Fn(Place) -> bool,
) -> Option<Claim<'static>> {
    // A damaged header may contain any owner.
    if page >= core.memory.window.pages() as u64 {
        return None;
    }
    let seen = core.memory.pages.load(page);
    is_it(seen.place()).then(|| core.memory.pages.try_claim(page, seen)).flatten()
}
