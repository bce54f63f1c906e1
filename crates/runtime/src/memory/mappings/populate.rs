//! Populates a mapped range.

use softswap_engine::api::engine::Engine;
use softswap_engine::api::engine::pinning::{Pinned, Then};
use softswap_sys::PAGE_SIZE;
use softswap_sys::signals;

/// Faults in 16 pages at a time: the whole range may exceed the budget, and signals of the program
/// are delivered between pieces. Returns true if all pages were faulted in.
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
