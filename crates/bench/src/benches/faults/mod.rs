//! What a fault costs the thread that takes it, by where the page was, beside
//! what the parts of a fault cost.
//!
//! All variants touch pages in the same random order, and so far apart that no touch
//! brings in another page that is to be measured.

mod fixture;
mod steps;

use crate::measure::machine::Machine;
use crate::measure::noise::{fill_with_noise, shuffled};
use crate::measure::report::{Findings, Output, SCHEMA};
use crate::measure::sample::{Figures, Round, Samples};
use clap::Args;
use fixture::{Fixture, PATTERN, Sizes};
use serde::Serialize;
use serde_json::{Map, Value};
use softswap_cli::refusal::Refusal;
use softswap_cli::{memory_limits, swapdir, units};
use softswap_engine::base::stats::Tier;
use softswap_engine::codec::same_filled::same_filled_word;
use softswap_engine::codec::{self, Packer, Scratch};
use softswap_sys::PAGE_SIZE;
use softswap_sys::memory::{Page, give_back, reserve_bytes, reserve_pages};
use softswap_sys::raw::now_ns;
use softswap_sys::window::Writes;
use softswap_testkit::Memory;
use std::path::PathBuf;
use std::process::ExitCode;
use steps::{Step, Steps};

/// Rounds that count, after one that does not.
const ROUNDS: usize = 11;
/// Pages between two that are touched.
const STRIDE: usize = 5;
/// Pages written to the device at once while preparing.
const CLUSTER_PAGES: usize = 32;
const SAME: u64 = 0x00ab_cdef;

/// Measure how long a touch of a page that is out takes.
///
/// An engine in this process serves one thread; nothing else runs. Beside the
/// faults stand the costs they are made of, measured in the same rounds.
#[derive(Args)]
#[command(after_long_help = "\
Variants: fault_* is a touch of memory managed by softswap: never touched before (zero), a page
whose words are all equal (same_filled), compressed in memory (pool), in the swap file (disk).
sigbus_copy is a userfaultfd fault by SIGBUS whose handler does nothing but copy a page in, copy
that copy alone, device_read a blocking 4 KiB read of the same swap file, kernel_anonymous the
kernel's own first touch. step_* are the steps of a fault: the way into the handler, claiming and
publishing an entry, filling or unpacking a page, installing it write-protected, the way back.

With --json: {\"schema\": 2, \"bench\": \"faults\", \"machine\": {...}, \"rows\": [{\"variant\", \"p50_us\",
\"p99_us\", \"cov\", \"count\"}], \"differences\": {...}, \"ratios\": {...}}. These are of p50, medians over
the rounds: disk_minus_device_us, disk_vs_device and so on.")]
pub(crate) struct FaultsArgs {
    /// Also write one JSON object to FILE; - prints it instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Pages touched per variant and round, 64 to 16384
    #[arg(long, value_name = "N", default_value_t = 2048,
          value_parser = clap::value_parser!(u32).range(64..=16384))]
    pages: u32,

    /// The directory for the swap file
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    swap: PathBuf,
}

pub(super) fn run(args: &FaultsArgs) -> Result<ExitCode, Refusal> {
    let sizes = Sizes::of(args.pages as usize, FAULTS);
    let dir = swapdir::check("--swap", &args.swap, sizes.swap_bytes + sizes.spare_bytes)?;
    let available_bytes = memory_limits::available().bytes;
    if available_bytes < sizes.memory_bytes {
        return Err(Refusal::usage(format!(
            "--pages {}: {} of memory are needed and {} are available; touch fewer pages",
            args.pages,
            units::bytes(sizes.memory_bytes),
            units::bytes(available_bytes),
        )));
    }
    let output = Output::open(args.json.as_deref())?;
    let machine = Machine::with_device(&dir.path, dir.file_system);
    let outcome = fixture::set_up(&dir.path, &sizes)
        .and_then(|fixture| measure(fixture, args.pages as usize));
    output.finish(outcome.map(|bench| bench.outcome(machine)))
}

/// A touch of managed memory.
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
            Fault::SameFilled => Tier::Filled,
            Fault::Pool => Tier::Pool,
            Fault::Disk => Tier::Disk,
        }
    }
}

/// What a fault is made of, or is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    SigbusCopy,
    Copy,
    DeviceRead,
    KernelAnonymous,
}

#[derive(Debug, Clone, Copy)]
enum What {
    Fault(Fault),
    Part(Part),
    Step(Step),
}

const VARIANTS: [(&str, What); 15] = [
    ("fault_zero_read", What::Fault(Fault::ZeroRead)),
    ("fault_zero_write", What::Fault(Fault::ZeroWrite)),
    ("fault_same_filled", What::Fault(Fault::SameFilled)),
    ("fault_pool", What::Fault(Fault::Pool)),
    ("fault_disk", What::Fault(Fault::Disk)),
    ("sigbus_copy", What::Part(Part::SigbusCopy)),
    ("copy", What::Part(Part::Copy)),
    ("device_read", What::Part(Part::DeviceRead)),
    ("kernel_anonymous", What::Part(Part::KernelAnonymous)),
    ("step_signal_entry", What::Step(Step::SignalEntry)),
    ("step_entry", What::Step(Step::Entry)),
    ("step_fill", What::Step(Step::Fill)),
    ("step_unpack", What::Step(Step::Unpack)),
    ("step_install_protected", What::Step(Step::Install)),
    ("step_signal_return", What::Step(Step::SignalReturn)),
];

