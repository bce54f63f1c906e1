//! Estimates the time stalled with budgets of other sizes.
//!
//! A refault distance is the number of pages evicted between a page's eviction and its refault. The
//! model is a mixture of kinds of pages: randomly touched ones have exponentially distributed
//! distances, those of a loop nearly equal ones (Erlang distribution). Expectation maximization
//! (Dempster, Laird, Rubin, 1977) finds the most likely mixture. While `T` pages are evicted, of
//! the distance `d` only the share `1 - d / T` can be seen: the sample is truncated ([`Spell`]). A
//! kind's evicted pages follow from its refaults and the time that its pages stay out. A larger
//! budget keeps the shortest distances resident. A random kind saves the share of its pages that
//! fits; a loop saves less until all of it fits ([`LOOP_POWER`]).
//!
//! Touches of resident pages are not observed. For smaller budgets the coldest resident pages are
//! assumed to refault as often as the hottest evicted ones. The cost of first touches and of
//! same-filled pages, which take no space while evicted, is assumed constant.
//!
//! Each refault evicts a page; first touches cause the other evictions, whose waits shrink by the
//! part of memory that a larger budget holds. Disk reads hide evictions. If pages refault from the
//! pool at short intervals, eviction is the bottleneck ([`Curve::eviction_ns`]).

use crate::report::Report;
use softswap_engine::base::stats::{bucket_floor, bucket_of};
use std::collections::BTreeMap;

const KINDS_PER_OCTAVE: usize = 2;
const ROUNDS: usize = 200;
const MIN_RETURNS: u64 = 500;
const FULL: f64 = 0.85;
/// The refaults saved are this power of a loop's resident share (measured with the engine's clock).
const LOOP_POWER: f64 = 2.0;
const LOOP_SHAPE: usize = 8;
/// Initial weight, relative to a random kind.
const LOOP_LIKELY: f64 = 0.05;
/// Improvement of the mean log likelihood that justifies loops.
const LOOP_EXPLAINS: f64 = 0.15;
/// Correction factor for refaults after the end of the run.
const MAX_UNSEEN: f64 = 1.5;
const MAX_POOL: f64 = 0.8;
const NO_COMPRESSION_RATIO: f64 = 1e6;
/// Compressible share of the disk's pages at which the pool is full.
const FULL_POOL: f64 = 0.05;
/// Reads have a known cost up to this many times the observed ones; up to `FEW_FROM_DISK` do not
/// matter.
const MAX_FOR_OBSERVED: f64 = 10.0;
const FEW_FROM_DISK: f64 = 500.0;
const NOTABLE_SAVING: f64 = 0.1;
const PAGE_BYTES: f64 = softswap_sys::PAGE_SIZE as f64;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    pub share: f64,
    pub budget_bytes: u64,
    pub stalled_ns: f64,
    /// Enough pages were read from the disk to know the cost of a read.
    pub is_known: bool,
}

#[derive(Debug, Clone, Copy)]
struct Kind {
    is_loop: bool,
    /// Distance in pages.
    mean: f64,
    returns: [f64; FROM.len()],
    /// Evicted pages for each refault.
    pages: f64,
}

/// Where refaulting pages are stored; incompressible ones are on the disk.
const FROM: [&str; 3] = ["pool", "disk", "incompressible"];
const POOL: usize = 0;
const DISK: usize = 1;

impl Kind {
    fn all(&self) -> f64 {
        self.returns.iter().sum()
    }

    /// Returns the refaults saved if this share of pages becomes resident, or caused if it is
    /// evicted.
    fn gain(&self, share: f64) -> f64 {
        if self.is_loop { share.powf(LOOP_POWER) } else { share }
    }
}

#[derive(Debug)]
pub struct Curve {
    budget_bytes: u64,
    /// Shortest distances first.
    kinds: Vec<Kind>,
    resident_pages: f64,
    pool_bytes: f64,
    ratio: f64,
    pool_ns: f64,
    disk_ns: f64,
    /// Other waits while refaults evicted pages.
    other_ns: f64,
    /// Waits while first touches evicted pages.
    growth_ns: f64,
    mapped_bytes: f64,
    /// First touches and same-filled pages, the same with every budget.
    first_ns: f64,
    eviction_ns: f64,
    own_ns: f64,
    max_from_disk: f64,
}

