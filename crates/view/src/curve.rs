//! What another budget would have done: the time stalled, by the size of the budget.
//!
//! Of each page that came back it is known how many had left since it did. Pages of one kind,
//! touched at random, come back after times that are distributed exponentially; memory is a
//! mixture of kinds, some of which come back soon, and some late. Which mixture makes what was
//! seen most likely is found by expectation and maximisation (Dempster, Laird, Rubin, 1977). A
//! kind that comes back `n` times in the `T` pages that left, after `m` of them each time, has
//! `n * m / T` pages. With room for more, those of the kinds that come back soonest had stayed:
//! of a kind, as many of the returns are spared as there is room for of its pages. So a loop, too,
//! gains by what more of it stays, as the engine's clock keeps a part of one.
//!
//! Of less memory nothing is seen, as resident pages are not told when they are touched. The
//! coldest ones are taken to come back as often as the hottest that are out: that is what they
//! border on.

use crate::report::Report;
use std::collections::BTreeMap;

/// Kinds an octave of distances.
const KINDS_PER_OCTAVE: usize = 2;
const ROUNDS: usize = 200;
/// With fewer returns nothing is said.
const LEAST_RETURNS: u64 = 500;
/// A program is under pressure while it uses so much of its budget.
const FULL: f64 = 0.85;
const PAGE_BYTES: f64 = softswap_sys::PAGE_SIZE as f64;

/// What there would have been within another budget.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Of the budget that there was.
    pub share: f64,
    pub budget_bytes: u64,
    pub stalled_ns: f64,
}

/// Pages that come back about equally soon.
#[derive(Debug, Clone, Copy)]
struct Kind {
    /// How many leave meanwhile, on average.
    mean: f64,
    /// Returns from the pool, and from the disk.
    from_pool: f64,
    from_disk: f64,
}

impl Kind {
    fn returns(&self) -> f64 {
        self.from_pool + self.from_disk
    }
}

/// What the curve is computed from.
#[derive(Debug)]
pub struct Curve {
    budget_bytes: u64,
    /// Those that come back soonest first.
    kinds: Vec<Kind>,
    /// Pages for each return of a mean of one.
    pages: f64,
    resident_pages: f64,
    pool_pages: f64,
    /// The share of pages that pack.
    packs: f64,
    /// What a return costs, from the pool and from the disk.
    pool_ns: f64,
    disk_ns: f64,
    /// What was waited for besides.
    other_ns: f64,
}

impl Curve {
    /// Of a run; `None` where too little came back to tell.
    #[must_use]
    pub fn of(report: &Report) -> Option<Curve> {
        let [pool, disk] = ["pool", "disk"].map(|tier| {
            report
                .returns
                .get(tier)
                .map(|buckets| buckets.iter().copied().collect())
                .unwrap_or_default()
        });
        let seen: u64 =
            [&pool, &disk].iter().flat_map(|it: &&BTreeMap<u64, u64>| it.values()).sum();
        if seen < LEAST_RETURNS || report.pages_out == 0 {
            return None;
        }
        // What is read ahead comes back, too, and nobody waits for it.
        let ahead = 1.0 + report.pages_read_ahead as f64 / seen as f64;
        let (resident, pool_bytes) = under_pressure(report);
        let packed = report.pages_pooled + report.pages_incompressible;
        let mean_ns = |tiers: &[&str]| {
            let count: u64 = tiers.iter().map(|tier| report.faults_of(tier)).sum();
            let waited: u64 = tiers.iter().map(|tier| report.waited_ns(tier)).sum();
            waited as f64 / count.max(1) as f64
        };
        let (pool_ns, disk_ns) = (mean_ns(&["pool", "filled"]), mean_ns(&["disk", "standby"]));
        let kinds = kinds_of(&pool, &disk);
        let sum = |of: fn(&Kind) -> f64| kinds.iter().map(of).sum::<f64>();
        let told_ns = sum(|it| it.from_pool) * pool_ns + sum(|it| it.from_disk) * disk_ns;
        Some(Curve {
            budget_bytes: report.budget_bytes,
            pages: ahead / report.pages_out as f64,
            resident_pages: resident / PAGE_BYTES,
            pool_pages: pool_bytes * report.compression_ratio.unwrap_or(1.0) / PAGE_BYTES,
            packs: report.pages_pooled as f64 / packed.max(1) as f64,
            pool_ns,
            disk_ns: disk_ns.max(pool_ns),
            other_ns: (report.stalled_ns as f64 - told_ns).max(0.0),
            kinds,
        })
    }

