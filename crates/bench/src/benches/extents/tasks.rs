//! Tasks that swap pages out to RAM and back in, with a look-up for each page.

use super::maps::{Lookup, MapKind, Maps, NoMap};
use crate::measure::noise::{below, noise, shuffled};
use crate::measure::region::on_threads;
use crate::measure::sample::{median, over, variation};
use softswap_engine::store::swap::CLUSTER_SLOTS;
use softswap_sys::memory::{Page, reserve_pages};
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A task's part of the device. Blocks are taken modulo this: the data need
/// not be kept, the copying must be real.
const DEVICE_PAGES: usize = (32 << 20) / size_of::<Page>();
/// A task's own memory that pages leave and come back to.
const MEMORY_PAGES: usize = (8 << 20) / size_of::<Page>();
/// Pages between two looks at the clock.
const AT_ONCE: usize = 16;
const SLOTS: u64 = CLUSTER_SLOTS as u64;
const PAGE_KIB: f64 = size_of::<Page>() as f64 / 1024.0;

/// Whether pages leave or come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    /// Slots one after the other, cluster by cluster, each task in clusters of
    /// its own: as a kernel, and softswap, hand them out.
    Out,
    /// Any page of the task's clusters.
    In,
}

impl Direction {
    pub(super) const ALL: [Direction; 2] = [Direction::Out, Direction::In];
}

/// Whose look-ups the tasks make: those of a map, or none.
pub(super) type Swapper = Option<MapKind>;

pub(super) const SWAPPERS: [Swapper; 4] =
    [None, Some(MapKind::List), Some(MapKind::RbTree), Some(MapKind::Softswap)];

/// Memory of the tasks, used again and again.
pub(super) struct Task {
    device: &'static mut [Page],
    memory: &'static mut [Page],
}

impl Task {
    pub(super) const BYTES: u64 = ((DEVICE_PAGES + MEMORY_PAGES) * size_of::<Page>()) as u64;

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

/// A task at work, and how far it is.
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
    fn swap(&mut self, map: &impl Lookup, direction: Direction) {
        self.slot = match direction {
            Direction::Out => (self.slot + 1) % self.slots(),
            Direction::In => self.below(self.slots()),
        };
        let page = self.clusters[(self.slot / SLOTS) as usize] * SLOTS + self.slot % SLOTS;
        let own = self.below(MEMORY_PAGES as u64) as usize;
        let block = map.block(page).unwrap_or(0);
        let stored = &mut self.task.device[block as usize % DEVICE_PAGES].0;
        let own = &mut self.task.memory[own].0;
        match direction {
            Direction::Out => stored.copy_from_slice(own),
            Direction::In => own.copy_from_slice(stored),
        }
    }
}

/// One processor's tasks swap a page each in turn, until the time is over.
fn swap_in_turn(
    workers: &mut [Worker<'_>],
    map: &impl Lookup,
    direction: Direction,
    end: impl Fn() -> bool,
) -> u64 {
    let turns = AT_ONCE.div_ceil(workers.len());
    let mut done = 0;
    while !end() {
        for _ in 0..turns {
            workers.iter_mut().for_each(|worker| worker.swap(map, direction));
        }
        done += (turns * workers.len()) as u64;
    }
    done
}

/// Lets the tasks swap through one variant's look-ups; KB/s of all together.
pub(super) fn throughput(
    maps: &Maps<'_>,
    swapper: Swapper,
    direction: Direction,
    tasks: &mut [Task],
    time: Duration,
    seed: u64,
) -> f64 {
    match swapper {
        None => run(&NoMap, maps.layout.pages, direction, tasks, time, seed),
        Some(MapKind::List) => run(&maps.list, maps.layout.pages, direction, tasks, time, seed),
        Some(MapKind::RbTree) => run(&maps.tree, maps.layout.pages, direction, tasks, time, seed),
        Some(MapKind::Softswap) => {
            run(&maps.softswap, maps.layout.pages, direction, tasks, time, seed)
        }
    }
}

fn run(
    map: &impl Lookup,
    pages: u64,
    direction: Direction,
    tasks: &mut [Task],
    time: Duration,
    seed: u64,
) -> f64 {
    // Whole clusters of the area in an order without pattern, dealt out.
    let clusters = shuffled(pages as usize / CLUSTER_SLOTS, seed);
    let count = tasks.len();
    let workers = tasks.iter_mut().enumerate().map(|(number, task)| {
        let own = clusters.iter().skip(number).step_by(count).map(|cluster| *cluster as u64);
        Worker::new(task, own.collect(), seed * 1000 + number as u64)
    });
    let threads = threads(count);
    let mut hands: Vec<Vec<Worker<'_>>> = (0..threads).map(|_| Vec::new()).collect();
    workers.enumerate().for_each(|(number, worker)| hands[number % threads].push(worker));
    let hands: Vec<_> = hands.into_iter().map(Mutex::new).collect();
    let (seconds, done) = on_threads(threads, |thread| {
        let mut workers = hands[thread].lock().unwrap_or_else(PoisonError::into_inner);
        let start = Instant::now();
        swap_in_turn(&mut workers, map, direction, || start.elapsed() >= time)
    });
    done.into_iter().sum::<u64>() as f64 * PAGE_KIB / seconds
}

/// As many as can run at once. Where there are more tasks, each thread takes a
/// page of each of its tasks in turn: tasks that wait for their pages give way
/// to each other after every page, which RAM would not make them do.
fn threads(tasks: usize) -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(tasks)
}

/// Throughputs of all swappers in both directions, round by round, in KB/s.
#[derive(Debug, Default)]
pub(super) struct Throughputs {
    rounds: [[Vec<f64>; Direction::ALL.len()]; SWAPPERS.len()],
}

impl Throughputs {
    pub(super) fn add(&mut self, swapper: usize, direction: Direction, kbps: f64) {
        self.rounds[swapper][direction as usize].push(kbps);
    }

    fn of(&self, swapper: Swapper, direction: Direction) -> &[f64] {
        let index = SWAPPERS.iter().position(|other| *other == swapper).unwrap_or(0);
        &self.rounds[index][direction as usize]
    }

    pub(super) fn kbps(&self, swapper: Swapper, direction: Direction) -> f64 {
        median(self.of(swapper, direction).to_vec())
    }

    pub(super) fn cov(&self, swapper: Swapper, direction: Direction) -> f64 {
        variation(self.of(swapper, direction))
    }

    /// How much of the time look-ups take: what is missing of the throughput
    /// without any in the same round.
    pub(super) fn lookup_share(&self, swapper: Swapper, direction: Direction) -> f64 {
        1.0 - self.over(swapper, self, None, direction)
    }

    /// How many times the throughput of another: the median over the rounds.
    pub(super) fn over(
        &self,
        swapper: Swapper,
        others: &Throughputs,
        other: Swapper,
        direction: Direction,
    ) -> f64 {
        over(self.of(swapper, direction), others.of(other, direction))
    }
}
