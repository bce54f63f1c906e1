//! What the program has said of its memory: that it is touched in order, or in none.
//!
//! By chunk, as what is learnt is: a hint reaches as far as whole chunks lie in what it was given
//! for, so that it says nothing about other memory.

use crate::base::page::PageNo;
use crate::memory::address_space::CHUNK_PAGES;
use softswap_sys::memory::reserve_u32;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// In which order pages are touched.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Order {
    /// It is found out.
    #[default]
    Unknown,
    /// From the first to the last: what follows a touch is brought in at once.
    Sequential,
    /// In none: nothing is brought in along with a touch.
    Random,
}

/// Bits of a chunk's order.
const BITS: u64 = 2;
const PER_WORD: u64 = u32::BITS as u64 / BITS;

/// The orders of all chunks.
#[derive(Debug)]
pub(crate) struct Advised(&'static [AtomicU32]);

impl Advised {
    /// For a window of so many pages.
    ///
    /// # Errors
    /// When there is no address space for the table.
    pub(crate) fn new(pages: usize) -> io::Result<Advised> {
        Ok(Advised(reserve_u32(pages / (CHUNK_PAGES * PER_WORD) as usize + 1)?))
    }

    /// Says in which order the chunks are touched that lie in a range whole.
    pub(crate) fn set(&self, pages: Range<PageNo>, order: Order) {
        for chunk in pages.start.div_ceil(CHUNK_PAGES)..pages.end / CHUNK_PAGES {
            let (word, shift) = place_of(chunk);
            let put = |bits: u32| Some(bits & !(3 << shift) | (order as u32) << shift);
            let _ = self.0[word].fetch_update(Relaxed, Relaxed, put);
        }
    }

    #[must_use]
    pub(crate) fn order_of(&self, page: PageNo) -> Order {
        let (word, shift) = place_of(page / CHUNK_PAGES);
        match self.0[word].load(Relaxed) >> shift & 3 {
            1 => Order::Sequential,
            2 => Order::Random,
            _ => Order::Unknown,
        }
    }
}

fn place_of(chunk: u64) -> (usize, u64) {
    ((chunk / PER_WORD) as usize, chunk % PER_WORD * BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_chunks_have_the_order_and_no_others() {
        let advised = Advised::new(100 * CHUNK_PAGES as usize).unwrap();
        advised.set(CHUNK_PAGES - 1..40 * CHUNK_PAGES + 1, Order::Random);
        advised.set(CHUNK_PAGES + 1..2 * CHUNK_PAGES, Order::Sequential);
        advised.set(16 * CHUNK_PAGES..18 * CHUNK_PAGES, Order::Sequential);
        let orders = (0..42).map(|chunk| advised.order_of(chunk * CHUNK_PAGES + 7));
        for (chunk, order) in orders.enumerate() {
            let expected = match chunk {
                0 | 40 | 41 => Order::Unknown,
                16 | 17 => Order::Sequential,
                _ => Order::Random,
            };
            assert_eq!(order, expected, "{chunk}");
        }
        advised.set(0..100 * CHUNK_PAGES, Order::Unknown);
        assert!((0..100).all(|chunk| advised.order_of(chunk * CHUNK_PAGES) == Order::Unknown));
    }
}