    /// Within a budget of that share of what there was.
    #[must_use]
    pub fn at(&self, share: f64) -> Point {
        let room = (share - 1.0) * self.resident_pages;
        let mut left = self.kinds.clone();
        let before: f64 = left.iter().map(Kind::returns).sum();
        // Room in the pool that there would be, or would be missing.
        let mut pool_room = (share - 1.0) * self.pool_pages;
        if room >= 0.0 {
            pool_room += self.spare(&mut left, room);
        } else {
            pool_room -= self.add(&mut left, -room);
        }
        if pool_room >= 0.0 {
            self.move_to_pool(&mut left, pool_room);
        } else {
            self.move_to_disk(&mut left, -pool_room);
        }
        let after: f64 = left.iter().map(Kind::returns).sum();
        let of = |value: fn(&Kind) -> f64, ns: f64| left.iter().map(value).sum::<f64>() * ns;
        let stalled_ns = of(|it| it.from_pool, self.pool_ns)
            + of(|it| it.from_disk, self.disk_ns)
            + self.other_ns * after / before.max(1.0);
        let budget_bytes = (self.budget_bytes as f64 * share) as u64;
        Point { share, budget_bytes, stalled_ns }
    }

    /// The pages that so many returns of a kind stand for.
    fn pages_of(&self, returns: f64, mean: f64) -> f64 {
        returns * mean * self.pages
    }

    /// Takes off what so many more resident pages spare; how many of them were in the pool.
    fn spare(&self, kinds: &mut [Kind], room: f64) -> f64 {
        let (mut room, mut from_pool) = (room, 0.0);
        for kind in kinds {
            let pages = self.pages_of(kind.returns(), kind.mean);
            let part = share_of(room, pages);
            from_pool += self.pages_of(kind.from_pool, kind.mean) * part;
            room -= pages * part;
            kind.from_pool *= 1.0 - part;
            kind.from_disk *= 1.0 - part;
        }
        from_pool
    }

    /// Adds what so many fewer resident pages cost, as if they came back as the hottest that are
    /// out; how many of them there are for the pool.
    fn add(&self, kinds: &mut [Kind], missing: f64) -> f64 {
        let (mut missing, mut for_pool) = (missing, 0.0);
        for kind in kinds {
            let pages = self.pages_of(kind.returns(), kind.mean);
            let part = share_of(missing, pages);
            missing -= pages * part;
            let has_pool = self.pool_pages > 0.0 || kind.from_pool > 0.0;
            let more = kind.returns() * part;
            let packed = if has_pool { more * self.packs } else { 0.0 };
            for_pool += self.pages_of(packed, kind.mean);
            kind.from_pool += packed;
            kind.from_disk += more - packed;
        }
        for_pool
    }

    /// What the pool has more room for need not come from the disk.
    fn move_to_pool(&self, kinds: &mut [Kind], room: f64) {
        let mut room = room;
        for kind in kinds {
            let packed = kind.from_disk * self.packs;
            let pages = self.pages_of(packed, kind.mean);
            let part = share_of(room, pages);
            room -= pages * part;
            kind.from_disk -= packed * part;
            kind.from_pool += packed * part;
        }
    }

    /// What the pool has less room for has to, the coldest first.
    fn move_to_disk(&self, kinds: &mut [Kind], missing: f64) {
        let mut missing = missing;
        for kind in kinds.iter_mut().rev() {
            let pages = self.pages_of(kind.from_pool, kind.mean);
            let part = share_of(missing, pages);
            missing -= pages * part;
            let moved = kind.from_pool * part;
            kind.from_pool -= moved;
            kind.from_disk += moved;
        }
    }
}

