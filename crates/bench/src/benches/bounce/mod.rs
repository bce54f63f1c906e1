//! Throughput by the order in which bounce buffers are searched, and the CPU time of one buffer.
//!
//! The workloads are those of a published comparison for Linux's swiotlb: one task with requests of
//! 4 KiB (small), one with 64 KiB (big), four with 4 KiB (fourway). The primary pool is too small
//! for them, so the other pools are searched, too.

use crate::measure::machine::Machine;
use crate::measure::noise::{below, noise};
use crate::measure::options::{InRounds, within};
use crate::measure::region::on_threads;
use crate::measure::report::Log;
use crate::measure::sample::{Cell, Object, object, take_turns};
use clap::Args;
use rustix::thread::{CpuSet, sched_setaffinity};
use softswap_cli::refusal::{OrRefuse, Refusal};
use softswap_engine::store::bounce::{BouncePools, Buffer, Shape};
use softswap_engine::store::io::{Device, FileDevice, IoError, Lane};
use softswap_sys::PAGE_SIZE;
use softswap_sys::file::SwapFile;
use softswap_sys::memory::reserve_bytes;
use softswap_sys::raw::now_ns;
use std::collections::VecDeque;
use std::io;
use std::time::Duration;

const NO_POOLS: &str = "the bounce pools cannot be allocated";

/// Measure bounce buffers: the order in which pools are searched, and the cost of one.
///
/// Tasks send requests through bounce buffers to RAM and to a file, 32 at a time each, with eight
/// pools of which the first is too small. One thing differs: whether a CPU's own area is searched
/// in every pool first, or every area in the first pool.
#[derive(Args)]
#[command(after_long_help = "\
W_area_first_vs_pool_first: bandwidth of workload W, area-first order divided by pool-first.
W_area_first_vs_itself: bandwidth of two runs of the area-first order, divided (noise).
Suffix _device: the requests go to the file, not to RAM.
alone: CPU time to allocate and free a buffer of one page, by number of threads.

Examples:
  softswap bench bounce
  softswap bench bounce --ms 500 --rounds 5")]
pub(crate) struct BounceArgs {
    /// How long each combination runs in a round, in milliseconds
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = within(1..=60_000))]
    ms: u32,

    #[command(flatten)]
    common: InRounds<15>,
}

/// True if pools are searched one by one. The first order runs twice to measure noise.
const ORDERS: [(&str, bool); 3] =
    [("area_first", false), ("pool_first", true), ("area_first_again", false)];
const THREADS: [usize; 4] = [1, 2, 4, 8];
const SLOTS: usize = 256;

#[derive(Clone, Copy)]
struct Combination {
    workload: Workload,
    is_ram: bool,
    name: &'static str,
    is_apart: bool,
}

fn combinations() -> impl Iterator<Item = Combination> {
    let workloads = |is_ram| WORKLOADS.map(|workload| (is_ram, workload));
    [true, false].into_iter().flat_map(workloads).flat_map(|(is_ram, workload)| {
        ORDERS.map(|(name, is_apart)| Combination { workload, is_ram, name, is_apart })
    })
}

