//! Tasks that swap pages out to RAM and back in, with a look-up for each page.

use super::super::noise::{below, noise, shuffled};
use super::super::sample::{median, variation};
use crate::extents::maps::{Lookup, Maps, NoMap, Variant};
use softswap_engine::swap::CLUSTER_SLOTS;
use softswap_sys::memory::{Page, reserve_pages};
use std::io;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// A task's part of the device. Blocks are taken modulo this: the data need
/// not be kept, the copying must be real.
const DEVICE_PAGES: usize = (32 << 20) / size_of::<Page>();
/// A task's own memory that pages leave and come back to.
const MEMORY_PAGES: usize = (8 << 20) / size_of::<Page>();
/// Pages between two looks at the clock.
const AT_ONCE: usize = 16;
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
pub(super) type Swapper = Option<Variant>;

pub(super) const SWAPPERS: [Swapper; 4] =
    [None, Some(Variant::List), Some(Variant::RbTree), Some(Variant::Softswap)];

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

    /// Swaps until the time is over; the number of pages.
    fn swap(
        &mut self,
        map: &impl Lookup,
        direction: Direction,
        clusters: &[u64],
        seed: u64,
        end: impl Fn() -> bool,
    ) -> u64 {
        const SLOTS: u64 = CLUSTER_SLOTS as u64;
        let mut numbers = noise(seed);
        let mut number = || numbers.next().unwrap_or(0);
        let mut slot = below(number(), clusters.len() as u64) * SLOTS;
        let all_slots = clusters.len() as u64 * SLOTS;
        let mut done = 0;
        while !end() {
            for _ in 0..AT_ONCE {
                slot = match direction {
                    Direction::Out => (slot + 1) % all_slots,
                    Direction::In => below(number(), all_slots),
                };
                let page = clusters[(slot / SLOTS) as usize] * SLOTS + slot % SLOTS;
                let block = map.block(page).unwrap_or(0);
                let stored = &mut self.device[block as usize % DEVICE_PAGES].0;
                let own = &mut self.memory[below(number(), MEMORY_PAGES as u64) as usize].0;
                match direction {
                    Direction::Out => stored.copy_from_slice(own),
                    Direction::In => own.copy_from_slice(stored),
                }
            }
            done += AT_ONCE as u64;
        }
        done
    }
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
        Some(Variant::List) => run(&maps.list, maps.layout.pages, direction, tasks, time, seed),
        Some(Variant::RbTree) => run(&maps.tree, maps.layout.pages, direction, tasks, time, seed),
        Some(Variant::Softswap) => {
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
    let hands = tasks.len();
    let of_task = |task: usize| clusters.iter().skip(task).step_by(hands).map(|n| *n as u64);
    let barrier = Barrier::new(hands + 1);
    std::thread::scope(|scope| {
        let running: Vec<_> = tasks
            .iter_mut()
            .enumerate()
            .map(|(number, task)| {
                let (own, barrier) = (of_task(number).collect::<Vec<_>>(), &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    let start = Instant::now();
                    let seed = seed * 1000 + number as u64;
                    task.swap(map, direction, &own, seed, || start.elapsed() >= time)
                })
            })
            .collect();
        barrier.wait();
        let start = Instant::now();
        let done: u64 = running.into_iter().map(|task| task.join().unwrap_or(0)).sum();
        done as f64 * PAGE_KIB / start.elapsed().as_secs_f64()
    })
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
        let pairs = self.of(swapper, direction).iter().zip(others.of(other, direction));
        median(pairs.map(|(one, other)| one / other).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extents::layout::{Layout, Lengths};
    use crate::extents::maps::Nodes;
    use std::cell::{Cell, RefCell};

    /// Remembers what it was asked for.
    struct Seen<'s>(&'s std::sync::Mutex<Vec<u64>>);

    impl Lookup for Seen<'_> {
        fn block(&self, page: u64) -> Option<u64> {
            self.0.lock().unwrap().push(page);
            Some(page)
        }
    }

    fn pages_asked_for(direction: Direction, clusters: &[u64]) -> Vec<u64> {
        let seen = std::sync::Mutex::default();
        let left = Cell::new(2000 / AT_ONCE);
        let task = RefCell::new(Task::new().unwrap());
        let end = || left.replace(left.get().saturating_sub(1)) == 0;
        let done = task.borrow_mut().swap(&Seen(&seen), direction, clusters, 5, end);
        let pages = seen.into_inner().unwrap();
        assert_eq!(pages.len() as u64, done);
        pages
    }

    #[test]
    fn pages_leave_cluster_by_cluster_and_come_back_in_any_order() {
        let clusters = [7, 3, 100];
        let out = pages_asked_for(Direction::Out, &clusters);
        let breaks = out.windows(2).filter(|pair| pair[0] + 1 != pair[1]).count();
        assert!((2..=out.len() / CLUSTER_SLOTS + 1).contains(&breaks), "{breaks}");
        let back = pages_asked_for(Direction::In, &clusters);
        let breaks = back.windows(2).filter(|pair| pair[0] + 1 != pair[1]).count();
        assert!(breaks > back.len() * 9 / 10, "{breaks}");
        for page in out.iter().chain(&back) {
            assert!(clusters.contains(&(page / CLUSTER_SLOTS as u64)), "{page}");
        }
    }

    #[test]
    fn every_swapper_moves_pages_both_ways() {
        let layout = Layout::made(50, 100_000, Lengths::Equal);
        let nodes = Nodes::of(&layout);
        let maps = Maps::new(&layout, &nodes).unwrap();
        let mut tasks = [Task::new().unwrap(), Task::new().unwrap()];
        let mut found = Throughputs::default();
        for (index, swapper) in SWAPPERS.into_iter().enumerate() {
            for direction in Direction::ALL {
                let time = Duration::from_millis(1);
                let kbps = throughput(&maps, swapper, direction, &mut tasks, time, 3);
                assert!(kbps > 0.0, "{swapper:?} {direction:?}");
                found.add(index, direction, kbps);
            }
        }
        assert_eq!(found.lookup_share(None, Direction::Out), 0.0);
    }
}