impl Curve {
    /// `None` with too few refaults.
    #[must_use]
    pub fn of(report: &Report) -> Option<Curve> {
        let filled = report.faults_of("filled");
        let packed_share =
            share_of(report.faults_of("pool") as f64, (report.faults_of("pool") + filled) as f64);
        let seen = FROM.map(|from| -> Counts {
            // The pool's counter includes same-filled pages.
            let share = if from == FROM[POOL] { packed_share } else { 1.0 };
            let counts = report.returns.get(from).into_iter().flatten();
            counts.map(|(floor, count)| (*floor, (*count as f64 * share).round() as u64)).collect()
        });
        let count: u64 = seen.iter().flat_map(Counts::values).sum();
        if count < MIN_RETURNS || report.pages_out == 0 {
            return None;
        }
        let Pressure { resident_bytes, pool_bytes, pool_pages, disk_bytes } =
            under_pressure(report);
        // Stored copies of resident pages are not evicted pages.
        let copies = report.pool.copies.now() + report.areas.copies.now();
        let out_pages = (pool_pages + disk_bytes / PAGE_BYTES - copies as f64).max(0.0);
        let mean_ns = |tiers: &[&str]| {
            let count: u64 = tiers.iter().map(|tier| report.faults_of(tier)).sum();
            let waited: u64 = tiers.iter().map(|tier| report.waited_ns(tier)).sum();
            waited as f64 / count.max(1) as f64
        };
        let pool_ns = mean_ns(&["pool"]);
        let evicted = report.pages_out.saturating_sub(filled).max(count) as f64;
        let mut curve = Curve {
            budget_bytes: report.budget_bytes,
            kinds: kinds_of(&seen, evicted),
            resident_pages: resident_bytes / PAGE_BYTES,
            pool_bytes,
            ratio: report.compression_ratio.unwrap_or(NO_COMPRESSION_RATIO).max(1.0),
            pool_ns,
            disk_ns: mean_ns(&["disk", "standby"]).max(pool_ns),
            other_ns: 0.0,
            growth_ns: 0.0,
            mapped_bytes: report.mapped_peak_bytes as f64,
            first_ns: first_ns(report),
            eviction_ns: eviction_ns(report),
            own_ns: (report.wall_s - report.lost_s()).max(0.0) * 1e9,
            max_from_disk: MAX_FOR_OBSERVED * report.faults_of("disk") as f64,
        };
        // Pages read ahead refault without a wait. All kinds should add up to the evicted pages, of
        // which some may never refault.
        let ahead = 1.0 + report.pages_read_ahead as f64 / count as f64;
        let pages: f64 = curve.kinds.iter().map(|kind| kind.all() * kind.pages).sum();
        let scale = (out_pages / pages.max(1.0)).clamp(ahead, ahead * MAX_UNSEEN);
        curve.kinds.iter_mut().for_each(|kind| kind.pages *= scale);
        let estimated = curve.point(1.0, &curve.kinds);
        let other_ns = (report.stalled_ns as f64 - estimated.stalled_ns).max(0.0);
        curve.other_ns = other_ns * share_of((count + report.pages_read_ahead) as f64, evicted);
        curve.growth_ns = other_ns - curve.other_ns;
        Some(curve)
    }

    #[must_use]
    pub fn at(&self, share: f64) -> Point {
        let mut kinds = self.kinds.clone();
        let more = (share - 1.0) * self.budget_bytes as f64 / PAGE_BYTES;
        let pages =
            |from: usize| kinds.iter().map(|kind| kind.returns[from] * kind.pages).sum::<f64>();
        let (pooled, packs_on_disk) = (pages(POOL), pages(DISK));
        if packs_on_disk > FULL_POOL * (pooled + packs_on_disk) {
            // The pool is full and keeps its share.
            let resident = (share - 1.0) * self.resident_pages;
            let pool_room = (share - 1.0) * self.pool_bytes * self.ratio / PAGE_BYTES;
            let freed = Self::move_resident(&mut kinds, resident);
            Self::move_pooled(&mut kinds, pool_room + freed);
        } else {
            // All compressible pages are in the pool, and leave it when they become resident.
            let all = pooled + packs_on_disk + pages(2);
            let packed = pooled / all.max(1.0) / self.ratio;
            let freed = Self::move_resident(&mut kinds, more / (1.0 - packed).max(0.1));
            let most = MAX_POOL * share * self.budget_bytes as f64;
            let holds = self.pool_bytes - freed * PAGE_BYTES / self.ratio;
            Self::move_pooled(&mut kinds, ((most - holds) * self.ratio / PAGE_BYTES).min(0.0));
        }
        self.point(share, &kinds)
    }

