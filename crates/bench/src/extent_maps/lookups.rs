//! What one look-up takes.

use super::layout::Layout;
use super::maps::{Lookup, MapKind, Maps};
use crate::measure::noise::{below, noise};
use crate::measure::sample::{median, rotated, variation};
use serde::Serialize;
use std::time::{Duration, Instant};

/// Pages asked for, over and over: so many that no map stays in the first
/// cache because of them alone.
const QUERIES: usize = 1 << 16;
/// Look-ups between two looks at the clock.
const AT_ONCE: usize = 64;

/// Which pages are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QueryOrder {
    /// Any page of the area.
    Random,
    /// Any page of any extent: short extents are asked for as often as long ones.
    RandomExtent,
    /// One page after the other.
    Sequential,
}

impl QueryOrder {
    pub(crate) const ALL: [QueryOrder; 3] =
        [QueryOrder::Random, QueryOrder::RandomExtent, QueryOrder::Sequential];

    fn queries(self, layout: &Layout, seed: u64) -> Vec<u64> {
        let numbers = noise(seed).take(QUERIES);
        let mut fractions = noise(seed + 1);
        let first = noise(seed).next().map_or(0, |number| below(number, layout.pages));
        let page = |(at, number): (usize, u64)| match self {
            QueryOrder::Random => below(number, layout.pages),
            QueryOrder::RandomExtent => {
                let extent = layout.extents[below(number, layout.extents.len() as u64) as usize];
                let past = below(fractions.next().unwrap_or(0), extent.nr_pages);
                extent.start_page + past
            }
            QueryOrder::Sequential => (first + at as u64) % layout.pages,
        };
        numbers.enumerate().map(page).collect()
    }
}

/// Time of one look-up by order, in ns: medians over the rounds.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct LookupRow {
    pub(crate) variant: &'static str,
    pub(crate) random_ns: f64,
    pub(crate) random_extent_ns: f64,
    pub(crate) sequential_ns: f64,
    /// Of the random look-ups' rounds.
    pub(crate) cov: f64,
    pub(crate) bytes: u64,
    pub(crate) bytes_per_extent: f64,
}

/// Every variant and order over one layout, round by round, in ns.
#[derive(Debug, Default)]
pub(crate) struct Lookups {
    rounds: [[Vec<f64>; QueryOrder::ALL.len()]; MapKind::ALL.len()],
}

impl Lookups {
    /// One round: every variant answers the same queries.
    pub(crate) fn measure_round(&mut self, maps: &Maps<'_>, round: usize, time: Duration) {
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

    /// How many times as long `slow` takes as `fast`: the median over the rounds.
    pub(crate) fn over(&self, slow: MapKind, fast: MapKind, order: QueryOrder) -> f64 {
        let pairs = self.of(slow, order).iter().zip(self.of(fast, order));
        median(pairs.map(|(slow, fast)| slow / fast).collect())
    }

    pub(crate) fn rows(&self, maps: &Maps<'_>) -> Vec<LookupRow> {
        let row = |variant: MapKind| {
            let ns = |order| median(self.of(variant, order).to_vec());
            LookupRow {
                variant: variant.name(),
                random_ns: ns(QueryOrder::Random),
                random_extent_ns: ns(QueryOrder::RandomExtent),
                sequential_ns: ns(QueryOrder::Sequential),
                cov: variation(self.of(variant, QueryOrder::Random)),
                bytes: maps.bytes(variant),
                bytes_per_extent: maps.bytes_per_extent(variant),
            }
        };
        MapKind::ALL.into_iter().map(row).collect()
    }
}

/// What [`lookup_line`] prints, as the head of a table.
pub(crate) fn lookup_head() -> String {
    format!(
        "{:<10}{:>11}{:>8}{:>16}{:>15}{:>14}\n",
        "variant", "random ns", "CoV", "by extent ns", "sequential ns", "bytes/extent"
    )
}

pub(crate) fn lookup_line(row: &LookupRow) -> String {
    format!(
        "{:<10}{:>11.1}{:>6.1} %{:>16.1}{:>15.1}{:>14.1}\n",
        row.variant,
        row.random_ns,
        row.cov * 100.0,
        row.random_extent_ns,
        row.sequential_ns,
        row.bytes_per_extent
    )
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

#[cfg(test)]
mod tests {
    use super::super::layout::Lengths;
    use super::super::maps::Nodes;
    use super::*;

    #[test]
    fn queries_are_in_the_order_that_they_say() {
        let layout = Layout::made(1000, 1 << 20, Lengths::Bimodal);
        let short = layout.extents[499].start_page;
        let share_below_short = |order: QueryOrder| {
            let queries = order.queries(&layout, 3);
            assert!(queries.iter().all(|page| *page < layout.pages));
            queries.iter().filter(|page| **page < short).count() as f64 / QUERIES as f64
        };
        assert!(share_below_short(QueryOrder::Random) < 0.01);
        assert!((0.45..0.55).contains(&share_below_short(QueryOrder::RandomExtent)));
        let sequential = QueryOrder::Sequential.queries(&layout, 3);
        assert!(sequential.windows(2).all(|pair| (pair[0] + 1) % layout.pages == pair[1]));
    }

    #[test]
    fn every_round_gives_each_variant_a_figure() {
        let layout = Layout::made(100, 5000, Lengths::Skewed);
        let nodes = Nodes::of(&layout);
        let maps = Maps::new(&layout, &nodes).unwrap();
        let mut lookups = Lookups::default();
        for round in 0..2 {
            lookups.measure_round(&maps, round, Duration::from_micros(1));
        }
        let rows = lookups.rows(&maps);
        assert_eq!(rows.len(), 3);
        for row in rows {
            assert!(row.random_ns > 0.0 && row.random_extent_ns > 0.0 && row.sequential_ns > 0.0);
        }
        assert_eq!(maps.bytes(MapKind::List), 4000);
        assert!(maps.bytes_per_extent(MapKind::Softswap) <= 20.0);
    }
}
