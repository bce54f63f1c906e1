//! Cost of a fault for the faulting thread, by the tier of the page, and cost of its steps.
//!
//! All variants touch the same random order. No touch faults in another measured page: they are far
//! apart.

mod steps;

use crate::measure::machine::Machine;
use crate::measure::noise::{fill_with_noise, shuffled};
use crate::measure::options::{check_memory, within};
use crate::measure::report::Log;
use crate::measure::sample::{Cell, Object, Round, median, object};
use crate::pages::packing::Workplace;
use clap::Args;
use softswap_cli::refusal::{OrRefuse, Refusal};
use softswap_cli::{swapdir, units};
use softswap_engine::base::stats::Tier;
use softswap_sys::PAGE_SIZE;
use softswap_sys::faults::Faults;
use softswap_sys::memory::{Page, release_dram, reserve_bytes, reserve_pages};
use softswap_sys::raw::now_ns;
use softswap_sys::window::Writes;
use softswap_testkit::Memory;
use std::path::PathBuf;
use steps::{Fixture, PATTERN, Sizes, Step, Steps};

const ROUNDS: usize = 11;
/// Distance between touched pages, in pages.
const STRIDE: usize = 5;
const CLUSTER_PAGES: usize = 32;
const SAME: u64 = 0x00ab_cdef;

/// Measure the duration of page faults by tier.
///
/// An engine in this process serves one thread; nothing else runs. The steps of a fault are
/// measured in the same rounds.
#[derive(Args)]
#[command(after_long_help = "\
Variants: fault_* is a touch of memory managed by softswap: never touched before (zero), a page whose
words are all equal (same_filled), compressed in memory (pool), in the swap file (disk). sigbus_copy is
a fault whose handler only copies a page in (by SIGBUS; with protection by SIGSEGV), copy is that copy
alone, device_read a blocking 4 KiB read of the same swap file, kernel_anonymous the kernel's own first touch.
step_* are the steps of a fault: entering the handler, claiming and publishing an entry, filling or
decompressing a page, installing it write-protected, returning from the handler.

Differences and ratios are of p50.

Examples:
  softswap bench faults
  softswap bench faults --faults protection")]
pub(crate) struct FaultsArgs {
    /// Pages touched per variant and round, 64 to 16384
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = within(64..=16384))]
    pages: u32,

    /// The directory for the swap file
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    swap: PathBuf,

    /// How page faults reach softswap: auto, userfaultfd or protection
    #[arg(long, value_name = "MECHANISM", default_value_t)]
    faults: Faults,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    ZeroRead,
    ZeroWrite,
    SameFilled,
    Pool,
    Disk,
}

const FAULTS: usize = 5;

