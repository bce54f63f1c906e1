//! Extent maps side by side: softswap's own, a list and a red-black tree over
//! the same extents, and what a look-up in each takes.

pub(crate) mod layout;
pub(crate) mod maps;
pub(crate) mod lookups;