    fn point(&self, share: f64, kinds: &[Kind]) -> Point {
        let sum = |of: &[Kind], from: usize| of.iter().map(|it| it.returns[from]).sum::<f64>();
        let all = |of: &[Kind]| of.iter().map(Kind::all).sum::<f64>();
        let from_pool = sum(kinds, POOL);
        let from_disk = all(kinds) - from_pool;
        let other_ns = self.other_ns * all(kinds) / all(&self.kinds).max(1.0);
        let waits_ns = from_pool * self.pool_ns + from_disk * self.disk_ns + other_ns;
        let evictions_ns = all(kinds) * self.eviction_ns - self.own_ns;
        let budget_bytes = self.budget_bytes as f64;
        let beyond_bytes = (self.mapped_bytes - budget_bytes * share).max(0.0);
        let growth_ns = match self.mapped_bytes > budget_bytes {
            true => self.growth_ns * beyond_bytes / (self.mapped_bytes - budget_bytes),
            false => self.growth_ns,
        };
        Point {
            share,
            budget_bytes: (self.budget_bytes as f64 * share) as u64,
            stalled_ns: waits_ns.max(evictions_ns) + self.first_ns + growth_ns,
            is_known: from_disk <= self.max_from_disk.max(FEW_FROM_DISK),
        }
    }

    pub fn points(&self) -> impl Iterator<Item = Point> {
        (4..=24).map(|eighths| self.at(f64::from(eighths) / 8.0)).filter(|point| point.is_known)
    }

    /// Share of the stalled time that a budget saves; negative if it costs time.
    #[must_use]
    pub fn spared(&self, share: f64) -> f64 {
        1.0 - self.at(share).stalled_ns / self.at(1.0).stalled_ns.max(1.0)
    }

    /// Returns a larger budget that saves at least half of the time stalled, and the share saved.
    /// `largest_bytes` replaces a larger one if it saves some of the time.
    #[must_use]
    pub fn halving(&self, largest_bytes: Option<u64>) -> Option<(u64, f64)> {
        let at = |share| (self.at(share), self.spared(share));
        let is_enough = |(point, spared): &(Point, f64), least| point.is_known && *spared >= least;
        let enough = [1.25, 1.5, 2.0, 3.0].map(at).into_iter().find(|it| is_enough(it, 0.5))?;
        let largest = largest_bytes.filter(|bytes| *bytes < enough.0.budget_bytes);
        let largest = largest.map(|bytes| at(bytes as f64 / self.budget_bytes.max(1) as f64));
        let (point, spared) = largest.filter(|it| is_enough(it, NOTABLE_SAVING)).unwrap_or(enough);
        Some((point.budget_bytes, spared))
    }

    #[must_use]
    pub fn in_words(&self, share: f64) -> String {
        let point = self.at(share);
        let budget = crate::units::bytes(point.budget_bytes);
        if !point.is_known {
            return format!(
                "with {budget}: unknown, because this run read too few pages from the disk to \
                 estimate their cost"
            );
        }
        let percent = (self.spared(share) * 100.0).round();
        let (percent, how) = if percent < 0.0 { (-percent, "more") } else { (percent, "less") };
        format!("with {budget} about {percent:.0} % {how} time stalled")
    }

    /// Subtracts refaults that more resident pages save, the hottest first; negative `more` adds
    /// them. Returns the pages that leave the pool.
    fn move_resident(kinds: &mut [Kind], more: f64) -> f64 {
        let (mut room, mut freed) = (more.abs(), 0.0);
        for kind in kinds {
            let pages = kind.all() * kind.pages;
            let share = share_of(room, pages);
            room -= pages * share;
            let pooled = kind.returns[POOL] * kind.pages * share;
            freed += pooled.copysign(more);
            let gain = kind.gain(share).copysign(more);
            kind.returns.iter_mut().for_each(|returns| *returns *= 1.0 - gain);
        }
        freed
    }