impl Fault {
    fn tier(self) -> Tier {
        match self {
            Fault::ZeroRead | Fault::ZeroWrite => Tier::Zero,
            Fault::SameFilled => Tier::SameFilled,
            Fault::Pool => Tier::Pool,
            Fault::Disk => Tier::Disk,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Quantity {
    Fault(Fault),
    SigbusCopy,
    Copy,
    DeviceRead,
    KernelAnonymous,
    Step(Step),
}

const VARIANTS: [(&str, Quantity); 15] = [
    ("fault_zero_read", Quantity::Fault(Fault::ZeroRead)),
    ("fault_zero_write", Quantity::Fault(Fault::ZeroWrite)),
    ("fault_same_filled", Quantity::Fault(Fault::SameFilled)),
    ("fault_pool", Quantity::Fault(Fault::Pool)),
    ("fault_disk", Quantity::Fault(Fault::Disk)),
    ("sigbus_copy", Quantity::SigbusCopy),
    ("copy", Quantity::Copy),
    ("device_read", Quantity::DeviceRead),
    ("kernel_anonymous", Quantity::KernelAnonymous),
    ("step_signal_entry", Quantity::Step(Step::SignalEntry)),
    ("step_entry", Quantity::Step(Step::Entry)),
    ("step_fill", Quantity::Step(Step::Fill)),
    ("step_unpack", Quantity::Step(Step::Unpack)),
    ("step_install_protected", Quantity::Step(Step::Install)),
    ("step_signal_return", Quantity::Step(Step::SignalReturn)),
];

pub(super) fn measure(args: &FaultsArgs) -> Result<Object, Refusal> {
    let pages = args.pages as usize;
    let sizes = Sizes::of(pages, FAULTS);
    let dir = swapdir::check("--swap", &args.swap, sizes.swap_bytes + sizes.spare_bytes)?;
    check_memory(format_args!("--pages {pages}"), sizes.memory_bytes)?;
    let (fixture, mut log) = (steps::set_up(&dir.path, &sizes, args.faults)?, Log::start());
    let (texts, packed) = compressible_pages(pages)?;
    let packed_bytes = packed.iter().map(Vec::len).sum::<usize>() as f64;
    let packed_share = packed_bytes / (packed.len() * PAGE_SIZE) as f64;
    let mut bench = Bench::new(fixture, pages, &texts, packed)?;
    let mut cells = VARIANTS.map(Cell::new);
    for round in 0..=ROUNDS {
        // Otherwise a variant's effect on the caches would always affect the same next
        // variant.
        for index in shuffled(VARIANTS.len(), round as u64) {
            let (name, what) = VARIANTS[index];
            let mut latencies_ns = bench.time(name, what)?;
            if round > 0 {
                cells[index].rounds.push(Round::of(&mut latencies_ns));
            }
        }
    }
    log.notes.push(format!(
        "pool: pages of softswap's own executable that LZ4 compresses, to {:.0} % of their size \
         on average",
        packed_share * 100.0
    ));
    let mut differences = Object::new();
    let find = |what: Quantity| cells.iter().find(|cell| cell.key.1 == what);
    for (fault, name, part, part_name) in [
        (Fault::Disk, "disk", Quantity::DeviceRead, "device"),
        (Fault::Pool, "pool", Quantity::SigbusCopy, "sigbus_copy"),
        (Fault::SameFilled, "same_filled", Quantity::SigbusCopy, "sigbus_copy"),
    ] {
        let Some((one, other)) = find(Quantity::Fault(fault)).zip(find(part)) else { continue };
        let pairs = one.rounds.iter().zip(&other.rounds);
        let difference = median(pairs.map(|(one, other)| one.p50_us - other.p50_us).collect());
        differences.insert(format!("{name}_minus_{part_name}_us"), difference.into());
        log.ratio(format!("{name}_vs_{part_name}"), one.ratio_to(other, |round| round.p50_us));
    }
    let rows = cells.iter().map(|cell| {
        object! {
            variant: cell.key.0,
            p50_us: cell.median(|round| round.p50_us),
            p99_us: cell.median(|round| round.p99_us),
            cov: cell.cov(|round| round.p50_us),
            count: cell.rounds.iter().map(|round| round.count).sum::<usize>(),
        }
    });
    let rows: Vec<_> = rows.collect();
    Ok(log.findings("faults", Machine::with_dir(&dir), object! { rows, differences }))
}

struct Bench {
    fixture: &'static Fixture,
    pages: usize,
    order: Vec<usize>,
    ranges: Vec<Memory>,
    bare: Memory,
    plain: &'static mut [u8],
    buffer: &'static mut [Page],
    steps: Steps,
}

impl Bench {
    fn new(
        fixture: &'static Fixture,
        pages: usize,
        texts: &[[u8; PAGE_SIZE]],
        packed: Vec<Vec<u8>>,
    ) -> Result<Bench, Refusal> {
        const NO_MEMORY: &str = "the benchmark's memory cannot be allocated";
        let ranges: Result<_, _> = (0..FAULTS).map(|_| fixture.map(pages * STRIDE)).collect();
        let bare = fixture.bare_memory(pages * STRIDE);
        let bare = bare.ok_or_else(|| {
            Refusal::own(format!(
                "cannot map {} for the faults without an engine; reduce --pages (now {pages})",
                units::bytes((pages * STRIDE) as u64)
            ))
        })?;
        let mut bench = Bench {
            fixture,
            pages,
            order: shuffled(pages, 0),
            ranges: ranges?,
            bare,
            plain: reserve_bytes(pages * STRIDE * PAGE_SIZE).or_own(NO_MEMORY)?,
            buffer: reserve_pages(CLUSTER_PAGES).or_own(NO_MEMORY)?,
            steps: Steps::new(fixture, bare, STRIDE, packed).or_own(NO_MEMORY)?,
        };
        bench.fill_ranges(texts)?;
        Ok(bench)
    }

    fn fill_ranges(&mut self, texts: &[[u8; PAGE_SIZE]]) -> Result<(), Refusal> {
        for (page, text) in texts.iter().cycle().take(self.pages).enumerate() {
            let offset = page * STRIDE * PAGE_SIZE;
            let mut noise = [0; PAGE_SIZE];
            fill_with_noise(&mut noise, page as u64);
            let same = SAME.to_ne_bytes().repeat(PAGE_SIZE / 8);
            let written = self.ranges[Fault::SameFilled as usize].write_bytes(offset, &same)
                && self.ranges[Fault::Pool as usize].write_bytes(offset, text)
                && self.ranges[Fault::Disk as usize].write_bytes(offset, &noise);
            if !written {
                return Err(Refusal::own("a page of the benchmark could not be written"));
            }
        }
        Ok(())
    }

    fn time(&mut self, name: &str, what: Quantity) -> Result<Vec<u64>, Refusal> {
        let timed = match what {
            Quantity::Fault(fault) => return self.time_faults(name, fault),
            Quantity::Step(step) => self.steps.time(step, &self.order),
            Quantity::SigbusCopy | Quantity::Copy => self.time_copies(what == Quantity::SigbusCopy),
            Quantity::DeviceRead => self.time_device(),
            Quantity::KernelAnonymous => {
                release_dram(self.plain);
                let plain = &mut *self.plain;
                time_each(&self.order, |page| {
                    plain[page * STRIDE * PAGE_SIZE] = 1;
                    std::hint::black_box(plain[page * STRIDE * PAGE_SIZE]) == 1
                })
            }
        };
        timed.ok_or_else(|| Refusal::own(format!("{name} failed")))
    }

    /// Evicts every managed page, and discards the ranges for first touches.
    fn evict_all(&self) -> Result<(), Refusal> {
        for fault in [Fault::ZeroRead, Fault::ZeroWrite] {
            let range = self.ranges[fault as usize];
            self.fixture.engine.discard(range.address(), range.len()).map_err(Refusal::own)?;
        }
        // More batches than needed: the clock's first passes only age pages.
        let batches = self.pages * FAULTS / CLUSTER_PAGES + 64;
        self.fixture.engine.reclaim_now(batches);
        self.fixture.engine.release_standby();
        Ok(())
    }

    fn time_faults(&mut self, name: &str, fault: Fault) -> Result<Vec<u64>, Refusal> {
        self.evict_all()?;
        let stats = self.fixture.engine.stats();
        let before = stats.faults(fault.tier());
        let timed = touch(self.ranges[fault as usize], &self.order, fault == Fault::ZeroWrite);
        let served = stats.faults(fault.tier()) - before;
        match timed {
            // Fail rather than report the latency of another tier.
            Some(_) if served != self.pages as u64 => Err(Refusal::own(format!(
                "{name}: only {served} of {} touches faulted on a page of the expected tier",
                self.pages
            ))),
            Some(latencies_ns) => Ok(latencies_ns),
            None => Err(Refusal::own(format!("{name}: a touch failed"))),
        }
    }

    fn time_copies(&mut self, by_fault: bool) -> Option<Vec<u64>> {
        let bare = &self.fixture.bare;
        self.fixture.empty_bare(self.pages * STRIDE)?;
        if by_fault {
            return touch(self.bare, &self.order, false);
        }
        time_each(&self.order, |page| {
            bare.install((page * STRIDE) as u64, &PATTERN, Writes::Allowed).error.is_none()
        })
    }

    fn time_device(&mut self) -> Option<Vec<u64>> {
        for (index, page) in self.buffer.iter_mut().enumerate() {
            fill_with_noise(&mut page.0, index as u64);
        }
        // Write just before reading, as the engine does: the device's cache then affects both
        // equally.
        for page in 0..self.pages {
            let content = &self.buffer[page % CLUSTER_PAGES].0;
            self.fixture.write_spare(page, content).then_some(())?;
        }
        let to = &mut self.buffer[0].0;
        time_each(&self.order, |page| self.fixture.read_spare(page, to))
    }
}

fn touch(range: Memory, order: &[usize], writes: bool) -> Option<Vec<u64>> {
    time_each(order, |page| {
        let offset = page * STRIDE * PAGE_SIZE;
        if writes { range.write(offset, 1) } else { range.read(offset).is_some() }
    })
}

/// Returns the latency of `body` for each page in ns; `None` if it fails.
fn time_each(order: &[usize], mut body: impl FnMut(usize) -> bool) -> Option<Vec<u64>> {
    let mut latencies_ns = Vec::with_capacity(order.len());
    for page in order {
        let start = now_ns();
        let done = body(*page);
        latencies_ns.push(now_ns() - start);
        done.then_some(())?;
    }
    Some(latencies_ns)
}

type CompressiblePages = (Vec<[u8; PAGE_SIZE]>, Vec<Vec<u8>>);

fn compressible_pages(most: usize) -> Result<CompressiblePages, Refusal> {
    let executable = std::fs::read("/proc/self/exe").or_own("/proc/self/exe cannot be read")?;
    let (pages, _) = executable.as_chunks::<PAGE_SIZE>();
    let mut workplace = Workplace::new()?;
    // The parts of the executable differ, so sample all of it.
    let step = (pages.len() / most).max(1);
    let packed = |page: &[u8; PAGE_SIZE]| Some((*page, workplace.pack(page)?.to_vec()));
    let chosen: CompressiblePages =
        pages.iter().step_by(step).take(most).filter_map(packed).unzip();
    match chosen.0.is_empty() {
        true => Err(Refusal::own("no page of the executable can be compressed")),
        false => Ok(chosen),
    }
}
