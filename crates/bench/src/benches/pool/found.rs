//! What was measured, before figures are made of it.

use super::operations::Took;
use super::waste::WasteRow;
use crate::measure::machine::Disturbance;
use softswap_sys::memory::Page;

pub(super) const SOFTSWAP: &str = "softswap";
pub(super) const ZRAM: &str = "zram";

/// Pages of a kind.
pub(super) struct Content {
    pub(super) name: &'static str,
    pub(super) pages: &'static [Page],
    pub(super) mean_packed_bytes: f64,
}

/// A variant with a kind and so many threads, and what each round took.
pub(super) struct Cell {
    pub(super) variant: &'static str,
    pub(super) content: usize,
    pub(super) threads: usize,
    pub(super) rounds: Vec<Took>,
}

/// Everything that was found.
pub(super) struct Found {
    pub(super) contents: Vec<Content>,
    pub(super) cells: Vec<Cell>,
    pub(super) waste: Vec<WasteRow>,
    pub(super) disturbance: Disturbance,
    pub(super) notes: Vec<String>,
}
