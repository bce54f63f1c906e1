//! What was measured: throughputs of tasks, and look-ups alone.

use super::tasks::Throughputs;
use crate::extent_maps::layout::Lengths;
use crate::extent_maps::lookups::{LookupRow, Lookups};

/// Throughputs with one number of tasks over one layout.
pub(super) struct Cell {
    pub(super) tasks: usize,
    pub(super) extents: usize,
    pub(super) lengths: Lengths,
    pub(super) throughputs: Throughputs,
}

/// Look-ups over one layout.
pub(super) struct OfLayout {
    pub(super) extents: usize,
    pub(super) lengths: Lengths,
    pub(super) lookups: Lookups,
    pub(super) rows: Vec<LookupRow>,
}

/// Look-ups over a file.
pub(super) struct OfFile {
    pub(super) extents: usize,
    pub(super) bytes: u64,
    pub(super) lookups: Lookups,
    pub(super) rows: Vec<LookupRow>,
}

pub(super) struct Measured {
    pub(super) table: Vec<Cell>,
    pub(super) sweep: Vec<Cell>,
    pub(super) layouts: Vec<OfLayout>,
    pub(super) file: Result<OfFile, String>,
}
