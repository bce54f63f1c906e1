//! Access order hints from the program.
//!
//! A hint applies only to the chunks that its range covers completely.

use crate::base::page::PageNo;
use crate::memory::address_space::CHUNK_PAGES;
use softswap_sys::memory::reserve_u32;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Order {
    /// Detected from faults.
    #[default]
    Unknown,
    /// The pages after a touched one are read ahead immediately.
    Sequential,
    /// No readahead.
    Random,
}

const BITS: u64 = 2;
const PER_WORD: u64 = u32::BITS as u64 / BITS;

#[derive(Debug)]
pub(crate) struct Advised(&'static [AtomicU32]);

impl Advised {
    pub(crate) fn new(pages: usize) -> io::Result<Advised> {
        Ok(Advised(reserve_u32(pages / (CHUNK_PAGES * PER_WORD) as usize + 1)?))
    }

    pub(crate) fn set(&self, pages: Range<PageNo>, order: Order) {
        for chunk in pages.start.div_ceil(CHUNK_PAGES)..pages.end / CHUNK_PAGES {
            let (word, shift) = place_of(chunk);
            let put = |bits: u32| Some(bits & !(3 << shift) | (order as u32) << shift);
            let _ = self.0[word].fetch_update(Relaxed, Relaxed, put);
        }
    }

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
    fn advice_covers_whole_chunks_only() {
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
