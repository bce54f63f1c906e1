//! A linked list with one cursor for all: what Linux had before 5.4.
//!
//! A look-up begins at the extent where the last one ended, whoever made it,
//! and walks forward, around the end, until it meets the page. The cursor
//! moves with every step, as in the kernel, and without a lock, as there. A
//! look-up that ends where it began costs next to nothing.

use super::layout::Extent;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
pub(super) use typed_arena::Arena;

/// One extent: 40 bytes, as many as the kernel's.
#[derive(Debug)]
pub(super) struct Node<'a> {
    /// Nothing after the last one, where the head takes over.
    next: Option<&'a Node<'a>>,
    number: usize,
    extent: Extent,
}

/// The extents of one area, in ascending order.
pub(super) struct List<'a> {
    /// The node of a number: what the cursor stands for. The walk itself goes
    /// from node to node.
    nodes: Vec<&'a Node<'a>>,
    cursor: AtomicUsize,
}

impl<'a> List<'a> {
    /// A list of `extents` whose nodes lie side by side in `arena`, which is
    /// kinder to it than an allocation for each.
    pub(super) fn new(arena: &'a Arena<Node<'a>>, extents: &[Extent]) -> List<'a> {
        let mut next: Option<&'a Node<'a>> = None;
        let mut nodes = Vec::with_capacity(extents.len());
        for (number, extent) in extents.iter().enumerate().rev() {
            let node: &'a Node<'a> = arena.alloc(Node { next, number, extent: *extent });
            next = Some(node);
            nodes.push(node);
        }
        nodes.reverse();
        List { nodes, cursor: AtomicUsize::new(0) }
    }

    /// The block that holds `page`; `None` after one round without it.
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

    /// DRAM that an extent takes.
    pub(super) const BYTES_PER_EXTENT: usize = size_of::<Node<'static>>();
}