/// Everything that is measured, and what was found so far.
struct Bench {
    fixture: &'static Fixture,
    pages: usize,
    order: Vec<usize>,
    /// One range of managed memory for each [`Fault`].
    ranges: Vec<Memory>,
    bare: Memory,
    plain: &'static mut [u8],
    buffer: &'static mut [Page],
    steps: Steps,
    samples: [Samples; VARIANTS.len()],
    /// Mean size of the pool's pages when packed, as a share of a page.
    packed_share: f64,
}

fn measure(fixture: &'static Fixture, pages: usize) -> Result<Bench, Refusal> {
    let mut bench = Bench::new(fixture, pages)?;
    for round in 0..=ROUNDS {
        // What a variant leaves in the caches is different for each, so none
        // may always come after the same one.
        for index in shuffled(VARIANTS.len(), round as u64) {
            bench.measure_one(index, round > 0)?;
        }
    }
    Ok(bench)
}

impl Bench {
    fn new(fixture: &'static Fixture, pages: usize) -> Result<Bench, Refusal> {
        let no_memory = |error: std::io::Error| Refusal::own(format!("no memory: {error}"));
        let ranges: Result<_, _> = (0..FAULTS).map(|_| fixture.map(pages * STRIDE)).collect();
        let bare = fixture.bare_memory(pages * STRIDE);
        let bare = bare.ok_or_else(|| Refusal::own("the second window has no room"))?;
        let (texts, packed_share) = packable_pages(pages)?;
        let mut bench = Bench {
            fixture,
            pages,
            order: shuffled(pages, 0),
            ranges: ranges?,
            bare,
            plain: reserve_bytes(pages * STRIDE * PAGE_SIZE).map_err(no_memory)?,
            buffer: reserve_pages(CLUSTER_PAGES).map_err(no_memory)?,
            steps: Steps::new(fixture, bare, STRIDE, &texts).map_err(no_memory)?,
            samples: Default::default(),
            packed_share,
        };
        bench.fill_ranges(&texts)?;
        Ok(bench)
    }

    /// Puts into each range what makes its pages leave the way they should.
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
                return Err(Refusal::own("a page of the benchmark was refused"));
            }
        }
        Ok(())
    }

    fn measure_one(&mut self, index: usize, counts: bool) -> Result<(), Refusal> {
        let (name, what) = VARIANTS[index];
        let latencies_ns = match what {
            What::Fault(fault) => self.time_faults(name, fault)?,
            What::Part(part) => self.time_part(part)?,
            What::Step(step) => self
                .steps
                .time(step, &self.order)
                .ok_or_else(|| Refusal::own(format!("{name} failed")))?,
        };
        if counts {
            self.samples[index].add(latencies_ns);
        }
        Ok(())
    }

    /// Sends every managed page out, or for first touches makes it fresh.
    fn take_out(&self) -> Result<(), Refusal> {
        for fault in [Fault::ZeroRead, Fault::ZeroWrite] {
            let range = self.ranges[fault as usize];
            let discarded = self.fixture.engine.discard(range.address(), range.len());
            discarded.map_err(|error| Refusal::own(format!("discard: {error}")))?;
        }
        // Each pass of the clock takes some grace away; a round takes a batch.
        let batches = self.pages * FAULTS / CLUSTER_PAGES + 64;
        self.fixture.engine.reclaim_now(batches);
        self.fixture.engine.release_standby();
        Ok(())
    }

    fn time_faults(&mut self, name: &str, fault: Fault) -> Result<Vec<u64>, Refusal> {
        self.take_out()?;
        let stats = self.fixture.engine.stats();
        let before = stats.faults(fault.tier());
        let range = self.ranges[fault as usize];
        let writes = fault == Fault::ZeroWrite;
        let timed = touch(range, &self.order, writes);
        let served = stats.faults(fault.tier()) - before;
        match timed {
            // A figure for something else than it says would be worse than none.
            Some(_) if served != self.pages as u64 => Err(Refusal::own(format!(
                "{name}: only {served} of {} touches were served from there",
                self.pages
            ))),
            Some(latencies_ns) => Ok(latencies_ns),
            None => Err(Refusal::own(format!("{name}: a touch was refused"))),
        }
    }

    fn time_part(&mut self, part: Part) -> Result<Vec<u64>, Refusal> {
        let failed = || Refusal::own(format!("{part:?} failed"));
        let fixture = self.fixture;
        match part {
            Part::SigbusCopy | Part::Copy => {
                fixture.bare.discard(0, self.pages * STRIDE).map_err(|_| failed())?;
                if part == Part::SigbusCopy {
                    return touch(self.bare, &self.order, false).ok_or_else(failed);
                }
                let copy = |page: usize| {
                    fixture
                        .bare
                        .install((page * STRIDE) as u64, &PATTERN, Writes::Allowed)
                        .error
                        .is_none()
                };
                time_each(&self.order, copy).ok_or_else(failed)
            }
            Part::DeviceRead => {
                // Written as recently as the pages that the engine reads.
                self.write_spare().ok_or_else(failed)?;
                let to = &mut self.buffer[0].0;
                time_each(&self.order, |page| fixture.read_spare(page, to)).ok_or_else(failed)
            }
            Part::KernelAnonymous => {
                give_back(self.plain);
                let plain = &mut *self.plain;
                let first_touch = |page: usize| {
                    plain[page * STRIDE * PAGE_SIZE] = 1;
                    std::hint::black_box(plain[page * STRIDE * PAGE_SIZE]) == 1
                };
                time_each(&self.order, first_touch).ok_or_else(failed)
            }
        }
    }

    fn write_spare(&mut self) -> Option<()> {
        for (index, page) in self.buffer.iter_mut().enumerate() {
            fill_with_noise(&mut page.0, index as u64);
        }
        (0..self.pages)
            .all(|page| {
                let content = &self.buffer[page % CLUSTER_PAGES].0;
                self.fixture.write_spare(page, content)
            })
            .then_some(())
    }

    fn outcome(&self, machine: Machine) -> Findings<Outcome> {
        let rows = VARIANTS.iter().zip(&self.samples);
        let rows = rows.map(|((name, _), samples)| Row::new(name, samples.figures())).collect();
        let (mut differences, mut ratios) = (Map::new(), Map::new());
        // By their places among the variants.
        for (fault, name, other, part) in [
            (4, "disk", 7, "device"),
            (3, "pool", 5, "sigbus_copy"),
            (2, "same_filled", 5, "sigbus_copy"),
        ] {
            let (samples, other) = (&self.samples[fault], &self.samples[other]);
            differences.insert(format!("{name}_minus_{part}_us"), samples.minus(other).into());
            let ratio = samples.over(other, |round: &Round| round.p50_us);
            ratios.insert(format!("{name}_vs_{part}"), Value::from(ratio));
        }
        Findings {
            schema: SCHEMA,
            bench: "faults",
            machine,
            disturbance: None,
            figures: Outcome { rows, differences },
            ratios,
            notes: vec![format!(
                "pool: pages of softswap's own executable that LZ4 packs, to {:.0} % on average",
                self.packed_share * 100.0
            )],
        }
    }
}

