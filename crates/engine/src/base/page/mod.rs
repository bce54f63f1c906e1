//! One 64-bit atomic entry per page: its place, and the right to change it.
//!
//! ```text
//!  bit 0-2  state    Vacant Resident Staged SameFilled Pool Slot Unmanaged CompressedSlot
//!  bit 3    busy     one thread is changing the page's place
//!  bit 4    waiters  a thread sleeps until busy is cleared
//!  bit 6-63 payload
//!    Resident        bit 6-9 age, bit 10 protected
//!      unprotected   bit 11-26 pins
//!      protected     bit 11: the copy is in the pool; bit 19-63: position of the copy
//!    Staged          frame
//!    SameFilled      code of the word
//!    Pool            handle
//!    Slot            slot number, and whether the page is incompressible
//!    CompressedSlot  slot number, part number
//! ```
//!
//! A resident page with a stored copy is write-protected: unless it is written first, it is evicted
//! without another store. A claimed page without a copy may be protected too, to be unmapped
//! together with other pages. Pinned pages are never protected, because the kernel may write to
//! them; therefore the pins share bits with the copy.
//!
//! A transition has three steps: claim (compare-and-swap that sets busy), act, publish (store the
//! new entry, wake waiters). Only the claimer acts. Waiters spin briefly, then sleep.

mod entry;
mod table;
#[cfg(all(test, not(feature = "loom")))]
mod tests;
#[cfg(all(test, feature = "loom"))]
mod model;

pub(crate) use entry::{MAX_AGE, OBJECT_BITS, PART_LIMIT};
pub use entry::{PageNo, Place, SlotCopy, StoredCopy};
pub use table::{Claim, PageTable};
