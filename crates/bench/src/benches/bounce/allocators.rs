//! What a buffer costs by itself: taken and given back, beside a free list under
//! a lock and beside a lock-free queue.

use crate::measure::affinity::bind_to_cpu;
use crossbeam_queue::ArrayQueue;
use softswap_engine::store::bounce::{Pools, Shape};
use softswap_sys::raw::now_ns;
use std::io;
use std::sync::{Barrier, Mutex, PoisonError};

pub(super) const VARIANTS: [&str; 3] = ["softswap", "mutex", "queue"];
pub(super) const THREADS: [usize; 4] = [1, 2, 4, 8];
/// Buffers of each allocator.
const SLOTS: usize = 256;

/// Allocators of single pages.
pub(super) struct Allocators {
    pools: Pools,
    list: Mutex<Vec<u32>>,
    queue: ArrayQueue<u32>,
}

impl Allocators {
    pub(super) fn new(areas: usize) -> io::Result<Allocators> {
        let shape = Shape {
            areas,
            slots_per_area: SLOTS / areas.next_power_of_two(),
            reserve_slots: 0,
            extra_bytes: 0,
        };
        let queue = ArrayQueue::new(SLOTS);
        (0..SLOTS as u32).for_each(|slot| {
            let _ = queue.push(slot);
        });
        let list = Mutex::new((0..SLOTS as u32).collect());
        Ok(Allocators { pools: Pools::new(shape)?, list, queue })
    }

    /// ns for taking a page and giving it back, of `threads` threads at once.
    pub(super) fn measure(&self, variant: &str, threads: usize, times: u32) -> f64 {
        match variant {
            "softswap" => each(threads, times, |cpu| {
                std::hint::black_box(self.pools.take(cpu, 1));
            }),
            "mutex" => each(threads, times, |_| {
                let lock = || self.list.lock().unwrap_or_else(PoisonError::into_inner);
                let slot = lock().pop();
                if let Some(slot) = std::hint::black_box(slot) {
                    lock().push(slot);
                }
            }),
            _ => each(threads, times, |_| {
                if let Some(slot) = std::hint::black_box(self.queue.pop()) {
                    let _ = self.queue.push(slot);
                }
            }),
        }
    }
}

/// Time for one of `times` turns of all threads together, multiplied by the
/// processors at work: what a turn takes of a processor.
fn each(threads: usize, times: u32, turn: impl Fn(usize) + Sync) -> f64 {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from).min(threads);
    let barrier = Barrier::new(threads);
    let work = |thread: usize| {
        bind_to_cpu(thread);
        barrier.wait();
        let start = now_ns();
        (0..times).for_each(|_| turn(thread));
        (start, now_ns())
    };
    let spans: Vec<(u64, u64)> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn({
                    let work = &work;
                    move || work(thread)
                })
            })
            .collect();
        all.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    let first = spans.iter().map(|span| span.0).min().unwrap_or(0);
    let last = spans.iter().map(|span| span.1).max().unwrap_or(0);
    (last - first) as f64 * cpus as f64 / (threads as f64 * f64::from(times))
}
