//! Random programs: threads with phases of loops, scans, hot sets and random touches.

use super::recorded::{Content, Event, Recorded, WHOLE};
use crate::measure::noise::{below, noise, shuffled};

const PAGES: usize = 4096;
/// Touches of all threads, without the initial ones.
const TOUCHES: usize = 60 * PAGES;
const MAX_THREADS: u64 = 8;
const MAX_PHASES: u64 = 4;
const MAX_CONSECUTIVE: u64 = 64;
const SAME_KIND_PAGES: u64 = 256;
/// Same-filled, text and tables, small integers, numbers, random bytes.
const CONTENTS: [Content; 5] = [
    Content { lz4: 0, zstd: 0 },
    Content { lz4: 8, zstd: 5 },
    Content { lz4: 26, zstd: 17 },
    Content { lz4: 50, zstd: 40 },
    Content { lz4: WHOLE, zstd: WHOLE },
];

pub(super) struct Program {
    pub(super) recorded: Recorded,
    pub(super) memory_percent: usize,
    pub(super) threads: usize,
}

pub(super) fn program(seed: u64) -> Program {
    let mut numbers = noise(seed + 1);
    let mut random = |count| below(numbers.next().unwrap_or_default(), count);
    let threads = 1 + random(MAX_THREADS) as usize;
    let mut touches: Vec<_> = (0..threads)
        .map(|_| thread(&mut random, TOUCHES / threads).into_iter().peekable())
        .collect();
    let kinds: Vec<Content> =
        (0..3).map(|_| CONTENTS[random(CONTENTS.len() as u64) as usize]).collect();
    let mut events: Vec<Event> = Vec::with_capacity(PAGES + TOUCHES);
    let mut kind = kinds[0];
    let mut same_kind_left = 0;
    for page in 0..PAGES as u32 {
        if same_kind_left == 0 {
            (kind, same_kind_left) = (kinds[random(3) as usize], 1 + random(SAME_KIND_PAGES));
        }
        same_kind_left -= 1;
        events.push(Event::Touch { page, is_write: true, content: Some(kind) });
    }
    while !touches.is_empty() {
        let at = random(touches.len() as u64) as usize;
        let consecutive = 1 + random(MAX_CONSECUTIVE) as usize;
        events.extend(touches[at].by_ref().take(consecutive));
        if touches[at].peek().is_none() {
            drop(touches.swap_remove(at));
        }
    }
    let work_ns = [100, 500, 2_000, 10_000][random(4) as usize];
    let recorded = Recorded {
        pages: PAGES as u32,
        before: PAGES as u32,
        cpu_us: (TOUCHES * work_ns / 1000) as u32,
        events,
    };
    Program { recorded, memory_percent: 20 + random(70) as usize, threads }
}

/// `random` returns a number below its argument.
fn thread(random: &mut impl FnMut(u64) -> u64, count: usize) -> Vec<Event> {
    let phases = 1 + random(MAX_PHASES) as usize;
    let mut all = Vec::with_capacity(count);
    for _ in 0..phases {
        let pages = (PAGES / 20) + random((PAGES * 19 / 20) as u64) as usize;
        let first = random((PAGES - pages) as u64 + 1) as usize;
        let writes = [0, 0, 10, 30, 100][random(5) as usize];
        let each = count / phases;
        let seed = random(u64::MAX);
        let touches: Vec<usize> = match random(5) {
            0 => (0..pages).cycle().take(each).collect(),
            // Each page six times before the next.
            1 => (0..pages).cycle().flat_map(|page| [page; 6]).take(each).collect(),
            2 => {
                let order = shuffled(pages, seed);
                let hot = &order[..(pages * (1 + random(30) as usize) / 100).max(1)];
                mostly(hot, pages, each, seed).collect()
            }
            3 => zipf(pages, each, seed),
            _ => noise(seed).take(each).map(|it| below(it, pages as u64) as usize).collect(),
        };
        all.extend(touches.into_iter().map(|page| Event::Touch {
            page: (first + page) as u32,
            is_write: random(100) < writes,
            content: None,
        }));
    }
    all
}

/// Zipf distribution: the page of rank `n` is touched in proportion to `n` to the power of -0.99.
fn zipf(pages: usize, touches: usize, seed: u64) -> Vec<usize> {
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
    noise(seed + 4).take(touches).map(touch).collect()
}

fn mostly(
    hot: &[usize],
    pages: usize,
    touches: usize,
    seed: u64,
) -> impl Iterator<Item = usize> + '_ {
    noise(seed).take(touches).map(move |number| {
        // Independent decisions: each uses the upper bits of another product.
        let is_hot = below(number, 10) > 0;
        let number = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        match is_hot {
            true => hot[below(number, hot.len() as u64) as usize],
            false => below(number, pages as u64) as usize,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_generates_same_program_with_valid_pages() {
        for seed in 0..20 {
            let Program { recorded, memory_percent, threads } = program(seed);
            assert_eq!(program(seed).recorded, recorded);
            assert!((20..90).contains(&memory_percent) && (1..=8).contains(&threads));
            assert!(recorded.touches().iter().all(|page| *page < recorded.pages));
            assert!(recorded.events.len() > PAGES + TOUCHES - 40);
        }
    }
}
