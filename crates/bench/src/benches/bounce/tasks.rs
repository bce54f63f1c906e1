//! Tasks whose pages pass through bounce buffers to RAM or to a real device.

use crate::measure::noise::{below, noise};
use rustix::thread::{CpuSet, sched_setaffinity};
use softswap_engine::store::bounce::{Buffer, Pools, Shape};
use softswap_engine::store::io::{Device, FileDevice, IoError, Lane};
use softswap_sys::PAGE_SIZE;
use softswap_sys::memory::reserve_bytes;
use softswap_sys::raw::now_ns;
use std::collections::VecDeque;
use std::io;
use std::sync::Barrier;
use std::time::Duration;

/// Requests that a task has under way at once.
pub(super) const DEPTH: usize = 32;
/// Pools that it takes to serve all of them: the primary one is too small.
const POOLS: usize = 8;
/// Slots for each that is in use. With more than two, each CPU's own areas
/// serve all that its tasks have under way.
const ROOM: usize = 3;
/// A task's part of the device, and its own memory.
pub(super) const PART_BYTES: usize = 16 << 20;
const MEMORY_BYTES: usize = 8 << 20;

/// What tasks do.
#[derive(Debug, Clone, Copy)]
pub(super) struct Workload {
    pub(super) name: &'static str,
    pub(super) tasks: usize,
    /// Of a request.
    pub(super) pages: usize,
}

pub(super) const WORKLOADS: [Workload; 3] = [
    Workload { name: "small", tasks: 1, pages: 1 },
    Workload { name: "big", tasks: 1, pages: 16 },
    Workload { name: "fourway", tasks: 4, pages: 1 },
];

pub(super) const MOST_TASKS: usize = 4;

impl Workload {
    /// Returns pools of which the first is too small by far: together, which searches area by
    /// area, or `apart`, which searches pool by pool.
    pub(super) fn pools(self, apart: bool, areas: usize) -> io::Result<Vec<Pools>> {
        let under_way = self.tasks * DEPTH * self.pages;
        let slots = (under_way * ROOM).div_ceil(areas * POOLS);
        let slots_per_area = slots.next_multiple_of(self.pages);
        let (count, more) = if apart { (POOLS, 0) } else { (1, POOLS - 1) };
        let extra_bytes = more * areas * slots_per_area * PAGE_SIZE;
        let shape = Shape { areas, slots_per_area, reserve_slots: 0, extra_bytes };
        let pools = (0..count).map(|_| Pools::new(shape)).collect::<io::Result<Vec<_>>>()?;
        while pools[0].grow(usize::MAX, 0) {}
        Ok(pools)
    }
}

/// Where requests go.
pub(super) enum Storage<'s> {
    Ram,
    Device(&'s FileDevice),
}

/// Memory of a task, used again and again.
pub(super) struct Task {
    memory: &'static mut [u8],
    ram: &'static mut [u8],
    lane: Lane,
    seed: u64,
}

impl Task {
    pub(super) fn new(seed: u64) -> io::Result<Task> {
        let (memory, ram) = (reserve_bytes(MEMORY_BYTES)?, reserve_bytes(PART_BYTES)?);
        // Populated now, and not while the first order is measured.
        memory.fill(1);
        ram.fill(1);
        Ok(Task { memory, ram, lane: Lane::Plain, seed })
    }

    /// Opens the way to a device.
    pub(super) fn attach(&mut self, device: &FileDevice) {
        self.lane = device.open_lane();
    }

    /// Writes all of its part: storage that was only claimed is slower the
    /// first time.
    pub(super) fn fill_part(&mut self, number: usize, device: &FileDevice) -> Result<(), IoError> {
        device.write(&mut self.lane, (number * PART_BYTES) as u64, self.ram)
    }

    /// Sends requests until the time is over; how many.
    fn run(
        &mut self,
        workload: Workload,
        number: usize,
        pools: &[Pools],
        storage: &Storage<'_>,
        end_ns: u64,
    ) -> Result<u64, IoError> {
        let bytes = workload.pages * PAGE_SIZE;
        let mut under_way: VecDeque<Buffer<'_>> = VecDeque::with_capacity(DEPTH);
        let mut numbers = noise(self.seed);
        let mut place = |room: usize| {
            below(numbers.next().unwrap_or(0), (room / bytes) as u64) as usize * bytes
        };
        let mut done = 0;
        while now_ns() < end_ns {
            for _ in 0..8 {
                if under_way.len() == DEPTH {
                    under_way.pop_front();
                }
                let taken = pools.iter().find_map(|pools| pools.take(number, workload.pages));
                let Some(mut buffer) = taken else { continue };
                buffer.copy_from_slice(&self.memory[place(MEMORY_BYTES)..][..bytes]);
                let at = place(PART_BYTES);
                match storage {
                    Storage::Ram => self.ram[at..][..bytes].copy_from_slice(&buffer),
                    Storage::Device(device) => {
                        let offset = (number * PART_BYTES + at) as u64;
                        device.write(&mut self.lane, offset, &buffer)?;
                    }
                }
                under_way.push_back(buffer);
                done += 1;
            }
        }
        self.seed = self.seed.wrapping_add(1);
        Ok(done)
    }
}

/// What a workload came to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ran {
    pub(super) mib_per_s: f64,
    /// For each request.
    pub(super) areas_visited: f64,
    /// For a million requests.
    pub(super) contended: f64,
}

/// Lets the tasks run for `time`.
pub(super) fn run(
    workload: Workload,
    pools: &[Pools],
    storage: &Storage<'_>,
    tasks: &mut [Task],
    time: Duration,
) -> Result<Ran, IoError> {
    let barrier = Barrier::new(workload.tasks);
    let start = |number: usize, task: &mut Task| {
        bind_to_cpu(number);
        barrier.wait();
        let begin = now_ns();
        let done = task.run(workload, number, pools, storage, begin + time.as_nanos() as u64)?;
        Ok((done, now_ns() - begin))
    };
    let figures = || {
        pools.iter().map(Pools::usage).fold([0; 3], |[takes, visited, contended], usage| {
            let [visited, contended] = [visited + usage.areas_visited, contended + usage.contended];
            [takes + usage.takes, visited, contended]
        })
    };
    let before = figures();
    let ran: Result<Vec<(u64, u64)>, IoError> = std::thread::scope(|scope| {
        let threads: Vec<_> = tasks[..workload.tasks]
            .iter_mut()
            .enumerate()
            .map(|(number, task)| scope.spawn(move || start(number, task)))
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a task does not panic")).collect()
    });
    let ran = ran?;
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

/// Binds this thread to a processor of its own, if there are enough. Without the right to do so
/// the scheduler decides.
pub(super) fn bind_to_cpu(thread: usize) {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let mut set = CpuSet::new();
    set.set(thread % cpus);
    let _ = sched_setaffinity(None, &set);
}
