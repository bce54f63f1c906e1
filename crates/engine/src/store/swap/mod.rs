//! Swap areas: where a page is kept once it has left DRAM.
//!
//! On the way out a page gets a slot, the slot an extent, the extent a block
//! of the device; on the way in the slot leads back the same way. `extent` and
//! `slot` know nothing of each other or of devices; `area` puts them together,
//! and `areas` makes one of several. What lies under a name, a file or a
//! device, is taken into use by `named`, which asks `contents` what it holds
//! and `header` what its first page says; a tree of processes shares it by a
//! [`softswap_shared::cluster_table`]. `open_areas` does that for all areas that were asked for.

pub(crate) mod cluster;
pub mod extent;
pub mod slot;
pub(crate) mod discard;
pub mod header;
pub mod contents;
pub mod named;
pub mod area;
pub(crate) mod batch;
pub(crate) mod areas;
pub(crate) mod child_areas;

pub(crate) use area::{Area, AreaError, Run};
pub use area::{AreaFull, FixedPages};
pub(crate) use areas::{Areas, Lanes};
pub use areas::{Backing, Layout, MAX_AREAS, SharedPages};
pub(crate) use batch::SlotBatch;
pub(crate) use child_areas::{ChildAreas, Opened, Place};
pub use cluster::CLUSTER_SLOTS;
pub use discard::Discard;
pub use named::{Activated, activate};