    /// Moves the hottest refaults from disk to pool, or the coldest from pool to disk.
    fn move_pooled(kinds: &mut [Kind], more: f64) {
        let (from, to) = if more >= 0.0 { (DISK, POOL) } else { (POOL, DISK) };
        let mut room = more.abs();
        let mut step = |kind: &mut Kind| {
            let pages = kind.returns[from] * kind.pages;
            let share = share_of(room, pages);
            room -= pages * share;
            let moved = kind.returns[from] * kind.gain(share);
            kind.returns[from] -= moved;
            kind.returns[to] += moved;
        };
        match more >= 0.0 {
            true => kinds.iter_mut().for_each(&mut step),
            false => kinds.iter_mut().rev().for_each(&mut step),
        }
    }
}

/// First touches without reclaim (at most the median each), and same-filled pages.
fn first_ns(report: &Report) -> f64 {
    let median_ns = report.faults.get("zero").and_then(|tier| tier.p50_ns).unwrap_or(0);
    let (waited_ns, count) = (report.waited_ns("zero"), report.faults_of("zero"));
    let touches_ns = (median_ns as f64 * count as f64).min(waited_ns as f64);
    (touches_ns + report.waited_ns("filled") as f64).min(report.stalled_ns as f64)
}

/// Per page: the waits of first touches beyond their median, over the evictions.
fn eviction_ns(report: &Report) -> f64 {
    let median_ns = report.faults.get("zero").and_then(|tier| tier.p50_ns).unwrap_or(0);
    let touches_ns = median_ns as f64 * report.faults_of("zero") as f64;
    let fitting = report.resident_peak_bytes;
    let evictions = report.mapped_peak_bytes.saturating_sub(fitting) as f64 / PAGE_BYTES;
    if evictions < MIN_RETURNS as f64 {
        return 0.0;
    }
    ((report.waited_ns("zero") as f64 - touches_ns) / evictions).max(0.0)
}

fn share_of(room: f64, pages: f64) -> f64 {
    if pages > 0.0 { (room / pages).clamp(0.0, 1.0) } else { 1.0 }
}

/// Averages while the budget was full.
struct Pressure {
    resident_bytes: f64,
    pool_bytes: f64,
    pool_pages: f64,
    disk_bytes: f64,
}

fn under_pressure(report: &Report) -> Pressure {
    let history = &report.history;
    let columns = &history.columns;
    let rows = columns.used_bytes.iter().zip(&columns.budget_bytes).enumerate();
    let is_full = |used: u64, budget: u64| budget > 0 && used as f64 > FULL * budget as f64;
    let full: Vec<usize> =
        rows.filter(|(_, (used, budget))| is_full(**used, **budget)).map(|(row, _)| row).collect();
    // Memory may have grown in the first half.
    let full = &full[full.len() / 2..];
    let mean = |column: &[u64], otherwise: u64| match full.len() {
        0 => otherwise as f64,
        rows => full.iter().filter_map(|row| column.get(*row)).sum::<u64>() as f64 / rows as f64,
    };
    Pressure {
        resident_bytes: mean(&columns.resident_bytes, report.resident_peak_bytes),
        pool_bytes: mean(&columns.pool_bytes, report.pool_peak_bytes),
        pool_pages: mean(&history.pool_pages, report.pool.stored_pages),
        disk_bytes: mean(&columns.disk_bytes, report.disk_peak_bytes),
    }
}

/// Refaults by the lower bound of each bucket.
type Counts = BTreeMap<u64, u64>;

struct Bucket {
    from: f64,
    to: f64,
    returns: [f64; FROM.len()],
}

fn buckets_of(seen: &[Counts; FROM.len()]) -> Vec<Bucket> {
    let mut floors: Vec<u64> = seen.iter().flat_map(Counts::keys).copied().collect();
    floors.sort_unstable();
    floors.dedup();
    let bucket = |floor: u64| Bucket {
        // Includes all shorter distances.
        from: if floor <= 4 { 0.0 } else { floor as f64 },
        to: bucket_floor(bucket_of(floor) + 1) as f64,
        returns: std::array::from_fn(|at| seen[at].get(&floor).copied().unwrap_or(0) as f64),
    };
    floors.into_iter().map(bucket).collect()
}

