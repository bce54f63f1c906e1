//! A linked list with one cursor for all: what Linux had before 5.4.
//!
//! A look-up begins at the extent where the last one ended, whoever made it,
//! and walks forward, around the end, until it meets the page. The cursor
//! moves with every step, as in the kernel, and without a lock, as there. A
//! look-up that ends where it began costs next to nothing.

use super::Extent;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
pub(crate) use typed_arena::Arena;

/// One extent: 40 bytes, as many as the kernel's.
#[derive(Debug)]
pub(crate) struct Node<'a> {
    /// Nothing after the last one, where the head takes over.
    next: Option<&'a Node<'a>>,
    number: usize,
    extent: Extent,
}

/// The extents of one area, in ascending order.
pub(crate) struct List<'a> {
    /// The node of a number: what the cursor stands for. The walk itself goes
    /// from node to node.
    nodes: Vec<&'a Node<'a>>,
    cursor: AtomicUsize,
}

impl<'a> List<'a> {
    /// A list of `extents` whose nodes lie side by side in `arena`, which is
    /// kinder to it than an allocation for each.
    pub(crate) fn new(arena: &'a Arena<Node<'a>>, extents: &[Extent]) -> List<'a> {
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
    pub(crate) fn lookup(&self, page: u64) -> Option<u64> {
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
    pub(crate) const BYTES_PER_EXTENT: usize = size_of::<Node<'static>>();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_is_found_from_every_cursor_and_no_other() {
        let extents = [(0, 3, 10), (3, 1, 40), (4, 5, 20)];
        let extents = extents.map(|(start_page, nr_pages, start_block)| Extent {
            start_page,
            nr_pages,
            start_block,
        });
        let arena = Arena::with_capacity(extents.len());
        let list = List::new(&arena, &extents);
        let blocks = [10, 11, 12, 40, 20, 21, 22, 23, 24];
        for (from, _) in blocks.iter().enumerate() {
            for (page, block) in blocks.iter().enumerate() {
                assert!(list.lookup(from as u64).is_some());
                assert_eq!(list.lookup(page as u64), Some(*block));
                assert_eq!(list.lookup(9), None);
            }
        }
        assert_eq!(List::new(&Arena::new(), &[]).lookup(0), None);
        assert_eq!(List::BYTES_PER_EXTENT, 40);
    }
}
