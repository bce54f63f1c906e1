//! What one look-up takes.

use super::layout::Layout;
use super::maps::{Lookup, MapKind, Maps};
use crate::measure::noise::{below, noise};
use crate::measure::sample::{median, over, rotated, variation};
use serde::Serialize;
use std::time::{Duration, Instant};

/// Pages asked for, over and over: so many that no map stays in the first
/// cache because of them alone.
const QUERIES: usize = 1 << 16;
/// Look-ups between two looks at the clock.
const AT_ONCE: usize = 64;

/// Which pages are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum QueryOrder {
    /// Any page of the area.
    Random,
    /// One page after the other.
    Sequential,
}

impl QueryOrder {
    const ALL: [QueryOrder; 2] = [QueryOrder::Random, QueryOrder::Sequential];

    fn queries(self, layout: &Layout, seed: u64) -> Vec<u64> {
        let numbers = noise(seed).take(QUERIES);
        let first = noise(seed).next().map_or(0, |number| below(number, layout.pages));
        let page = |(at, number): (usize, u64)| match self {
            QueryOrder::Random => below(number, layout.pages),
            QueryOrder::Sequential => (first + at as u64) % layout.pages,
        };
        numbers.enumerate().map(page).collect()
    }
}

/// Time of one look-up by order, in ns: medians over the rounds.
#[derive(Debug, Clone, Serialize)]
pub(super) struct LookupRow {
    pub(super) variant: &'static str,
    pub(super) random_ns: f64,
    pub(super) sequential_ns: f64,
    /// Of the random look-ups' rounds.
    pub(super) cov: f64,
    pub(super) bytes: u64,
    pub(super) bytes_per_extent: f64,
}

/// Every variant and order over one layout, round by round, in ns.
#[derive(Debug, Default)]
pub(super) struct Lookups {
    rounds: [[Vec<f64>; QueryOrder::ALL.len()]; MapKind::ALL.len()],
}

impl Lookups {
    /// One round: every variant answers the same queries.
    pub(super) fn measure_round(&mut self, maps: &Maps<'_>, round: usize, time: Duration) {
        for (at, order) in QueryOrder::ALL.into_iter().enumerate() {
            let queries = order.queries(maps.layout, 1 + round as u64);
            for index in rotated(MapKind::ALL.len(), round) {
                let ns = match MapKind::ALL[index] {
                    MapKind::List => nanoseconds(&maps.list, &queries, time),
                    MapKind::RbTree => nanoseconds(&maps.tree, &queries, time),
                    MapKind::Softswap => nanoseconds(&maps.softswap, &queries, time),
                };
                self.rounds[index][at].push(ns);
            }
        }
    }

    fn of(&self, variant: MapKind, order: QueryOrder) -> &[f64] {
        &self.rounds[variant as usize][order as usize]
    }

    /// How many times as long a random look-up takes as in softswap's map.
    pub(super) fn over_softswap(&self, rival: MapKind) -> f64 {
        let of = |map| self.of(map, QueryOrder::Random);
        over(of(rival), of(MapKind::Softswap))
    }

    pub(super) fn rows(&self, maps: &Maps<'_>) -> Vec<LookupRow> {
        let row = |variant: MapKind| {
            let ns = |order| median(self.of(variant, order).to_vec());
            LookupRow {
                variant: variant.name(),
                random_ns: ns(QueryOrder::Random),
                sequential_ns: ns(QueryOrder::Sequential),
                cov: variation(self.of(variant, QueryOrder::Random)),
                bytes: maps.bytes(variant),
                bytes_per_extent: maps.bytes_per_extent(variant),
            }
        };
        MapKind::ALL.into_iter().map(row).collect()
    }
}

/// Time of a look-up, from `time` of them one after the other.
fn nanoseconds(map: &impl Lookup, queries: &[u64], time: Duration) -> f64 {
    let start = Instant::now();
    let mut done = 0;
    let mut sum = 0_u64;
    for queries in queries.chunks(AT_ONCE).cycle() {
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