#[derive(Debug, Serialize)]
struct Row {
    variant: &'static str,
    p50_us: f64,
    p99_us: f64,
    cov: f64,
    count: usize,
}

impl Row {
    fn new(variant: &'static str, figures: Figures) -> Row {
        let Figures { p50_us, p99_us, cov, count, .. } = figures;
        Row { variant, p50_us, p99_us, cov, count }
    }
}

#[derive(Debug, Serialize)]
struct Outcome {
    rows: Vec<Row>,
    /// Of p50, in us.
    differences: Map<String, Value>,
}

/// Touches one page after another, and says how long each took.
fn touch(range: Memory, order: &[usize], writes: bool) -> Option<Vec<u64>> {
    time_each(order, |page| {
        let offset = page * STRIDE * PAGE_SIZE;
        if writes { range.write(offset, 1) } else { range.read(offset).is_some() }
    })
}

/// Latency of `body` for each page in ns; `None` as soon as it says no.
fn time_each(order: &[usize], mut body: impl FnMut(usize) -> bool) -> Option<Vec<u64>> {
    let mut latencies_ns = Vec::with_capacity(order.len());
    for page in order {
        let start = now_ns();
        let done = body(*page);
        latencies_ns.push(now_ns() - start);
        if !done {
            return None;
        }
    }
    Some(latencies_ns)
}

/// Pages of this executable that the pool would take, and how small they get.
fn packable_pages(most: usize) -> Result<(Vec<[u8; PAGE_SIZE]>, f64), Refusal> {
    let executable = std::fs::read("/proc/self/exe")
        .map_err(|error| Refusal::own(format!("/proc/self/exe cannot be read: {error}")))?;
    let (pages, _) = executable.as_chunks::<PAGE_SIZE>();
    let mut scratch = Scratch::new(Default::default())
        .map_err(|error| Refusal::own(format!("no memory to compress in: {error}")))?;
    let mut room = vec![0; codec::MAX_PACKED_BYTES];
    let mut packed_bytes = 0;
    // From everywhere in it, because its parts differ.
    let step = (pages.len() / most).max(1);
    let mut chosen = Vec::new();
    for page in pages.iter().step_by(step).take(most) {
        let is_same = same_filled_word(page).is_some();
        if !is_same && let Some(len) = codec::compress(Packer::Lz4, page, &mut room, &mut scratch) {
            packed_bytes += len;
            chosen.push(*page);
        }
    }
    if chosen.is_empty() {
        return Err(Refusal::own("no page of the executable can be compressed"));
    }
    let share = packed_bytes as f64 / (chosen.len() * PAGE_SIZE) as f64;
    Ok((chosen, share))
}
