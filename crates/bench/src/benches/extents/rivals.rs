//! Linux's data structures: a linked list with one shared cursor (before 5.4), and a red-black
//! tree.

use super::layout::Extent;
use intrusive_collections::{KeyAdapter, RBTree, RBTreeAtomicLink, intrusive_adapter};
use std::cmp::Ordering;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use typed_arena::Arena;

/// List node of 40 bytes, the size of the kernel's.
pub(super) struct ListNode {
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
pub(super) struct List {
    /// Nodes by number, to find the cursor's node. The walk follows the links.
    nodes: Vec<&'static ListNode>,
    cursor: AtomicUsize,
}

impl List {
    /// Builds a list whose nodes are adjacent in memory, which is faster than separate allocations.
    /// The nodes are never freed, because the program exits soon.
    pub(super) fn new(extents: &[Extent]) -> List {
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

    #[inline]
    pub(super) fn lookup(&self, page: u64) -> Option<u64> {
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
pub(super) struct TreeNode {
    link: RBTreeAtomicLink,
    extent: Extent,
}

intrusive_adapter!(ByPage = &'static TreeNode: TreeNode { link: RBTreeAtomicLink });

/// Pages from `start` to before `end`. Overlapping spans compare as equal. Extents do not overlap,
/// so a single page equals at most one of them.
#[derive(Clone, Copy)]
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
pub(super) struct Tree(RBTree<ByPage>);

impl Tree {
    /// Builds a tree whose nodes are adjacent in memory and never freed, like those of [`List`].
    pub(super) fn new(extents: &[Extent]) -> Tree {
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

    #[inline]
    pub(super) fn lookup(&self, page: u64) -> Option<u64> {
        let found = self.0.find(&Span { start: page, end: page + 1 });
        let Extent { start_page, start_block, .. } = found.get()?.extent;
        Some(start_block + (page - start_page))
    }
}
