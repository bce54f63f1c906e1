//! Tasks that transfer pages through bounce buffers to RAM or to a real device.

use crate::measure::noise::{below, noise};
use crate::measure::region::on_threads;
use rustix::thread::{CpuSet, sched_setaffinity};
use softswap_engine::store::bounce::{Buffer, Pools, Shape};
use softswap_engine::store::io::{Device, FileDevice, IoError, Lane};
use softswap_sys::PAGE_SIZE;
use softswap_sys::memory::reserve_bytes;
use softswap_sys::raw::now_ns;
use std::collections::VecDeque;
use std::io;
use std::time::Duration;

/// Concurrent requests of a task.
const DEPTH: usize = 32;
/// Requests between two clock reads.
const AT_ONCE: usize = 8;
/// Number of pools. Together they are large enough; the primary one is too small.
const POOLS: usize = 8;
/// Number of slots per concurrently used slot. With more than two, a CPU's own areas satisfy all
/// requests of its tasks.
const ROOM: usize = 3;
pub(super) const PART_BYTES: usize = 16 << 20;
const MEMORY_BYTES: usize = 8 << 20;

#[derive(Debug, Clone, Copy)]
pub(super) struct Workload {
    pub(super) name: &'static str,
    tasks: usize,
    pages: usize,
}

pub(super) const WORKLOADS: [Workload; 3] = [
    Workload { name: "small", tasks: 1, pages: 1 },
    Workload { name: "big", tasks: 1, pages: 16 },
    Workload { name: "fourway", tasks: 4, pages: 1 },
];

pub(super) const MAX_TASKS: usize = 4;

impl Workload {
    /// Returns pools of which the first is far too small. With `apart` they are separate, and
    /// searched one after the other. Otherwise they are combined, and the same CPU's areas of all
    /// pools are searched first.
    pub(super) fn pools(self, apart: bool, areas: usize) -> io::Result<Vec<Pools>> {
        let in_flight = self.tasks * DEPTH * self.pages;
        let slots = (in_flight * ROOM).div_ceil(areas * POOLS);
        let slots_per_area = slots.next_multiple_of(self.pages);
        let (count, more) = if apart { (POOLS, 0) } else { (1, POOLS - 1) };
        let extra_bytes = more * areas * slots_per_area * PAGE_SIZE;
        let shape = Shape { areas, slots_per_area, reserve_slots: 0, extra_bytes };
        let pools = (0..count).map(|_| Pools::new(shape)).collect::<io::Result<Vec<_>>>()?;
        while pools[0].grow(usize::MAX, 0) {}
        Ok(pools)
    }
}

pub(super) struct Task {
    memory: &'static mut [u8],
    ram: &'static mut [u8],
    lane: Lane,
    seed: u64,
}

impl Task {
    pub(super) fn new(seed: u64) -> io::Result<Task> {
        let (memory, ram) = (reserve_bytes(MEMORY_BYTES)?, reserve_bytes(PART_BYTES)?);
        // Populate the memory before the measurement.
        memory.fill(1);
        ram.fill(1);
        Ok(Task { memory, ram, lane: Lane::Plain, seed })
    }

    pub(super) fn attach(&mut self, device: &FileDevice) {
        self.lane = device.open_lane();
    }

    /// Writes all of the task's part: the first write to preallocated storage is slower.
    pub(super) fn fill_part(&mut self, number: usize, device: &FileDevice) -> Result<(), IoError> {
        device.write(&mut self.lane, (number * PART_BYTES) as u64, self.ram)
    }

    /// Sends requests until the time is over and returns their number.
    fn run(
        &mut self,
        workload: Workload,
        number: usize,
        pools: &[Pools],
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
        while now_ns() < end_ns {
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
        }
        self.seed = self.seed.wrapping_add(1);
        Ok(done)
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Ran {
    pub(super) mib_per_s: f64,
    /// Mean per request.
    pub(super) areas_visited: f64,
    /// Per million requests.
    pub(super) contended: f64,
}

/// Runs the tasks for `time`, to a device or to RAM.
pub(super) fn run(
    workload: Workload,
    pools: &[Pools],
    device: Option<&FileDevice>,
    tasks: &mut [Task],
    time: Duration,
) -> Result<Ran, IoError> {
    let figures = || {
        pools.iter().map(Pools::usage).fold([0; 3], |[takes, visited, contended], usage| {
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

/// Binds this thread to its own CPU, if there are enough CPUs and binding is permitted.
pub(super) fn bind_to_cpu(thread: usize) {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let mut set = CpuSet::new();
    set.set(thread % cpus);
    let _ = sched_setaffinity(None, &set);
}
