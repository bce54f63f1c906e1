//! What is measured: each workload, device and order, and each allocator by itself.

use super::allocators;
use super::tasks::{Ran, WORKLOADS, Workload};
use softswap_engine::store::bounce::Order;

/// The orders, the first one twice: what differs between those is noise.
pub(super) const ORDERS: [(&str, Order); 3] = [
    ("area_first", Order::AreaFirst),
    ("pool_first", Order::PoolFirst),
    ("area_first_again", Order::AreaFirst),
];

/// One workload, device and order, and what each round came to.
pub(super) struct Cell {
    pub(super) workload: Workload,
    pub(super) is_ram: bool,
    /// Which of [`ORDERS`].
    pub(super) variant: usize,
    pub(super) rounds: Vec<Ran>,
}

impl Cell {
    pub(super) fn all() -> Vec<Cell> {
        let mut cells = Vec::new();
        for is_ram in [true, false] {
            for workload in WORKLOADS {
                cells.extend((0..ORDERS.len()).map(|variant| Cell {
                    workload,
                    is_ram,
                    variant,
                    rounds: Vec::new(),
                }));
            }
        }
        cells
    }

    pub(super) fn order(&self) -> Order {
        ORDERS[self.variant].1
    }
}

/// One allocator with some threads, and what each round took, in ns.
pub(super) struct Alone {
    pub(super) variant: &'static str,
    pub(super) threads: usize,
    pub(super) rounds: Vec<f64>,
}

impl Alone {
    pub(super) fn all() -> Vec<Alone> {
        let with = |threads| {
            allocators::VARIANTS.map(|variant| Alone { variant, threads, rounds: Vec::new() })
        };
        allocators::THREADS.into_iter().flat_map(with).collect()
    }
}
