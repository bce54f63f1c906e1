//! The steps of a fault, measured separately: signal, entry, work of the tier, installation.
//!
//! Steps shorter than a clock read are repeated on the same page.

use super::fixture::{Fixture, PATTERN, handler_times};
use softswap_engine::base::page::{PageTable, Place};
use softswap_engine::codec::same_filled;
use softswap_engine::codec::{self, Codec, Compressor, Scratch};
use softswap_sys::memory::{Page, reserve_u64};
use softswap_sys::raw::now_ns;
use softswap_sys::window::Writes;
use softswap_testkit::Memory;
use std::io;

/// Repetitions of a short step per measurement.
const REPEATS: u64 = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// From the touch to the handler's first line.
    SignalEntry,
    /// From the handler's last line to the end of the touch.
    SignalReturn,
    /// Claiming a page's entry and publishing its place.
    Entry,
    /// Writing one word throughout a page.
    Fill,
    /// Decompressing a page by LZ4.
    Unpack,
    /// Installing a page write-protected.
    Install,
}

pub(super) struct Steps {
    fixture: &'static Fixture,
    bare: Memory,
    stride: usize,
    table: PageTable<'static>,
    packed: Vec<Vec<u8>>,
    page: Box<Page>,
    scratch: Scratch,
}

impl Steps {
    /// Returns steps over every `stride`-th page of the bare region, with compressible `texts`.
    pub(super) fn new(
        fixture: &'static Fixture,
        bare: Memory,
        stride: usize,
        texts: &[[u8; softswap_sys::PAGE_SIZE]],
    ) -> io::Result<Steps> {
        let mut scratch = Scratch::new(Default::default())?;
        let mut room = vec![0; codec::MAX_COMPRESSED_BYTES];
        let packed = texts.iter().filter_map(|text| {
            let len = codec::compress(Compressor::Lz4, text, &mut room, &mut scratch)?;
            Some(room[..len].to_vec())
        });
        let packed = packed.collect();
        let table = PageTable::new(reserve_u64(bare.pages())?);
        let page = Box::new(Page([0; softswap_sys::PAGE_SIZE]));
        Ok(Steps { fixture, bare, stride, table, packed, page, scratch })
    }

    /// Returns the time of a step for each page of `order`, in ns; `None` if one fails.
    pub(super) fn time(&mut self, step: Step, order: &[usize]) -> Option<Vec<u64>> {
        if matches!(step, Step::SignalEntry | Step::SignalReturn | Step::Install) {
            self.fixture.empty_bare(self.bare.pages())?;
        }
        order.iter().map(|page| self.time_one(step, *page)).collect()
    }

    fn time_one(&mut self, step: Step, page: usize) -> Option<u64> {
        let at = page * self.stride;
        match step {
            Step::SignalEntry | Step::SignalReturn => {
                let start = now_ns();
                self.bare.read(at * softswap_sys::PAGE_SIZE)?;
                let end = now_ns();
                let (entered, left) = handler_times();
                let ns = if step == Step::SignalEntry {
                    entered.checked_sub(start)
                } else {
                    end.checked_sub(left)
                };
                // Discard the result if the touch did not fault: the handler's times are then those
                // of an earlier fault.
                ns.filter(|_| entered > start && left < end)
            }
            Step::Install => {
                let start = now_ns();
                let done = self.fixture.bare.install(at as u64, &PATTERN, Writes::Caught);
                let ns = now_ns() - start;
                done.error.is_none().then_some(ns)
            }
            Step::Entry => repeated(|| {
                let claim = self.table.claim(at as u64);
                claim.publish(Place::resident(1));
                true
            }),
            Step::Fill => repeated(|| {
                same_filled::fill(&mut self.page.0, page as u64 | 1);
                std::hint::black_box(&self.page.0);
                true
            }),
            Step::Unpack => {
                let packed = &self.packed[page % self.packed.len()];
                repeated(|| {
                    codec::decompress(Codec::Lz4, packed, &mut self.page.0, &mut self.scratch)
                        .is_ok()
                })
            }
        }
    }
}

/// Returns the mean time of `body` in ns, or `None` if it fails.
fn repeated(mut body: impl FnMut() -> bool) -> Option<u64> {
    let start = now_ns();
    let done = (0..REPEATS).all(|_| body());
    done.then(|| (now_ns() - start) / REPEATS)
}