/// The part of so many pages for which there is room.
fn share_of(room: f64, pages: f64) -> f64 {
    if pages > 0.0 { (room / pages).clamp(0.0, 1.0) } else { 1.0 }
}

/// What was resident and in the pool, on average, while the budget was full.
fn under_pressure(report: &Report) -> (f64, f64) {
    let history = &report.history;
    let rows = history.used_bytes.iter().zip(&history.budget_bytes);
    let full: Vec<usize> = rows
        .enumerate()
        .filter(|(_, (used, budget))| **budget > 0 && **used as f64 > FULL * **budget as f64)
        .map(|(row, _)| row)
        .collect();
    let mean = |column: &[u64], otherwise: u64| match full.len() {
        0 => otherwise as f64,
        rows => full.iter().filter_map(|row| column.get(*row)).sum::<u64>() as f64 / rows as f64,
    };
    (
        mean(&history.resident_bytes, report.resident_peak_bytes),
        mean(&history.pool_bytes, report.pool_peak_bytes),
    )
}

/// The kinds of pages that make these returns most likely: how many came back from the pool and
/// from the disk, by the least distance of each bucket.
fn kinds_of(pool: &BTreeMap<u64, u64>, disk: &BTreeMap<u64, u64>) -> Vec<Kind> {
    struct Bucket {
        from: f64,
        to: f64,
        pool: f64,
        disk: f64,
    }
    let mut floors: Vec<u64> = pool.keys().chain(disk.keys()).copied().collect();
    floors.sort_unstable();
    floors.dedup();
    let count = |of: &BTreeMap<u64, u64>, floor| of.get(&floor).copied().unwrap_or(0) as f64;
    let bucket = |floor: &u64| Bucket {
        // The first one has all that came back at once.
        from: if *floor <= 4 { 0.0 } else { *floor as f64 },
        to: softswap_engine::base::stats::bucket_floor(
            softswap_engine::base::stats::bucket_of(*floor) + 1,
        ) as f64,
        pool: count(pool, *floor),
        disk: count(disk, *floor),
    };
    let buckets: Vec<Bucket> = floors.iter().map(bucket).collect();
    let most = buckets.last().map_or(1.0, |bucket| bucket.to).log2();
    let means: Vec<f64> = (KINDS_PER_OCTAVE..=(most * KINDS_PER_OCTAVE as f64) as usize + 1)
        .map(|at| 2f64.powf(at as f64 / KINDS_PER_OCTAVE as f64))
        .collect();
    let likely: Vec<Vec<f64>> = buckets
        .iter()
        .map(|bucket| {
            let of = |mean: &f64| (-bucket.from / mean).exp() - (-bucket.to / mean).exp();
            means.iter().map(of).collect()
        })
        .collect();
    let all: f64 = buckets.iter().map(|bucket| bucket.pool + bucket.disk).sum();
    let mut weights = vec![1.0 / means.len() as f64; means.len()];
    let parts = |weights: &[f64], at: usize| -> Vec<f64> {
        let each: Vec<f64> = weights.iter().zip(&likely[at]).map(|(w, p)| w * p).collect();
        let sum: f64 = each.iter().sum::<f64>().max(f64::MIN_POSITIVE);
        each.into_iter().map(|part| part / sum).collect()
    };
    for _ in 0..ROUNDS {
        let mut next = vec![0.0; means.len()];
        for (at, bucket) in buckets.iter().enumerate() {
            let seen = (bucket.pool + bucket.disk) / all;
            let parts = parts(&weights, at);
            next.iter_mut().zip(parts).for_each(|(sum, part)| *sum += seen * part);
        }
        weights = next;
    }
    let mut kinds: Vec<Kind> =
        means.iter().map(|mean| Kind { mean: *mean, from_pool: 0.0, from_disk: 0.0 }).collect();
    for (at, bucket) in buckets.iter().enumerate() {
        for (kind, part) in kinds.iter_mut().zip(parts(&weights, at)) {
            kind.from_pool += bucket.pool * part;
            kind.from_disk += bucket.disk * part;
        }
    }
    kinds
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{History, Tier};
    use softswap_engine::base::stats::{bucket_floor, bucket_of};

    const RESIDENT: u64 = 1000;
    const LEFT: u64 = 100_000;

    /// A run that waited a microsecond for each return from the pool, at these distances.
    fn run(distances: impl Iterator<Item = f64>) -> Report {
        let mut pool = BTreeMap::<u64, u64>::new();
        for distance in distances {
            *pool.entry(bucket_floor(bucket_of(distance as u64))).or_default() += 1;
        }
        let count: u64 = pool.values().sum();
        let bytes = RESIDENT * PAGE_BYTES as u64;
        Report {
            budget_bytes: bytes,
            pages_out: LEFT,
            pages_pooled: LEFT,
            stalled_ns: count * 1000,
            returns: [("pool".to_string(), pool.into_iter().collect())].into(),
            faults: [("pool".to_string(), Tier { count, ..Tier::default() })].into(),
            latencies: [("pool".to_string(), vec![(900, count)])].into(),
            history: History {
                budget_bytes: vec![bytes],
                used_bytes: vec![bytes],
                resident_bytes: vec![bytes],
                pool_bytes: vec![0],
                ..History::default()
            },
            ..Report::default()
        }
    }

    fn spared(report: &Report, share: f64) -> f64 {
        let curve = Curve::of(report).unwrap();
        1.0 - curve.at(share).stalled_ns / curve.at(1.0).stalled_ns
    }

    /// Times that are distributed exponentially, each of many quantiles once.
    fn exponential(mean: f64, count: u64) -> impl Iterator<Item = f64> {
        (0..count).map(move |at| -mean * (1.0 - (at as f64 + 0.5) / count as f64).ln())
    }

    #[test]
    fn pages_touched_at_random_are_spared_by_the_share_for_which_there_is_room() {
        // As many pages out as are resident.
        let report = run(exponential(1000.0, LEFT));
        for (share, expected) in [(1.25, 0.25), (1.5, 0.5), (1.75, 0.75), (2.5, 1.0)] {
            let spared = spared(&report, share);
            assert!((spared - expected).abs() < 0.08, "{share}: {spared}");
        }
        // And those that had to leave are as many again.
        assert!((spared(&report, 0.75) + 0.25).abs() < 0.08);
    }

    #[test]
    fn a_loop_is_spared_what_stays_of_it() {
        let report = run((0..LEFT).map(|_| 2000.0));
        for (share, expected) in [(1.5, 0.25), (2.0, 0.5), (3.0, 1.0)] {
            let spared = spared(&report, share);
            assert!((spared - expected).abs() < 0.12, "{share}: {spared}");
        }
    }

    #[test]
    fn hot_pages_come_first() {
        // A hundred hot ones with half of all returns, five thousand cold ones with the rest.
        let hot = exponential(200.0, LEFT / 2);
        let report = run(hot.chain(exponential(10_000.0, LEFT / 2)));
        let with_the_hot = spared(&report, 1.1);
        assert!((0.4..0.62).contains(&with_the_hot), "{with_the_hot}");
        assert!(spared(&report, 2.0) < 0.75);
    }

    #[test]
    fn more_memory_is_never_worse_and_too_little_says_nothing() {
        let report = run(exponential(300.0, 20_000).chain((0..20_000).map(|_| 5000.0)));
        let curve = Curve::of(&report).unwrap();
        let stalls: Vec<f64> = (2..16).map(|at| curve.at(f64::from(at) / 4.0).stalled_ns).collect();
        assert!(stalls.windows(2).all(|pair| pair[1] <= pair[0] * 1.0001), "{stalls:?}");
        assert!((curve.at(1.0).stalled_ns / report.stalled_ns as f64 - 1.0).abs() < 0.01);
        assert!(Curve::of(&run(exponential(10.0, 20))).is_none());
    }
}
