//! Synthetic access patterns for simulations.

use super::recorded::{Content, Event, Recorded};
use crate::measure::noise::{below, noise, shuffled};

/// Mean number of touches of each page.
const TOUCHES_PER_PAGE: usize = 100;
/// One touch in four is a write.
const WRITE_EVERY: u64 = 4;
/// Pages compress to 1,664 bytes with LZ4 and to 1,088 with zstd, like those of Python.
const CONTENT: Content = Content { lz4: 26, zstd: 17 };

type Pattern = fn(usize, u64) -> Vec<usize>;

const PATTERNS: [(&str, Pattern); 6] = [
    ("random", random),
    ("zipf", zipf),
    ("hot_set", hot_set),
    ("scan_and_hot_set", scan_and_hot_set),
    ("phases", phases),
    ("loop", |pages, _| (0..pages).cycle().take(pages * TOUCHES_PER_PAGE / 4).collect()),
];

/// Generates all patterns over `pages` pages, with their names.
pub(super) fn all(pages: usize, seed: u64) -> impl Iterator<Item = (String, Recorded)> {
    PATTERNS.into_iter().map(move |(name, pattern)| {
        let touches = pattern(pages, seed);
        let mut is_known = vec![false; pages];
        let event = |(page, number): (usize, u64)| {
            let is_first = !std::mem::replace(&mut is_known[page], true);
            let is_write = is_first || number.is_multiple_of(WRITE_EVERY);
            Event::Touch { page: page as u32, is_write, content: is_first.then_some(CONTENT) }
        };
        // One microsecond of CPU time per touch.
        let cpu_us = touches.len() as u32;
        let events = touches.into_iter().zip(noise(seed + 20)).map(event).collect();
        (name.into(), Recorded { pages: pages as u32, before: 0, cpu_us, events })
    })
}

fn random(pages: usize, seed: u64) -> Vec<usize> {
    noise(seed).take(pages * TOUCHES_PER_PAGE).map(|n| below(n, pages as u64) as usize).collect()
}

/// Zipf distribution: the page of rank `n` is touched in proportion to `n` to the power of -0.99.
pub(super) fn zipf(pages: usize, seed: u64) -> Vec<usize> {
    let ranks = shuffled(pages, seed);
    let mut sum = 0.0;
    let add = |rank: usize| {
        sum += (rank as f64).powf(-0.99);
        sum
    };
    let sums: Vec<f64> = (1..=pages).map(add).collect();
    let touch = |number: u64| {
        let at = (number >> 11) as f64 / (1_u64 << 53) as f64 * sum;
        ranks[sums.partition_point(|upper| *upper <= at).min(pages - 1)]
    };
    noise(seed + 4).take(pages * TOUCHES_PER_PAGE).map(touch).collect()
}

/// 90 % of the touches are to a random 10 % of the pages.
fn hot_set(pages: usize, seed: u64) -> Vec<usize> {
    let order = shuffled(pages, seed);
    let hot = &order[..(pages / 10).max(1)];
    mostly(hot, pages, pages * TOUCHES_PER_PAGE, seed + 5).collect()
}

pub(super) fn mostly(
    hot: &[usize],
    pages: usize,
    touches: usize,
    seed: u64,
) -> impl Iterator<Item = usize> + '_ {
    noise(seed).take(touches).map(move |number| {
        // Both decisions use the upper bits, of different products.
        let is_hot = below(number, 10) > 0;
        let number = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        match is_hot {
            true => hot[below(number, hot.len() as u64) as usize],
            false => below(number, pages as u64) as usize,
        }
    })
}

/// A scan of 90 % of the pages in order, with eight touches of a hot set, the other 10 %, after
/// each page.
fn scan_and_hot_set(pages: usize, seed: u64) -> Vec<usize> {
    let hot_pages = (pages / 10).max(1);
    let mut numbers = noise(seed + 6);
    let mut touches = Vec::new();
    for at in 0..pages * TOUCHES_PER_PAGE / 9 {
        touches.push(hot_pages + at % (pages - hot_pages));
        let hot = numbers.by_ref().take(8);
        touches.extend(hot.map(|number| below(number, hot_pages as u64) as usize));
    }
    touches
}

/// Six successive hot sets of 15 % of the pages.
fn phases(pages: usize, seed: u64) -> Vec<usize> {
    let order = shuffled(pages, seed);
    let each = pages * TOUCHES_PER_PAGE / 6;
    let sets = order.chunks(pages * 3 / 20).take(6).zip(seed + 7..);
    sets.flat_map(|(hot, seed)| mostly(hot, pages, each, seed)).collect()
}
