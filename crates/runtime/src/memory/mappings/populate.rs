//! Brings in a range of what is mapped.

use softswap_engine::door::engine::Engine;
use softswap_engine::door::engine::pinning::{Pinned, Then};
use softswap_sys::PAGE_SIZE;
use softswap_sys::signals;

/// Brings in a range, a few pages at a time: all of it may be more than there is room for,
/// and the program's signals come in between. Whether all of it came.
pub(super) fn populate(engine: &Engine, address: usize, len: usize) -> bool {
    const PIECE_BYTES: usize = 16 * PAGE_SIZE;
    let mut done = 0;
    while done < len {
        let (at, piece) = (address + done, PIECE_BYTES.min(len - done));
        let open = !signals::current_mask();
        let pinned = signals::with_all_blocked(|| {
            let pinned = engine.pin_until(at, piece, open);
            if let Ok(pinned) = &pinned {
                engine.unpin(at, pinned.bytes);
            }
            pinned
        });
        match pinned {
            Ok(Pinned { bytes, then: Then::Done | Then::Signal, .. }) => done += bytes,
            _ => return false,
        }
    }
    true
}