pub(super) fn measure(args: &BounceArgs) -> Result<Object, Refusal> {
    let bytes = (MAX_TASKS * PART_BYTES) as u64;
    let dir = args.common.dir(bytes)?;
    let device = FileDevice::new(SwapFile::open(&dir.path).map_err(Refusal::own)?, false);
    device.grow(0, bytes).map_err(Refusal::own)?;
    let tasks = (0..MAX_TASKS).map(|number| Task::new(number, &device));
    let mut tasks = tasks.collect::<Result<Vec<_>, _>>()?;
    let areas = std::thread::available_parallelism().map_or(1, usize::from);
    let mut log = Log::start();
    let time = Duration::from_millis(u64::from(args.ms));
    let cells = take_turns(combinations(), args.common.rounds, |one, _| {
        let pools = one.workload.pools(one.is_apart, areas).or_own(NO_POOLS)?;
        let device = (!one.is_ram).then_some(&device);
        run(one.workload, &pools, device, &mut tasks, time).map_err(Refusal::own)
    })?;
    let slots_per_area = SLOTS / areas.next_power_of_two();
    let shape = Shape { areas, slots_per_area, reserve_slots: 0, extra_bytes: 0 };
    let pools = BouncePools::new(shape).or_own(NO_POOLS)?;
    let alone = take_turns(THREADS, args.common.rounds, |threads, _| {
        Ok(take_ns(&pools, *threads, args.ms * 5_000))
    })?;
    for triple in cells.chunks_exact(ORDERS.len()) {
        let Combination { workload, is_ram, .. } = triple[0].key;
        let (name, suffix) = (workload.name, if is_ram { "" } else { "_device" });
        for (other, against) in [(&triple[1], "pool_first"), (&triple[2], "itself")] {
            let ratio = triple[0].ratio_to(other, |ran| ran.mib_per_s);
            log.ratio(format!("{name}_area_first_vs_{against}{suffix}"), ratio);
        }
    }
    let rows: Vec<_> = cells.iter().map(row_of).collect();
    let alone = alone.iter().map(|cell| {
        object! { threads: cell.key, ns: cell.median(|ns| *ns), cov: cell.cov(|ns| *ns) }
    });
    let figures = object! { rows, alone: alone.collect::<Vec<_>>() };
    Ok(log.findings("bounce", Machine::with_dir(&dir), figures))
}

fn row_of(cell: &Cell<Combination, Ran>) -> Object {
    object! {
        workload: cell.key.workload.name,
        device: if cell.key.is_ram { "ram" } else { "file" },
        order: cell.key.name,
        mib_per_s: cell.median(|ran| ran.mib_per_s),
        areas_visited: cell.median(|ran| ran.areas_visited),
        contended_per_million: cell.median(|ran| ran.contended),
        cov: cell.cov(|ran| ran.mib_per_s),
        count: cell.rounds.len(),
    }
}

fn take_ns(pools: &BouncePools, threads: usize, times: u32) -> f64 {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from).min(threads);
    let each = times / threads as u32;
    let (seconds, _) = on_threads(0..threads, |thread| {
        bind_to_cpu(thread);
        for _ in 0..each {
            std::hint::black_box(pools.take(thread, 1));
        }
    });
    seconds * 1e9 * cpus as f64 / (threads as f64 * f64::from(each))
}

const DEPTH: usize = 32;
const AT_ONCE: usize = 8;
/// Together large enough; the primary one is too small.
const POOLS: usize = 8;
/// Slots per concurrently used slot. With more than two, a CPU's own areas satisfy all requests.
const ROOM: usize = 3;
const PART_BYTES: usize = 16 << 20;
const MEMORY_BYTES: usize = 8 << 20;

#[derive(Debug, Clone, Copy)]
struct Workload {
    name: &'static str,
    tasks: usize,
    pages: usize,
}

const WORKLOADS: [Workload; 3] = [
    Workload { name: "small", tasks: 1, pages: 1 },
    Workload { name: "big", tasks: 1, pages: 16 },
    Workload { name: "fourway", tasks: 4, pages: 1 },
];

const MAX_TASKS: usize = 4;

impl Workload {
    /// Returns pools of which the first is far too small. With `apart` they are searched one after
    /// the other, otherwise the same CPU's areas of all pools first.
    fn pools(self, apart: bool, areas: usize) -> io::Result<Vec<BouncePools>> {
        let in_flight = self.tasks * DEPTH * self.pages;
        let slots = (in_flight * ROOM).div_ceil(areas * POOLS);
        let slots_per_area = slots.next_multiple_of(self.pages);
        let (count, more) = if apart { (POOLS, 0) } else { (1, POOLS - 1) };
        let extra_bytes = more * areas * slots_per_area * PAGE_SIZE;
        let shape = Shape { areas, slots_per_area, reserve_slots: 0, extra_bytes };
        let pools = (0..count).map(|_| BouncePools::new(shape)).collect::<io::Result<Vec<_>>>()?;
        while pools[0].grow(usize::MAX, 0) {}
        Ok(pools)
    }
}

struct Task {
    memory: &'static mut [u8],
    ram: &'static mut [u8],
    lane: Lane,
    seed: u64,
}

