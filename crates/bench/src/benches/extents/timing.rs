//! Measurements of maps: look-ups alone, and tasks that swap pages to RAM and back with a look-up
//! for each page.

use super::maps::{Lookup, Map};
use crate::measure::noise::{below, noise, shuffled};
use crate::measure::region::on_threads;
use softswap_engine::store::swap::CLUSTER_SLOTS;
use softswap_sys::memory::{Page, reserve_pages};
use std::io;
use std::time::{Duration, Instant};

/// Number of distinct look-ups before they repeat: enough that the map does not remain in the L1
/// cache.
const QUERIES: usize = 1 << 16;
/// Look-ups between two clock reads.
const LOOKUPS_AT_ONCE: usize = 64;

/// Returns the pages to look up, in random or sequential order.
pub(super) fn queries(pages: u64, is_random: bool, seed: u64) -> Vec<u64> {
    let numbers: Vec<u64> = noise(seed).take(QUERIES).map(|number| below(number, pages)).collect();
    match is_random {
        true => numbers,
        false => (0..QUERIES as u64).map(|at| (numbers[0] + at) % pages).collect(),
    }
}

/// Repeats look-ups for `time` and returns the time of one in ns.
pub(super) fn lookup_ns(map: &dyn Lookup, queries: &[u64], time: Duration) -> f64 {
    let start = Instant::now();
    let (mut done, mut sum) = (0, 0_u64);
    for queries in queries.chunks(LOOKUPS_AT_ONCE).cycle() {
        sum = sum.wrapping_add(map.sum(queries));
        done += queries.len();
        if start.elapsed() >= time {
            break;
        }
    }
    std::hint::black_box(sum);
    start.elapsed().as_nanos() as f64 / done as f64
}

/// Size of a task's part of the device. Blocks are taken modulo this size. Tasks may therefore
/// overwrite data, but only the cost of copying is measured.
const DEVICE_PAGES: usize = (32 << 20) / size_of::<Page>();
const MEMORY_PAGES: usize = (8 << 20) / size_of::<Page>();
/// Pages between two clock reads.
const PAGES_AT_ONCE: usize = 16;
const SLOTS: u64 = CLUSTER_SLOTS as u64;
const PAGE_KIB: f64 = size_of::<Page>() as f64 / 1024.0;

pub(super) struct Task {
    device: &'static mut [Page],
    memory: &'static mut [Page],
}

impl Task {
    pub(super) fn new() -> io::Result<Task> {
        let task =
            Task { device: reserve_pages(DEVICE_PAGES)?, memory: reserve_pages(MEMORY_PAGES)? };
        // Populate the memory before the measurement.
        for page in task.device.iter_mut().chain(task.memory.iter_mut()) {
            page.0.fill(1);
        }
        Ok(task)
    }
}

struct Worker<'t> {
    task: &'t mut Task,
    /// Clusters of the area that belong to this task.
    clusters: Vec<u64>,
    numbers: Box<dyn Iterator<Item = u64> + Send>,
    slot: u64,
}

impl<'t> Worker<'t> {
    fn new(task: &'t mut Task, clusters: Vec<u64>, seed: u64) -> Worker<'t> {
        let mut worker = Worker { task, clusters, numbers: Box::new(noise(seed)), slot: 0 };
        worker.slot = worker.below(worker.slots());
        worker
    }

    fn slots(&self) -> u64 {
        self.clusters.len() as u64 * SLOTS
    }

    #[inline]
    fn below(&mut self, count: u64) -> u64 {
        below(self.numbers.next().unwrap_or(0), count)
    }

    /// Swaps one page: out to the next slot, or in from a random slot.
    #[inline]
    fn swap(&mut self, map: &dyn Lookup, is_out: bool) {
        self.slot = match is_out {
            true => (self.slot + 1) % self.slots(),
            false => self.below(self.slots()),
        };
        let page = self.clusters[(self.slot / SLOTS) as usize] * SLOTS + self.slot % SLOTS;
        let own = self.below(MEMORY_PAGES as u64) as usize;
        let block = map.block(page).unwrap_or(0);
        let stored = &mut self.task.device[block as usize % DEVICE_PAGES].0;
        let own = &mut self.task.memory[own].0;
        match is_out {
            true => stored.copy_from_slice(own),
            false => own.copy_from_slice(stored),
        }
    }
}

/// Returns the throughput of all tasks in KiB/s. Runs one thread per processor. With more tasks
/// than threads, each thread swaps one page of each of its tasks in turn, as if each task waited
/// for its page.
pub(super) fn throughput(
    map: &Map,
    is_out: bool,
    tasks: &mut [Task],
    time: Duration,
    seed: u64,
) -> f64 {
    // Distribute whole clusters of the area to the tasks, in random order.
    let clusters = shuffled(map.pages as usize / CLUSTER_SLOTS, seed);
    let count = tasks.len();
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(count);
    let mut workers: Vec<Vec<Worker<'_>>> = (0..threads).map(|_| Vec::new()).collect();
    for (number, task) in tasks.iter_mut().enumerate() {
        let own = clusters.iter().skip(number).step_by(count).map(|cluster| *cluster as u64);
        let worker = Worker::new(task, own.collect(), seed * 1000 + number as u64);
        workers[number % threads].push(worker);
    }
    let (seconds, done) = on_threads(workers, |mut workers| {
        let turns = PAGES_AT_ONCE.div_ceil(workers.len());
        let (start, mut done) = (Instant::now(), 0);
        while start.elapsed() < time {
            for _ in 0..turns {
                workers.iter_mut().for_each(|worker| worker.swap(&*map.lookup, is_out));
            }
            done += (turns * workers.len()) as u64;
        }
        done
    });
    done.into_iter().sum::<u64>() as f64 * PAGE_KIB / seconds
}
