//! What is measured over maps: look-ups alone, and tasks that swap pages out to RAM and back in,
//! with a look-up for each page.

use super::maps::{Lookup, MapKind, Maps, NoMap, with_map};
use crate::measure::noise::{below, noise, shuffled};
use crate::measure::region::on_threads;
use crate::measure::sample::{median, over, variation};
use softswap_engine::store::swap::CLUSTER_SLOTS;
use softswap_sys::memory::{Page, reserve_pages};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Figures of each map by round, under the name of what is measured.
#[derive(Debug, Default)]
pub(super) struct Rounds(BTreeMap<(MapKind, &'static str), Vec<f64>>);

impl Rounds {
    pub(super) fn add(&mut self, kind: MapKind, what: &'static str, figure: f64) {
        self.0.entry((kind, what)).or_default().push(figure);
    }

    fn of(&self, kind: MapKind, what: &'static str) -> &[f64] {
        self.0.get(&(kind, what)).map_or(&[], Vec::as_slice)
    }

    pub(super) fn median(&self, kind: MapKind, what: &'static str) -> f64 {
        median(self.of(kind, what).to_vec())
    }

    pub(super) fn cov(&self, kind: MapKind, what: &'static str) -> f64 {
        variation(self.of(kind, what))
    }

    /// How many times the figure of `other`, by rounds.
    pub(super) fn over(
        &self,
        kind: MapKind,
        others: &Rounds,
        other: MapKind,
        what: &'static str,
    ) -> f64 {
        over(self.of(kind, what), others.of(other, what))
    }
}

/// Pages asked for, over and over: so many that no map stays in the first
/// cache because of them alone.
const QUERIES: usize = 1 << 16;
/// Look-ups between two looks at the clock.
const LOOKUPS_AT_ONCE: usize = 64;

pub(super) const RANDOM: &str = "random";
pub(super) const SEQUENTIAL: &str = "sequential";

/// Pages to look up, at random or one after the other.
pub(super) fn queries(pages: u64, what: &str, seed: u64) -> Vec<u64> {
    let numbers: Vec<u64> = noise(seed).take(QUERIES).map(|number| below(number, pages)).collect();
    match what {
        RANDOM => numbers,
        _ => (0..QUERIES as u64).map(|at| (numbers[0] + at) % pages).collect(),
    }
}

/// Time of a look-up in ns, from `time` of them.
pub(super) fn lookup_ns(maps: &Maps<'_>, kind: MapKind, queries: &[u64], time: Duration) -> f64 {
    with_map!(maps, kind, map => time_lookups(map, queries, time))
}

fn time_lookups(map: &impl Lookup, queries: &[u64], time: Duration) -> f64 {
    let start = Instant::now();
    let (mut done, mut sum) = (0, 0_u64);
    for queries in queries.chunks(LOOKUPS_AT_ONCE).cycle() {
        for page in queries {
            sum = sum.wrapping_add(map.block(*page).unwrap_or(0));
        }
        done += queries.len();
        if start.elapsed() >= time {
            break;
        }
    }
    std::hint::black_box(sum);
    start.elapsed().as_nanos() as f64 / done as f64
}

/// A task's part of the device. Blocks are taken modulo this: the data need
/// not be kept, the copying must be real.
const DEVICE_PAGES: usize = (32 << 20) / size_of::<Page>();
/// A task's own memory that pages leave and come back to.
const MEMORY_PAGES: usize = (8 << 20) / size_of::<Page>();
/// Pages between two looks at the clock.
const PAGES_AT_ONCE: usize = 16;
const SLOTS: u64 = CLUSTER_SLOTS as u64;
const PAGE_KIB: f64 = size_of::<Page>() as f64 / 1024.0;

/// Slots one after the other, cluster by cluster, each task in clusters of its own.
pub(super) const SWAP_OUT: &str = "swapout";
/// Any page of the task's clusters.
pub(super) const SWAP_IN: &str = "swapin";

/// Memory of the tasks, used again and again.
pub(super) struct Task {
    device: &'static mut [Page],
    memory: &'static mut [Page],
}

impl Task {
    pub(super) fn new() -> io::Result<Task> {
        let task =
            Task { device: reserve_pages(DEVICE_PAGES)?, memory: reserve_pages(MEMORY_PAGES)? };
        // Populated now, and not while the first variant is measured.
        for page in task.device.iter_mut().chain(task.memory.iter_mut()) {
            page.0.fill(1);
        }
        Ok(task)
    }
}

/// A task at work.
struct Worker<'t> {
    task: &'t mut Task,
    /// The clusters of the area that are its own.
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

    /// Swaps one page.
    #[inline]
    fn swap(&mut self, map: &impl Lookup, is_out: bool) {
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

/// Lets the tasks swap through one map's look-ups; KB/s of all together.
pub(super) fn throughput(
    maps: &Maps<'_>,
    kind: MapKind,
    what: &'static str,
    tasks: &mut [Task],
    time: Duration,
    seed: u64,
) -> f64 {
    let (pages, is_out) = (maps.layout.pages, what == SWAP_OUT);
    with_map!(maps, kind, map => run(map, pages, is_out, tasks, time, seed))
}

/// As many threads run as there are processors. If there are more tasks, each thread takes a
/// page of each of its tasks in turn: tasks that wait for their pages give way to each other
/// after every page, which RAM would not make them do.
fn run(
    map: &impl Lookup,
    pages: u64,
    is_out: bool,
    tasks: &mut [Task],
    time: Duration,
    seed: u64,
) -> f64 {
    // Whole clusters of the area in an order without pattern, dealt out.
    let clusters = shuffled(pages as usize / CLUSTER_SLOTS, seed);
    let count = tasks.len();
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(count);
    let mut hands: Vec<Vec<Worker<'_>>> = (0..threads).map(|_| Vec::new()).collect();
    for (number, task) in tasks.iter_mut().enumerate() {
        let own = clusters.iter().skip(number).step_by(count).map(|cluster| *cluster as u64);
        let worker = Worker::new(task, own.collect(), seed * 1000 + number as u64);
        hands[number % threads].push(worker);
    }
    let hands: Vec<_> = hands.into_iter().map(Mutex::new).collect();
    let (seconds, done) = on_threads(threads, |thread| {
        let mut workers = hands[thread].lock().unwrap_or_else(PoisonError::into_inner);
        let turns = PAGES_AT_ONCE.div_ceil(workers.len());
        let (start, mut done) = (Instant::now(), 0);
        while start.elapsed() < time {
            for _ in 0..turns {
                workers.iter_mut().for_each(|worker| worker.swap(map, is_out));
            }
            done += (turns * workers.len()) as u64;
        }
        done
    });
    done.into_iter().sum::<u64>() as f64 * PAGE_KIB / seconds
}