impl Task {
    /// Writes all of the part: the first write to preallocated storage is slower.
    fn new(number: usize, device: &FileDevice) -> Result<Task, Refusal> {
        let reserve = |bytes| reserve_bytes(bytes).or_own("a task's buffer cannot be allocated");
        let (memory, ram) = (reserve(MEMORY_BYTES)?, reserve(PART_BYTES)?);
        memory.fill(1);
        ram.fill(1);
        let mut lane = device.open_lane();
        device.write(&mut lane, (number * PART_BYTES) as u64, ram).map_err(Refusal::own)?;
        Ok(Task { memory, ram, lane, seed: number as u64 })
    }

    fn run(
        &mut self,
        workload: Workload,
        number: usize,
        pools: &[BouncePools],
        device: Option<&FileDevice>,
        time: Duration,
    ) -> Result<u64, IoError> {
        let end_ns = now_ns() + time.as_nanos() as u64;
        let bytes = workload.pages * PAGE_SIZE;
        let mut in_flight: VecDeque<Buffer<'_>> = VecDeque::with_capacity(DEPTH);
        let mut numbers = noise(self.seed);
        let mut place = |room: usize| {
            below(numbers.next().unwrap_or(0), (room / bytes) as u64) as usize * bytes
        };
        let mut done = 0;
        // Read the clock after the requests: a task preempted before them would send none.
        loop {
            for _ in 0..AT_ONCE {
                if in_flight.len() == DEPTH {
                    in_flight.pop_front();
                }
                let taken = pools.iter().find_map(|pools| pools.take(number, workload.pages));
                let Some(mut buffer) = taken else { continue };
                buffer.copy_from_slice(&self.memory[place(MEMORY_BYTES)..][..bytes]);
                let at = place(PART_BYTES);
                match device {
                    None => self.ram[at..][..bytes].copy_from_slice(&buffer),
                    Some(device) => {
                        let offset = (number * PART_BYTES + at) as u64;
                        device.write(&mut self.lane, offset, &buffer)?;
                    }
                }
                in_flight.push_back(buffer);
                done += 1;
            }
            if now_ns() >= end_ns {
                break;
            }
        }
        self.seed = self.seed.wrapping_add(1);
        Ok(done)
    }
}

#[derive(Debug, Clone, Copy)]
struct Ran {
    mib_per_s: f64,
    /// Mean per request.
    areas_visited: f64,
    /// Per million requests.
    contended: f64,
}

fn run(
    workload: Workload,
    pools: &[BouncePools],
    device: Option<&FileDevice>,
    tasks: &mut [Task],
    time: Duration,
) -> Result<Ran, IoError> {
    let figures = || {
        pools.iter().map(BouncePools::usage).fold([0; 3], |[takes, visited, contended], usage| {
            let [visited, contended] = [visited + usage.areas_visited, contended + usage.contended];
            [takes + usage.takes, visited, contended]
        })
    };
    let before = figures();
    let tasks = tasks[..workload.tasks].iter_mut().enumerate();
    let (_, ran) = on_threads(tasks, |(number, task)| {
        bind_to_cpu(number);
        let begin = now_ns();
        let done = task.run(workload, number, pools, device, time)?;
        Ok((done, now_ns() - begin))
    });
    let ran: Vec<(u64, u64)> = ran.into_iter().collect::<Result<_, IoError>>()?;
    let after = figures();
    let [requests, areas_visited, contended] = [0, 1, 2].map(|at| (after[at] - before[at]) as f64);
    let requests = requests.max(1.0);
    let bytes = (workload.pages * PAGE_SIZE) as f64;
    let per_s = ran.iter().map(|(done, ns)| *done as f64 * bytes / *ns as f64 * 1e9).sum::<f64>();
    Ok(Ran {
        mib_per_s: per_s / f64::from(1 << 20),
        areas_visited: areas_visited / requests,
        contended: contended / requests * 1e6,
    })
}

fn bind_to_cpu(thread: usize) {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let mut set = CpuSet::new();
    set.set(thread % cpus);
    let _ = sched_setaffinity(None, &set);
}
