//! Current slabs: the slab of a class that a processor stores into.
//!
//! Processors that store into one slab contend for its lock. Therefore a class with many slabs has
//! several lanes, each with a current slab. The table contains hints only: a slab is checked under
//! its lock before use.

use super::class::CLASSES;
use super::list::NONE;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// One more lane for every 32 slabs, so at most 1/32 of them were opened only for a lane.
pub(super) const SLABS_PER_LANE: usize = 32;
/// Maximum number of lanes in the pool for each processor, in addition to one for each class.
const LANES_PER_CPU: usize = 4;
/// With more processors, several share a lane.
const MAX_LANES: usize = 32;

pub(super) struct Current {
    lanes: Box<[LaneSlabs]>,
    slabs_per_lane: usize,
}

#[repr(align(64))]
struct LaneSlabs([AtomicU32; CLASSES]);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lane {
    index: usize,
    count: usize,
}

impl Current {
    pub(super) fn new(cpus: usize, slabs_per_lane: usize) -> Current {
        let lane = |_| LaneSlabs([const { AtomicU32::new(NONE) }; CLASSES]);
        Current { lanes: (0..cpus.clamp(1, MAX_LANES)).map(lane).collect(), slabs_per_lane }
    }

    pub(super) fn lanes(&self, slabs: usize, pool_slabs: usize) -> usize {
        let share = pool_slabs / (self.lanes.len() * LANES_PER_CPU);
        (1 + slabs / self.slabs_per_lane.max(share)).min(self.lanes.len())
    }

    pub(super) fn lane(&self, cpu: usize, slabs: usize, pool_slabs: usize) -> Lane {
        let count = self.lanes(slabs, pool_slabs);
        Lane { index: cpu % count, count }
    }

    pub(super) fn get(&self, class: usize, lane: Lane) -> u32 {
        self.lanes[lane.index].0[class].load(Relaxed)
    }

    pub(super) fn set(&self, class: usize, lane: Lane, slab: u32) {
        self.lanes[lane.index].0[class].store(slab, Relaxed);
    }

    pub(super) fn is_current_elsewhere(&self, class: usize, lane: Lane, slab: u32) -> bool {
        (0..lane.count)
            .any(|index| index != lane.index && self.get(class, Lane { index, ..lane }) == slab)
    }

    pub(super) fn metadata_bytes(&self) -> usize {
        size_of_val(&*self.lanes)
    }
}

#[cfg(test)]
mod tests {
    use super::super::class::{CLASS, class_for};
    use super::super::{CompressedPool, PoolFull, SLAB_BYTES};
    use super::*;

    fn pool(slabs: usize, slabs_per_lane: usize) -> CompressedPool {
        CompressedPool::with_current(slabs * SLAB_BYTES, Current::new(3, slabs_per_lane)).unwrap()
    }

    #[test]
    fn lanes_grow_with_slabs_up_to_cpu_count() {
        let current = Current::new(3, 10);
        let lanes: Vec<_> =
            [0, 9, 10, 19, 20, 1000].map(|slabs| current.lanes(slabs, slabs)).into();
        assert_eq!(lanes, [1, 1, 2, 2, 3, 3]);
        assert_eq!(current.lane(5, 9, 9), current.lane(0, 9, 9));
        assert_ne!(current.lane(1, 10, 10), current.lane(0, 10, 10));
        assert_eq!(current.lane(3, 99, 99), current.lane(0, 99, 99));
    }

    #[test]
    fn small_class_has_one_lane() {
        let current = Current::new(2, 10);
        let lanes: Vec<_> = [60, 80, 500, 1000].map(|pool| current.lanes(60, pool)).into();
        assert_eq!(lanes, [2, 2, 1, 1]);
    }

    #[test]
    fn lane_count_is_bounded() {
        assert_eq!(Current::new(0, 1).lanes(1000, 1000), 1);
        assert_eq!(Current::new(1000, 1).lanes(1000, 1000), MAX_LANES);
    }

    #[test]
    fn current_slab_of_active_lane_is_not_shared() {
        let current = Current::new(2, 10);
        let [first, second] = [0, 1].map(|cpu| current.lane(cpu, 10, 10));
        current.set(4, second, 77);
        assert_eq!((current.get(4, second), current.get(4, first)), (77, NONE));
        assert!(
            current.is_current_elsewhere(4, first, 77)
                && !current.is_current_elsewhere(4, second, 77)
        );
        assert!(!current.is_current_elsewhere(5, first, 77), "the slab belongs to another class");
        assert!(!current.is_current_elsewhere(4, current.lane(0, 9, 9), 77));
    }

    #[test]
    fn processors_use_separate_slabs_if_enough() {
        let pool = pool(64, 8);
        let store = |cpu: usize| pool.store_from(cpu, &[1; 2000], 0, 0).unwrap().slab();
        assert_eq!(store(0), store(1), "there is only one slab");
        while pool.used_bytes() < 16 * SLAB_BYTES {
            store(0);
        }
        let slabs = [0, 1, 2].map(store);
        assert!(slabs[0] != slabs[1] && slabs[1] != slabs[2] && slabs[0] != slabs[2], "{slabs:?}");
        assert_eq!([0, 1, 2].map(store), slabs);
    }

    #[test]
    fn full_pool_fills_other_lanes_slabs() {
        let pool = pool(40, 1);
        let cpus =
            (0..40 * CLASS[class_for(2000)].slots).map(|at| if at < 900 { at % 3 } else { 1 });
        for cpu in cpus {
            assert!(pool.store_from(cpu, &[1; 2000], 0, 0).is_ok());
        }
        assert_eq!(pool.store_from(1, &[1; 2000], 0, 0), Err(PoolFull));
    }
}