/// Probability that a sum of `shape` exponential times with a mean of 1 is at most `x`.
fn erlang(shape: usize, x: f64) -> f64 {
    let (mut term, mut sum) = (1.0, 1.0);
    for at in 1..shape {
        term *= x / at as f64;
        sum += term;
    }
    1.0 - sum * (-x).exp()
}

/// Time that a page is out, in a run that evicts `evicted` pages.
struct Spell {
    shape: usize,
    mean: f64,
    evicted: f64,
    /// Probability that a page evicted at any moment refaults before the end of the run.
    seen: f64,
}

impl Spell {
    fn of(kind: &Kind, evicted: f64) -> Spell {
        let (mean, shape) = (kind.mean, if kind.is_loop { LOOP_SHAPE } else { 1 });
        let step = mean / shape as f64;
        let out: f64 = (1..=shape).map(|shape| erlang(shape, evicted / step)).sum();
        Spell { shape, mean, evicted, seen: 1.0 - out * step / evicted }
    }

    /// Probability that an observed refault falls into the bucket.
    fn in_bucket(&self, bucket: &Bucket) -> f64 {
        let before = |left: f64| erlang(self.shape, left / self.mean * self.shape as f64);
        let middle = f64::midpoint(bucket.from, bucket.to).min(self.evicted);
        (before(bucket.to) - before(bucket.from)) * (1.0 - middle / self.evicted) / self.seen
    }

    /// Pages out at a time, for each refault that is seen.
    fn pages(&self) -> f64 {
        (1.0 - self.seen) / self.seen
    }
}

/// Returns the most likely mixture, shortest distances first. Loops must improve the fit clearly,
/// because more parameters always improve it a little.
fn kinds_of(seen: &[Counts; FROM.len()], evicted: f64) -> Vec<Kind> {
    let buckets = buckets_of(seen);
    let evicted = buckets.last().map_or(evicted, |bucket| evicted.max(bucket.to));
    let ((without, likely_without), (with, likely_with)) =
        (fit(&buckets, evicted, false), fit(&buckets, evicted, true));
    if likely_with - likely_without > LOOP_EXPLAINS { with } else { without }
}

