//! Throughput by the order in which bounce buffers are searched, and the CPU time of one buffer.
//!
//! The workloads are those of a published comparison for Linux's swiotlb: one task with requests of
//! 4 KiB (small), one with 64 KiB (big), four with 4 KiB (fourway). The primary pool is too small
//! for them, so the other pools are searched, too.

mod tasks;

use crate::measure::machine::Machine;
use crate::measure::object::{Object, object};
use crate::measure::options::InRounds;
use crate::measure::region::on_threads;
use crate::measure::report::Log;
use crate::measure::sample::{Cell, take_turns};
use clap::Args;
use softswap_cli::refusal::{OrRefuse, Refusal};
use softswap_engine::store::bounce::{Pools, Shape};
use softswap_engine::store::io::{Device, FileDevice};
use softswap_sys::file::SwapFile;
use std::time::Duration;
use tasks::{MAX_TASKS, PART_BYTES, Ran, Task, WORKLOADS, Workload, bind_to_cpu};

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
alone: CPU time to allocate and free a buffer of one page, by number of threads.")]
pub(crate) struct BounceArgs {
    /// How long each combination runs in a round, in milliseconds
    #[arg(long, value_name = "N", default_value_t = 100,
          value_parser = clap::value_parser!(u32).range(1..=60_000))]
    ms: u32,

    #[command(flatten)]
    common: InRounds<15>,
}

/// Search orders; true if pools are searched one by one. The first order runs twice to measure
/// noise.
const ORDERS: [(&str, bool); 3] =
    [("area_first", false), ("pool_first", true), ("area_first_again", false)];
const THREADS: [usize; 4] = [1, 2, 4, 8];
/// Slots of the allocator that is measured alone, without tasks.
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
    let tasks: std::io::Result<Vec<_>> = (0..MAX_TASKS as u64).map(Task::new).collect();
    let mut tasks = tasks.or_own("the tasks' buffers cannot be allocated")?;
    for (number, task) in tasks.iter_mut().enumerate() {
        task.attach(&device);
        task.fill_part(number, &device).map_err(Refusal::own)?;
    }
    let areas = std::thread::available_parallelism().map_or(1, usize::from);
    let mut log = Log::start();
    let mut cells: Vec<_> = combinations().map(Cell::new).collect();
    let time = Duration::from_millis(u64::from(args.ms));
    take_turns(&mut cells, args.common.rounds, |one, _| {
        let pools = one.workload.pools(one.is_apart, areas).or_own(NO_POOLS)?;
        let device = (!one.is_ram).then_some(&device);
        tasks::run(one.workload, &pools, device, &mut tasks, time).map_err(Refusal::own)
    })?;
    let slots_per_area = SLOTS / areas.next_power_of_two();
    let shape = Shape { areas, slots_per_area, reserve_slots: 0, extra_bytes: 0 };
    let pools = Pools::new(shape).or_own(NO_POOLS)?;
    let mut alone = THREADS.map(Cell::new);
    take_turns(&mut alone, args.common.rounds, |threads, _| {
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

/// Returns the processor time to allocate and free a buffer of one page, in ns.
fn take_ns(pools: &Pools, threads: usize, times: u32) -> f64 {
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
