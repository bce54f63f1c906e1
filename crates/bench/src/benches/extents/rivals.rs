//! What Linux has had: a linked list with one cursor for all (before 5.4), and a red-black tree.

use super::layout::Extent;
use intrusive_collections::{KeyAdapter, RBTree, RBTreeAtomicLink, intrusive_adapter};
use std::cmp::Ordering;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use typed_arena::Arena;

/// An extent in the list: 40 bytes, as many as the kernel's.
pub(super) struct ListNode {
    /// None after the last one.
    next: Option<&'static ListNode>,
    number: usize,
    extent: Extent,
}

/// The extents of one area in a list.
///
/// A look-up begins at the extent where the last one ended, of whichever thread, and follows the
/// list, around its end, to the extent with the page. The cursor moves with every step, without a
/// lock, as in the kernel.
pub(super) struct List {
    /// By number. The walk itself follows the nodes.
    nodes: Vec<&'static ListNode>,
    cursor: AtomicUsize,
}

impl List {
    /// Returns a list whose nodes are adjacent in memory, which is faster than an allocation for
    /// each. They are never freed: the program exits soon.
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

    /// Returns the block of `page`.
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

/// An extent in the tree: 48 bytes, as many as the kernel's.
pub(super) struct TreeNode {
    link: RBTreeAtomicLink,
    extent: Extent,
}

intrusive_adapter!(ByPage = &'static TreeNode: TreeNode { link: RBTreeAtomicLink });

/// Pages from `start` to before `end`. Spans that overlap count as equal. Extents do not overlap, so
/// a single page is equal to one of them at most.
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

/// The extents of one area in a red-black tree. It does not change while the area is in use, so
/// look-ups take no lock. They stop at the first node with the page, as the kernel's do.
pub(super) struct Tree(RBTree<ByPage>);

impl Tree {
    /// Returns a tree whose nodes are adjacent in memory and never freed, as those of [`List`].
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

    /// Returns the block of `page`.
    #[inline]
    pub(super) fn lookup(&self, page: u64) -> Option<u64> {
        let found = self.0.find(&Span { start: page, end: page + 1 });
        let Extent { start_page, start_block, .. } = found.get()?.extent;
        Some(start_block + (page - start_page))
    }
}