/// Also returns the mean log likelihood of a refault.
fn fit(buckets: &[Bucket], evicted: f64, with_loops: bool) -> (Vec<Kind>, f64) {
    let most = buckets.last().map_or(1.0, |bucket| bucket.to).log2();
    let mut kinds: Vec<Kind> = (KINDS_PER_OCTAVE..=(most * KINDS_PER_OCTAVE as f64) as usize + 1)
        .flat_map(|at| {
            let mean = 2f64.powf(at as f64 / KINDS_PER_OCTAVE as f64);
            let returns = [0.0; FROM.len()];
            [false, true].map(|is_loop| Kind { is_loop, mean, returns, pages: 0.0 })
        })
        .filter(|kind| with_loops || !kind.is_loop)
        .collect();
    let spells: Vec<Spell> = kinds.iter().map(|kind| Spell::of(kind, evicted)).collect();
    kinds.iter_mut().zip(&spells).for_each(|(kind, spell)| kind.pages = spell.pages());
    let likely: Vec<Vec<f64>> = buckets
        .iter()
        .map(|bucket| spells.iter().map(|spell| spell.in_bucket(bucket)).collect())
        .collect();
    let all: f64 = buckets.iter().flat_map(|bucket| bucket.returns).sum();
    let start = |kind: &Kind| if kind.is_loop { LOOP_LIKELY } else { 1.0 };
    let mut weights: Vec<f64> = kinds.iter().map(start).collect();
    let parts = |weights: &[f64], at: usize| -> Vec<f64> {
        let each: Vec<f64> = weights.iter().zip(&likely[at]).map(|(w, p)| w * p).collect();
        let sum: f64 = each.iter().sum::<f64>().max(f64::MIN_POSITIVE);
        each.into_iter().map(|part| part / sum).collect()
    };
    for _ in 0..ROUNDS {
        let mut next = vec![0.0; kinds.len()];
        for (at, bucket) in buckets.iter().enumerate() {
            let share = bucket.returns.iter().sum::<f64>() / all;
            let parts = parts(&weights, at);
            next.iter_mut().zip(parts).for_each(|(sum, part)| *sum += share * part);
        }
        weights = next;
    }
    let mut log_likely = 0.0;
    for (at, bucket) in buckets.iter().enumerate() {
        let by_all: f64 = weights.iter().zip(&likely[at]).map(|(w, p)| w * p).sum();
        log_likely += bucket.returns.iter().sum::<f64>() / all * by_all.max(f64::MIN_POSITIVE).ln();
        for (kind, part) in kinds.iter_mut().zip(parts(&weights, at)) {
            kind.returns.iter_mut().zip(bucket.returns).for_each(|(sum, it)| *sum += it * part);
        }
    }
    (kinds, log_likely)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{History, Tier};

    const RESIDENT: u64 = 1000;
    const LEFT: u64 = 100_000;

    /// A run that waited 1 us for each refault from the pool.
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
            history: History::with_full_budget(bytes),
            ..Report::default()
        }
    }

    fn spared(report: &Report, share: f64) -> f64 {
        Curve::of(report).unwrap().spared(share)
    }

    /// Exponential distribution: many quantiles, once each.
    fn exponential(mean: f64, count: u64) -> impl Iterator<Item = f64> {
        (0..count).map(move |at| -mean * (1.0 - (at as f64 + 0.5) / count as f64).ln())
    }

    #[test]
    fn random_faults_fall_in_proportion_to_memory() {
        // As many pages are evicted as resident.
        let report = run(exponential(1000.0, LEFT));
        for (share, expected) in [(1.25, 0.25), (1.5, 0.5), (1.75, 0.75), (2.5, 1.0)] {
            let spared = spared(&report, share);
            assert!((spared - expected).abs() < 0.08, "{share}: {spared}");
        }
        // The next evicted pages are as many again.
        assert!((spared(&report, 0.75) + 0.25).abs() < 0.08);
    }

    #[test]
    fn loop_gains_only_if_it_fits() {
        let report = run((0..LEFT).map(|_| 2000.0));
        for (share, expected) in [(1.5, 0.06), (2.0, 0.25), (3.0, 1.0)] {
            let spared = spared(&report, share);
            assert!((spared - expected).abs() < 0.12, "{share}: {spared}");
        }
    }

    #[test]
    fn hot_pages_are_kept_first() {
        // 100 hot pages with half of all refaults, 5000 cold ones with the rest.
        let hot = exponential(200.0, LEFT / 2);
        let report = run(hot.chain(exponential(10_000.0, LEFT / 2)));
        let with_the_hot = spared(&report, 1.1);
        assert!((0.4..0.62).contains(&with_the_hot), "{with_the_hot}");
        assert!(spared(&report, 2.0) < 0.75);
    }

    #[test]
    fn waits_of_first_touches_shrink_with_memory_beyond_the_budget() {
        let refaults = run(exponential(1000.0, LEFT / 100));
        let bytes = refaults.budget_bytes;
        let report = Report { stalled_ns: 1 << 30, mapped_peak_bytes: 4 * bytes, ..refaults };
        for (share, expected) in [(2.0, 0.33), (3.0, 0.67), (4.0, 1.0)] {
            let spared = spared(&report, share);
            assert!((spared - expected).abs() < 0.02, "{share}: {spared}");
        }
    }

    #[test]
    fn more_memory_is_never_worse() {
        let report = run(exponential(300.0, 20_000).chain((0..20_000).map(|_| 5000.0)));
        let curve = Curve::of(&report).unwrap();
        let stalls: Vec<f64> = (2..16).map(|at| curve.at(f64::from(at) / 4.0).stalled_ns).collect();
        assert!(stalls.windows(2).all(|pair| pair[1] <= pair[0] * 1.0001), "{stalls:?}");
        assert!((curve.at(1.0).stalled_ns / report.stalled_ns as f64 - 1.0).abs() < 0.01);
        assert!(Curve::of(&run(exponential(10.0, 20))).is_none());
    }
}
