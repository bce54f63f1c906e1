//! A red-black tree of extents: what Linux has had since 5.4.
//!
//! It does not change once the area is in use, so look-ups take no lock. They
//! stop at the first node that holds the page, as the kernel's do.

use super::layout::Extent;
use intrusive_collections::{KeyAdapter, RBTree, RBTreeAtomicLink, intrusive_adapter};
use std::cmp::Ordering;

/// One extent: 48 bytes, as many as the kernel's.
#[derive(Debug)]
pub(super) struct Node {
    link: RBTreeAtomicLink,
    extent: Extent,
}

impl Node {
    /// A node that is in no tree yet.
    pub(super) fn new(extent: Extent) -> Node {
        Node { link: RBTreeAtomicLink::new(), extent }
    }
}

intrusive_adapter!(ByPage<'a> = &'a Node: Node { link: RBTreeAtomicLink });

/// Pages from `start` to before `end`. Spans that overlap count as equal: in a
/// tree of extents, which do not, a single page has one equal at most.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    start: u64,
    end: u64,
}

impl Ord for Span {
    #[inline]
    fn cmp(&self, other: &Span) -> Ordering {
        if self.end <= other.start {
            Ordering::Less
        } else if self.start >= other.end {
            Ordering::Greater
        } else {
            Ordering::Equal
        }
    }
}

impl PartialOrd for Span {
    #[inline]
    fn partial_cmp(&self, other: &Span) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Span {
    #[inline]
    fn eq(&self, other: &Span) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Span {}

impl<'a> KeyAdapter<'a> for ByPage<'_> {
    type Key = Span;

    #[inline]
    fn get_key(&self, node: &'a Node) -> Span {
        let Extent { start_page, nr_pages, .. } = node.extent;
        Span { start: start_page, end: start_page + nr_pages }
    }
}

/// The extents of one area.
pub(super) struct Tree<'a> {
    nodes: RBTree<ByPage<'a>>,
}

impl<'a> Tree<'a> {
    /// A tree of `nodes`, which come in ascending order as at swapon. They lie
    /// side by side, which is kinder to it than an allocation for each.
    pub(super) fn new(nodes: &'a [Node]) -> Tree<'a> {
        let mut tree = RBTree::new(ByPage::new());
        let mut last = tree.back_mut();
        for node in nodes {
            last.insert_after(node);
            last.move_next();
        }
        Tree { nodes: tree }
    }

    /// The block that holds `page`.
    #[inline]
    pub(super) fn lookup(&self, page: u64) -> Option<u64> {
        let found = self.nodes.find(&Span { start: page, end: page + 1 });
        let Extent { start_page, start_block, .. } = found.get()?.extent;
        Some(start_block + (page - start_page))
    }

    /// DRAM that an extent takes.
    pub(super) const BYTES_PER_EXTENT: usize = size_of::<Node>();
}
