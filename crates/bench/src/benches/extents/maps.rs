//! The compared maps, built from the same extents.

use super::layout::Extent;
use super::rivals::{List, ListNode, Tree, TreeNode};
use softswap_cli::refusal::Refusal;
use softswap_engine::store::swap::extent::ExtentMap;

pub(super) trait Lookup: Send + Sync {
    fn block(&self, page: u64) -> Option<u64>;

    /// Looks up all of `pages` and returns the sum of their blocks. The look-ups are inlined into
    /// this loop.
    fn sum(&self, pages: &[u64]) -> u64 {
        pages.iter().fold(0, |sum, page| sum.wrapping_add(self.block(*page).unwrap_or(0)))
    }
}

impl Lookup for List {
    #[inline]
    fn block(&self, page: u64) -> Option<u64> {
        self.lookup(page)
    }
}

impl Lookup for Tree {
    #[inline]
    fn block(&self, page: u64) -> Option<u64> {
        self.lookup(page)
    }
}

impl Lookup for ExtentMap {
    #[inline]
    fn block(&self, page: u64) -> Option<u64> {
        // `black_box` forces the whole result to be computed, because the engine also uses the rest
        // of the extent.
        std::hint::black_box(self.lookup(page)).ok().map(|mapping| mapping.block)
    }
}

/// Baseline without a map, for an area that is contiguous from the start of the device.
struct NoMap;

impl Lookup for NoMap {
    #[inline]
    fn block(&self, page: u64) -> Option<u64> {
        Some(page)
    }
}

pub(super) const COUNT: usize = 4;
pub(super) const NONE: &str = "none";
pub(super) const LIST: &str = "list";
pub(super) const RBTREE: &str = "rbtree";
pub(super) const SOFTSWAP: &str = "softswap";

/// A layout stored in one of the maps.
pub(super) struct Map {
    pub(super) name: &'static str,
    pub(super) lookup: Box<dyn Lookup>,
    pub(super) extents: usize,
    pub(super) pages: u64,
    /// DRAM used by the map.
    pub(super) bytes: u64,
}

impl Map {
    pub(super) fn bytes_per_extent(&self) -> f64 {
        self.bytes as f64 / self.extents.max(1) as f64
    }
}

/// Builds all maps of extents and checks that they return the same blocks.
pub(super) fn all(layout: &[Extent]) -> Result<[Map; COUNT], Refusal> {
    let softswap = ExtentMap::new(layout.len()).map_err(Refusal::own)?;
    for extent in layout {
        softswap
            .append(extent.start_page, extent.nr_pages, extent.start_block)
            .map_err(Refusal::own)?;
    }
    let extents = layout.len();
    let pages = layout.iter().map(|extent| extent.nr_pages).sum();
    let map = |name, lookup: Box<dyn Lookup>, bytes| Map { name, lookup, extents, pages, bytes };
    let of_nodes = |size: usize| (extents * size) as u64;
    let softswap_bytes = softswap.metadata_bytes();
    let maps = [
        map(NONE, Box::new(NoMap), 0),
        map(LIST, Box::new(List::new(layout)), of_nodes(size_of::<ListNode>())),
        map(RBTREE, Box::new(Tree::new(layout)), of_nodes(size_of::<TreeNode>())),
        map(SOFTSWAP, Box::new(softswap), softswap_bytes),
    ];
    for extent in layout {
        for past in [0, extent.nr_pages / 2, extent.nr_pages - 1] {
            let (page, right) = (extent.start_page + past, Some(extent.start_block + past));
            for Map { name, lookup, .. } in &maps[1..] {
                let found = lookup.block(page);
                if found != right {
                    return Err(Refusal::own(format!(
                        "{name}: page {page} was found at {found:?} instead of {right:?}"
                    )));
                }
            }
        }
    }
    Ok(maps)
}
