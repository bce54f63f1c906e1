//! The steps of a fault, measured separately, in an engine and in a plain userfaultfd region whose
//! faults are resolved by one copy. Steps shorter than a clock read are repeated on the same page.

use softswap_cli::refusal::Refusal;
use softswap_engine::api::engine::Engine;
use softswap_engine::api::settings::Config;
use softswap_engine::base::page::{PageTable, Place};
use softswap_engine::base::stats::{STATS_WORDS, Stats};
use softswap_engine::codec::{self, Choice, Codec, Scratch, same_filled};
use softswap_engine::store::io::{Device, FileDevice, Lane};
use softswap_engine::store::swap::Backing;
use softswap_sys::PAGE_SIZE;
use softswap_sys::faults::{self, Faults};
use softswap_sys::file::SwapFile;
use softswap_sys::memory::{Page, reserve_u64};
use softswap_sys::raw::now_ns;
use softswap_sys::touches::Served;
use softswap_sys::window::{READ_WRITE, Window, Writes};
use softswap_testkit::Memory;
use softswap_testkit::inline::{serve, serve_engine};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

const CLUSTER_BYTES: u64 = 2 << 20;

pub(super) static PATTERN: [u8; PAGE_SIZE] = [0x5a; PAGE_SIZE];

pub(super) struct Fixture {
    pub(super) engine: Arc<Engine>,
    pub(super) bare: Arc<Window>,
    device: FileDevice,
    /// Offset of the first byte that the engine does not use.
    spare_bytes: u64,
    _served: [Served; 2],
}

fn serve_bare(bare: &Arc<Window>) -> io::Result<Served> {
    let ((base, len), bare) = ((bare.base(), bare.len_bytes()), Arc::clone(bare));
    serve(base, len, move |address, _is_write| {
        ENTERED_NS.store(now_ns(), Relaxed);
        let page = ((address - base) / PAGE_SIZE) as u64;
        let done = bare.install(page, &PATTERN, Writes::Allowed).error.is_none();
        LEFT_NS.store(now_ns(), Relaxed);
        done
    })
}

/// Times of the handler's last run for the plain region.
static ENTERED_NS: AtomicU64 = AtomicU64::new(0);
static LEFT_NS: AtomicU64 = AtomicU64::new(0);

pub(super) struct Sizes {
    pub(super) memory_bytes: u64,
    pub(super) swap_bytes: u64,
    /// Storage for reads without the engine.
    pub(super) spare_bytes: u64,
}

impl Sizes {
    /// Returns sizes that fit in DRAM: only the benchmark requests reclaim.
    pub(super) fn of(pages: usize, ranges: usize) -> Sizes {
        let range_bytes = (pages * PAGE_SIZE) as u64;
        Sizes {
            memory_bytes: (ranges as u64 + 3) * range_bytes + (32 << 20),
            swap_bytes: (2 * range_bytes).next_multiple_of(CLUSTER_BYTES) + 8 * CLUSTER_BYTES,
            spare_bytes: range_bytes,
        }
    }
}

pub(super) fn set_up(
    dir: &Path,
    sizes: &Sizes,
    faults: Faults,
) -> Result<&'static Fixture, Refusal> {
    let file = Arc::new(SwapFile::open(dir).map_err(Refusal::own)?);
    let device = FileDevice::new(Arc::clone(&file), false);
    let (memory_bytes, codec) = (sizes.memory_bytes, Choice::LZ4);
    let config = Config { memory_bytes, codec, faults, ..Config::default() };
    let storage = Box::new(FileDevice::new(file, false));
    let storage = Backing::growing(storage, Some(sizes.swap_bytes), 0);
    let stats = Stats::new(reserve_u64(STATS_WORDS).map_err(Refusal::own)?);
    let engine = Arc::new(Engine::start(&config, vec![storage], stats).map_err(Refusal::own)?);
    let bare = faults::taken(faults, || Window::reserve(1, false)).map_err(Refusal::own)?;
    let bare = Arc::new(bare);
    device.grow(sizes.swap_bytes, sizes.spare_bytes).map_err(Refusal::own)?;
    let served =
        [serve_engine(&engine).map_err(Refusal::own)?, serve_bare(&bare).map_err(Refusal::own)?];
    let spare_bytes = sizes.swap_bytes;
    Ok(Box::leak(Box::new(Fixture { engine, bare, device, spare_bytes, _served: served })))
}

impl Fixture {
    pub(super) fn map(&self, pages: usize) -> Result<Memory, Refusal> {
        let len = pages * PAGE_SIZE;
        let address = self.engine.map(len, READ_WRITE).ok().flatten();
        address
            .and_then(|address| Memory::new(address, len))
            .ok_or_else(|| Refusal::own("the managed window has no free space; reduce --pages"))
    }

    pub(super) fn empty_bare(&self, pages: usize) -> Option<()> {
        let numbers: Vec<u64> = (0..pages as u64).collect();
        (self.bare.discard_each(&numbers) == pages).then_some(())
    }

    pub(super) fn bare_memory(&self, pages: usize) -> Option<Memory> {
        Memory::new(self.bare.base(), pages * PAGE_SIZE)
    }

    pub(super) fn read_spare(&self, page: usize, to: &mut [u8; PAGE_SIZE]) -> bool {
        let offset = self.spare_bytes + (page * PAGE_SIZE) as u64;
        self.device.read(&mut Lane::Plain, offset, to).is_ok()
    }

    pub(super) fn write_spare(&self, page: usize, from: &[u8]) -> bool {
        let offset = self.spare_bytes + (page * PAGE_SIZE) as u64;
        self.device.write(&mut Lane::Plain, offset, from).is_ok()
    }
}

/// A short step is repeated in each measurement.
const REPEATS: u64 = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// From the touch to the handler's first line.
    SignalEntry,
    /// From the handler's last line to the end of the touch.
    SignalReturn,
    Entry,
    Fill,
    Unpack,
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
    pub(super) fn new(
        fixture: &'static Fixture,
        bare: Memory,
        stride: usize,
        packed: Vec<Vec<u8>>,
    ) -> io::Result<Steps> {
        let scratch = Scratch::new(Default::default())?;
        let table = PageTable::new(reserve_u64(bare.pages())?);
        let page = Box::new(Page([0; PAGE_SIZE]));
        Ok(Steps { fixture, bare, stride, table, packed, page, scratch })
    }

    /// Returns the time for each page of `order` in ns; `None` if one fails.
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
                self.bare.read(at * PAGE_SIZE)?;
                let end = now_ns();
                let (entered, left) = (ENTERED_NS.load(Relaxed), LEFT_NS.load(Relaxed));
                let ns = if step == Step::SignalEntry {
                    entered.checked_sub(start)
                } else {
                    end.checked_sub(left)
                };
                // Without a fault of this touch, the handler's times are those of an earlier one.
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

fn repeated(mut body: impl FnMut() -> bool) -> Option<u64> {
    let start = now_ns();
    let done = (0..REPEATS).all(|_| body());
    done.then(|| (now_ns() - start) / REPEATS)
}
