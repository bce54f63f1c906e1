//! Swap areas: storage of pages outside DRAM.
//!
//! A page is stored in a slot, the slot is part of an extent, and the extent is a run of device
//! blocks. `extent_map` and `slot_allocator` are independent of each other and of devices; `area`
//! combines them, and `areas` combines several areas. `named` opens a file or a device with a
//! header. It recognises other content with `contents` and parses the first page with `header`.
//! `raw` verifies where the file's blocks are on the device. A tree of processes shares an area
//! through a [`softswap_shared::cluster_table`]. `open_areas` opens all configured areas.

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

pub(crate) use area::{Area, AreaError, Run};
pub use area::{AreaFull, FixedPages};
pub(crate) use areas::{Areas, Lanes};
pub use areas::{Backing, Layout, MAX_AREAS, SharedPages};
pub(crate) use batch::SlotBatch;
pub(crate) use child_areas::{ChildArea, ChildAreas, Opened};
pub use cluster::CLUSTER_SLOTS;
pub use discard::Discard;
pub use named::{Activated, activate};
