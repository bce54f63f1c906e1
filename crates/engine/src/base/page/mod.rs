//! One 64-bit atomic entry per page: where the page is, and who may change that.
//!
//! ```text
//!  bit 0-2  state        Vacant Resident Staged Filled Pool Slot Foreign Packed
//!  bit 3    busy         one thread is changing the page's place
//!  bit 4    waiters      somebody sleeps until busy is cleared
//!  bit 6-63 payload      Resident: heat (4 bits), whether it is protected, then
//!                                  pins (16 bits) or whether a copy is in the
//!                                  pool and, from bit 19 on, where
//!                        Staged: frame
//!                        Filled: word code
//!                        Pool: handle     Slot: slot number, whether it is
//!                                                         known not to pack
//!                        Packed: slot number, part
//! ```
//!
//! A resident page whose copy is still stored is write-protected: it can leave
//! without being stored again, unless it is written first. So may be one without a
//! copy: it can leave together with others. A page is pinned for what the kernel may
//! write to it, so a pinned page is not protected, and the two share their place in
//! the entry.
//!
//! A transition is: claim (compare-and-swap that sets busy), act, publish
//! (store the new entry, wake waiters). Only the claimer acts, so a page has
//! one author of its fate at any time. Waiters spin briefly, then sleep.

mod entry;
mod table;
#[cfg(all(test, not(feature = "loom")))]
mod tests;
#[cfg(all(test, feature = "loom"))]
mod model;

pub(crate) use entry::{MAX_HEAT, OBJECT_BITS, PART_LIMIT};
pub use entry::{PageNo, Place, SlotCopy, StoredCopy};
pub use table::{Claim, PageTable};
