//! The compared maps of one layout: Linux's former linked list with one shared cursor (before 5.4),
//! its red-black tree, and softswap's map.

use crate::measure::noise::shuffled;
use intrusive_collections::{KeyAdapter, RBTree, RBTreeAtomicLink, intrusive_adapter};
use softswap_cli::refusal::Refusal;
use softswap_engine::store::swap::extent::ExtentMap;
use std::cmp::Ordering;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use typed_arena::Arena;

/// Pages that are contiguous on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    /// First page in the area.
    start_page: u64,
    nr_pages: u64,
    /// First page on the device.
    start_block: u64,
}

/// Returns `count` extents of equal length with `pages` pages in all, without gaps. Their order on
/// the device is random, with gaps, so none continues another.
fn layout(count: usize, pages: u64) -> Vec<Extent> {
    let end = |index: usize| pages * index as u64 / count as u64;
    let extent = |index| {
        let (start_page, nr_pages) = (end(index), end(index + 1) - end(index));
        Extent { start_page, nr_pages, start_block: 0 }
    };
    let mut extents: Vec<_> = (0..count).map(extent).collect();
    let mut next_block = 0;
    for index in shuffled(count, 11) {
        extents[index].start_block = next_block;
        next_block += extents[index].nr_pages + 1;
    }
    extents
}

pub(super) trait Lookup: Send + Sync {
    fn block(&self, page: u64) -> Option<u64>;

    /// Looks up all of `pages` and returns the sum of their blocks. The look-ups are inlined into
    /// this loop.
    fn sum(&self, pages: &[u64]) -> u64 {
        pages.iter().fold(0, |sum, page| sum.wrapping_add(self.block(*page).unwrap_or(0)))
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

/// List node of 40 bytes, the size of the kernel's.
struct ListNode {
    /// `None` in the last node.
    next: Option<&'static ListNode>,
    number: usize,
    extent: Extent,
}

/// The extents of one area in a linked list.
///
/// A look-up starts at the extent where the previous look-up of any thread ended, and follows the
/// list, which wraps around, to the extent that contains the page. Each step moves the cursor
/// without a lock, as in the kernel.
struct List {
    /// Nodes by number, to find the cursor's node. The walk follows the links.
    nodes: Vec<&'static ListNode>,
    cursor: AtomicUsize,
}

impl List {
    /// Builds a list whose nodes are adjacent in memory, which is faster than separate allocations.
    /// The nodes are never freed, because the program exits soon.
    fn new(extents: &[Extent]) -> List {
        let arena: &'static Arena<ListNode> =
            Box::leak(Box::new(Arena::with_capacity(extents.len())));
        let (mut next, mut nodes) = (None, Vec::with_capacity(extents.len()));
        for (number, extent) in extents.iter().enumerate().rev() {
            let node: &ListNode = arena.alloc(ListNode { next, number, extent: *extent });
            next = Some(node);
            nodes.push(node);
        }
        nodes.reverse();
        List { nodes, cursor: AtomicUsize::new(0) }
    }
}

impl Lookup for List {
    #[inline]
    fn block(&self, page: u64) -> Option<u64> {
        let head = *self.nodes.first()?;
        let begin = self.nodes[self.cursor.load(Relaxed)];
        let mut node = begin;
        loop {
            let Extent { start_page, nr_pages, start_block } = node.extent;
            if start_page <= page && page < start_page + nr_pages {
                return Some(start_block + (page - start_page));
            }
            node = node.next.unwrap_or(head);
            self.cursor.store(node.number, Relaxed);
            if std::ptr::eq(node, begin) {
                return None;
            }
        }
    }
}

/// Tree node of 48 bytes, the size of the kernel's.
struct TreeNode {
    link: RBTreeAtomicLink,
    extent: Extent,
}

intrusive_adapter!(ByPage = &'static TreeNode: TreeNode { link: RBTreeAtomicLink });

/// Pages from `start` to before `end`. Overlapping spans compare as equal. Extents do not overlap,
/// so a single page equals at most one of them.
#[derive(Clone, Copy)]
struct Span {
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

impl<'a> KeyAdapter<'a> for ByPage {
    type Key = Span;

    #[inline]
    fn get_key(&self, node: &'a TreeNode) -> Span {
        let Extent { start_page, nr_pages, .. } = node.extent;
        Span { start: start_page, end: start_page + nr_pages }
    }
}

/// The extents of one area in a red-black tree. The tree does not change while the area is in use,
/// so look-ups take no lock. They stop at the first node that contains the page, as in the kernel.
struct Tree(RBTree<ByPage>);

impl Tree {
    /// Builds a tree whose nodes are adjacent in memory and never freed, like those of [`List`].
    fn new(extents: &[Extent]) -> Tree {
        let node = |extent: &Extent| TreeNode { link: RBTreeAtomicLink::new(), extent: *extent };
        let nodes: &'static [TreeNode] = extents.iter().map(node).collect::<Vec<_>>().leak();
        let mut tree = RBTree::new(ByPage::new());
        let mut last = tree.back_mut();
        for node in nodes {
            last.insert_after(node);
            last.move_next();
        }
        Tree(tree)
    }
}

impl Lookup for Tree {
    #[inline]
    fn block(&self, page: u64) -> Option<u64> {
        let found = self.0.find(&Span { start: page, end: page + 1 });
        let Extent { start_page, start_block, .. } = found.get()?.extent;
        Some(start_block + (page - start_page))
    }
}

/// A layout stored in one of the maps.
pub(super) struct Map {
    pub(super) name: &'static str,
    pub(super) lookup: Box<dyn Lookup>,
    pub(super) pages: u64,
}

/// Builds the list, the tree and softswap's map of `count` extents, and checks that they return the
/// same blocks.
pub(super) fn all(count: usize, pages: u64) -> Result<[Map; 3], Refusal> {
    let layout = layout(count, pages);
    let softswap = ExtentMap::new(count).map_err(Refusal::own)?;
    for Extent { start_page, nr_pages, start_block } in &layout {
        softswap.append(*start_page, *nr_pages, *start_block).map_err(Refusal::own)?;
    }
    let map = |name, lookup: Box<dyn Lookup>| Map { name, lookup, pages };
    let maps = [
        map("list", Box::new(List::new(&layout))),
        map("rbtree", Box::new(Tree::new(&layout))),
        map("softswap", Box::new(softswap)),
    ];
    for extent in layout {
        for past in [0, extent.nr_pages / 2, extent.nr_pages - 1] {
            let (page, right) = (extent.start_page + past, Some(extent.start_block + past));
            let found = maps.iter().map(|map| (map.name, map.lookup.block(page)));
            if let Some((name, found)) = found.into_iter().find(|(_, found)| *found != right) {
                return Err(Refusal::own(format!(
                    "{name}: page {page} was found at {found:?} instead of {right:?}"
                )));
            }
        }
    }
    Ok(maps)
}
