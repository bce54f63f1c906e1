//! The maps under comparison, over the same extents.

use super::layout::Layout;
use super::list::{Arena, List, Node as ListNode};
use super::tree::{Node as TreeNode, Tree};
use softswap_cli::refusal::Refusal;
use softswap_engine::store::swap::extent::ExtentMap;

pub(super) trait Lookup: Sync {
    /// The block that holds `page`.
    fn block(&self, page: u64) -> Option<u64>;
}

impl Lookup for List<'_> {
    #[inline]
    fn block(&self, page: u64) -> Option<u64> {
        self.lookup(page)
    }
}

impl Lookup for Tree<'_> {
    #[inline]
    fn block(&self, page: u64) -> Option<u64> {
        self.lookup(page)
    }
}

impl Lookup for ExtentMap {
    #[inline]
    fn block(&self, page: u64) -> Option<u64> {
        // With the pages that are left, as the engine asks.
        std::hint::black_box(self.lookup(page)).ok().map(|mapping| mapping.block)
    }
}

/// No map: the area lies in one piece at the start of the device.
pub(super) struct NoMap;

impl Lookup for NoMap {
    #[inline]
    fn block(&self, page: u64) -> Option<u64> {
        Some(page)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum MapKind {
    None,
    List,
    RbTree,
    Softswap,
}

impl MapKind {
    pub(super) const ALL: [MapKind; 4] =
        [MapKind::None, MapKind::List, MapKind::RbTree, MapKind::Softswap];

    pub(super) fn name(self) -> &'static str {
        match self {
            MapKind::None => "none",
            MapKind::List => "list",
            MapKind::RbTree => "rbtree",
            MapKind::Softswap => "softswap",
        }
    }
}

/// Calls a generic function with one of the maps, so that its look-ups are inlined.
macro_rules! with_map {
    ($maps:expr, $kind:expr, $map:ident => $call:expr) => {
        match $kind {
            MapKind::None => {
                let $map = &NoMap;
                $call
            }
            MapKind::List => {
                let $map = &$maps.list;
                $call
            }
            MapKind::RbTree => {
                let $map = &$maps.tree;
                $call
            }
            MapKind::Softswap => {
                let $map = &$maps.softswap;
                $call
            }
        }
    };
}
pub(super) use with_map;

/// The nodes of the rivals.
pub(super) struct Nodes<'a> {
    list: Arena<ListNode<'a>>,
    tree: Vec<TreeNode>,
}

impl Nodes<'_> {
    pub(super) fn of(layout: &Layout) -> Self {
        Nodes {
            list: Arena::with_capacity(layout.extents.len()),
            tree: layout.extents.iter().copied().map(TreeNode::new).collect(),
        }
    }
}

/// One layout in all maps.
pub(super) struct Maps<'a> {
    pub(super) layout: &'a Layout,
    pub(super) list: List<'a>,
    pub(super) tree: Tree<'a>,
    pub(super) softswap: ExtentMap,
}

impl<'a> Maps<'a> {
    /// Fills the maps, and makes sure that all give the same answers.
    pub(super) fn new(layout: &'a Layout, nodes: &'a Nodes<'a>) -> Result<Maps<'a>, Refusal> {
        let softswap = ExtentMap::new(layout.extents.len())
            .map_err(|error| Refusal::own(format!("no memory for the extent map: {error}")))?;
        for extent in &layout.extents {
            softswap
                .append(extent.start_page, extent.nr_pages, extent.start_block)
                .map_err(|error| Refusal::own(format!("the extent map is incomplete: {error}")))?;
        }
        let list = List::new(&nodes.list, &layout.extents);
        let maps = Maps { layout, list, tree: Tree::new(&nodes.tree), softswap };
        for extent in &layout.extents {
            for past in [0, extent.nr_pages / 2, extent.nr_pages - 1] {
                let (page, right) = (extent.start_page + past, Some(extent.start_block + past));
                for kind in &MapKind::ALL[1..] {
                    let found = with_map!(maps, *kind, map => map.block(page));
                    if found != right {
                        let name = kind.name();
                        return Err(Refusal::own(format!(
                            "{name}: page {page} was found at {found:?} instead of {right:?}"
                        )));
                    }
                }
            }
        }
        Ok(maps)
    }

    /// DRAM of the map, in bytes.
    pub(super) fn bytes(&self, kind: MapKind) -> u64 {
        let count = self.layout.extents.len() as u64;
        match kind {
            MapKind::None => 0,
            MapKind::List => count * List::BYTES_PER_EXTENT as u64,
            MapKind::RbTree => count * Tree::BYTES_PER_EXTENT as u64,
            MapKind::Softswap => self.softswap.metadata_bytes(),
        }
    }
}
