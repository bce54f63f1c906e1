//! Swap areas: storage of pages outside DRAM.
//!
//! A page is stored in a slot, the slot is part of an extent, and the extent is a run of device
//! blocks. `extent_map` and `slot_allocator` are independent of each other and of devices; `area`
//! combines them.

pub(crate) mod cluster;
pub mod extent_map;
pub mod slot_allocator;
pub(crate) mod discard;
pub mod header;
pub mod contents;
pub mod named;
pub mod area;
pub(crate) mod batch;
pub(crate) mod areas;
pub mod raw;
pub(crate) mod child_areas;

pub(crate) use area::{AreaError, Run, SwapArea};
pub use area::{AreaFull, FixedPages};
pub use areas::{Backing, Layout, MAX_AREAS, SharedPages};
pub(crate) use areas::{Lanes, SwapAreas};
pub(crate) use batch::SlotBatch;
pub(crate) use child_areas::{ChildArea, ChildAreas, Opened};
pub use cluster::CLUSTER_SLOTS;
pub use discard::Discard;
pub use named::{Activated, activate};
