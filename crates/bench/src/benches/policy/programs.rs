//! Algorithms that are run over recording vectors, so that policies meet the
//! touches of real work. Each touches about as many pages as it is asked for.

use super::trace::{Recorded, Recorder, Trace};
use crate::measure::noise::{below, noise, shuffled};
use std::collections::VecDeque;

/// Records of 128 bytes.
const RECORDS: usize = 32;
/// Entries of 16 bytes.
const ENTRIES: usize = 256;
/// Nodes of 512 bytes: neighbours and a value.
const NODES: usize = 8;
const NEIGHBOURS: usize = 16;
/// Keys in a node of a tree that fills a page.
const KEYS: usize = 64;
/// Ranges shorter than this are sorted by insertion.
const SHORT: usize = 16;
/// Touches of each page on average, where nothing else says how many.
const TOUCHES_PER_PAGE: usize = 100;

/// What makes a trace of so many pages from a seed.
type Program = fn(&Recorder, usize, u64);

/// The programs that are recorded, by name.
const PROGRAMS: [(&str, Program); 11] = [
    ("merge_sort", |recorder, pages, seed| drop(merge_sort(recorder, pages, seed))),
    ("quick_sort", |recorder, pages, seed| drop(quick_sort(recorder, pages, seed))),
    ("hash_join", |recorder, pages, seed| {
        hash_join(recorder, pages, seed);
    }),
    ("graph_walk", graph_walk),
    ("graph_search", |recorder, pages, seed| {
        graph_search(recorder, pages, seed);
    }),
    ("btree", |recorder, pages, seed| {
        btree(recorder, pages, seed);
    }),
    ("zipf", zipf),
    ("hot_set", hot_set),
    ("scan_and_hot_set", scan_and_hot_set),
    ("phases", phases),
    ("loop", |recorder, pages, _| scan(recorder, pages)),
];

/// Whether a program has this name.
pub(super) fn has(name: &str) -> bool {
    PROGRAMS.iter().any(|(other, _)| *other == name)
}

/// The traces of all programs, recorded one by one.
pub(super) fn traces(pages: usize, seed: u64) -> impl Iterator<Item = Trace> {
    PROGRAMS.into_iter().map(move |(name, program)| {
        let recorder = Recorder::default();
        program(&recorder, pages, seed);
        recorder.finish(name)
    })
}

fn keys(count: usize, seed: u64) -> Vec<u64> {
    noise(seed).take(count).collect()
}

/// Bottom up, between two halves of the memory.
fn merge_sort(recorder: &Recorder, pages: usize, seed: u64) -> Recorded<'_, u64> {
    let count = pages / 2 * RECORDS;
    let mut from = recorder.vector(keys(count, seed), RECORDS);
    let mut to = recorder.vector(vec![0; count], RECORDS);
    for start in (0..count).step_by(SHORT) {
        insertion_sort(&mut from, start, (start + SHORT).min(count));
    }
    let mut width = SHORT;
    while width < count {
        for start in (0..count).step_by(2 * width) {
            let middle = (start + width).min(count);
            merge(&from, &mut to, start, middle, (middle + width).min(count));
        }
        std::mem::swap(&mut from, &mut to);
        width *= 2;
    }
    from
}

fn merge(
    from: &Recorded<'_, u64>,
    to: &mut Recorded<'_, u64>,
    start: usize,
    middle: usize,
    end: usize,
) {
    let (mut left, mut right) = (start, middle);
    for at in start..end {
        let is_left = right >= end || left < middle && from.get(left) <= from.get(right);
        let next = if is_left { &mut left } else { &mut right };
        to.set(at, from.get(*next));
        *next += 1;
    }
}

fn insertion_sort(items: &mut Recorded<'_, u64>, start: usize, end: usize) {
    for at in start + 1..end {
        let mut here = at;
        while here > start && items.get(here - 1) > items.get(here) {
            items.swap(here - 1, here);
            here -= 1;
        }
    }
}

/// Hoare's, with the middle as the pivot.
fn quick_sort(recorder: &Recorder, pages: usize, seed: u64) -> Recorded<'_, u64> {
    let mut items = recorder.vector(keys(pages * RECORDS, seed), RECORDS);
    let mut open = vec![(0, items.len())];
    while let Some((start, end)) = open.pop() {
        if end - start <= SHORT {
            insertion_sort(&mut items, start, end);
            continue;
        }
        let pivot = items.get(start + (end - 1 - start) / 2);
        let (mut low, mut high) = (start, end - 1);
        let split = loop {
            while items.get(low) < pivot {
                low += 1;
            }
            while items.get(high) > pivot {
                high -= 1;
            }
            if low >= high {
                break high + 1;
            }
            items.swap(low, high);
            (low, high) = (low + 1, high - 1);
        };
        open.extend([(split, end), (start, split)]);
    }
    items
}

/// One table is read into a hash table of half the memory, one is looked up in
/// it, each a quarter; returns how many were found.
fn hash_join(recorder: &Recorder, pages: usize, seed: u64) -> usize {
    let rows = pages / 4 * ENTRIES;
    let build = recorder.vector(keys(rows, seed), ENTRIES);
    let foreign = noise(seed + 1).take(rows).map(|number| build_row(number, rows));
    let foreign: Vec<usize> = foreign.collect();
    let probe = recorder.vector(foreign, ENTRIES);
    let mut table = recorder.vector(vec![0; pages / 2 * ENTRIES], ENTRIES);
    let slots = table.len();
    let slot_of = |key: u64| below(key.wrapping_mul(0x9e37_79b9_7f4a_7c15), slots as u64) as usize;
    for row in 0..rows {
        let key = build.get(row) | 1;
        let mut slot = slot_of(key);
        while table.get(slot) != 0 && table.get(slot) != key {
            slot = (slot + 1) % slots;
        }
        table.set(slot, key);
    }
    let mut found = 0;
    for row in 0..rows {
        // The key that the row refers to: it is in the row itself.
        let key = build.peek(probe.get(row)) | 1;
        let mut slot = slot_of(key);
        while !matches!(table.get(slot), 0) && table.get(slot) != key {
            slot = (slot + 1) % slots;
        }
        found += usize::from(table.get(slot) == key);
    }
    found
}

/// Which row another refers to: some are referred to more often than others.
fn build_row(number: u64, rows: usize) -> usize {
    let share = (number >> 11) as f64 / (1u64 << 53) as f64;
    (share * share * rows as f64) as usize
}

type Node = [u32; NEIGHBOURS];

/// Half of the edges lead to nodes near by, half to where many lead already.
fn graph(count: usize, seed: u64) -> Vec<Node> {
    let mut numbers = noise(seed);
    let mut targets: Vec<u32> = Vec::with_capacity(count * NEIGHBOURS / 2);
    let place = shuffled(count, seed);
    let mut nodes = vec![[0; NEIGHBOURS]; count];
    for (order, node) in place.iter().enumerate() {
        for (at, neighbour) in nodes[*node].iter_mut().enumerate() {
            let number = numbers.next().unwrap_or(0);
            *neighbour = if at % 2 == 0 {
                (node + count - 64 + below(number, 128) as usize) as u32 % count as u32
            } else if targets.is_empty() || number.is_multiple_of(4) {
                place[below(number, order as u64 + 1) as usize] as u32
            } else {
                targets[below(number, targets.len() as u64) as usize]
            };
            if at % 2 == 1 {
                targets.push(*neighbour);
            }
        }
    }
    nodes
}

/// From neighbour to neighbour, now and then from anywhere.
fn graph_walk(recorder: &Recorder, pages: usize, seed: u64) {
    let count = pages * NODES;
    let nodes = recorder.vector(graph(count, seed), NODES);
    let mut node = 0;
    for number in noise(seed + 2).take(pages * TOUCHES_PER_PAGE) {
        let neighbours = nodes.get(node);
        node = match number % 20 {
            0 => below(number, count as u64) as usize,
            _ => neighbours[below(number, NEIGHBOURS as u64) as usize] as usize,
        };
    }
}

/// Breadth first, from one node to all that can be reached; returns how many.
fn graph_search(recorder: &Recorder, pages: usize, seed: u64) -> usize {
    let count = pages * 3 / 4 * NODES;
    let nodes = recorder.vector(graph(count, seed), NODES);
    let mut distances = recorder.vector(vec![u32::MAX; count], pages_per(count, pages / 4));
    let mut queue = VecDeque::from([0]);
    let mut reached = 1;
    distances.set(0, 0);
    while let Some(node) = queue.pop_front() {
        let next = distances.get(node) + 1;
        for neighbour in nodes.get(node) {
            let neighbour = neighbour as usize;
            if distances.get(neighbour) == u32::MAX {
                distances.set(neighbour, next);
                queue.push_back(neighbour);
                reached += 1;
            }
        }
    }
    reached
}

/// Items in a page, so that `count` of them take `pages`.
fn pages_per(count: usize, pages: usize) -> usize {
    count.div_ceil(pages.max(1)).max(1)
}

/// Look-ups in a tree whose nodes are pages; 80 % ask for 20 % of the keys.
/// Returns how many keys were found.
fn btree(recorder: &Recorder, pages: usize, seed: u64) -> usize {
    let count = pages * (KEYS - 1) / KEYS * KEYS;
    let mut levels = vec![recorder.vector((0..count as u64).collect(), KEYS)];
    while levels.last().map_or(0, Recorded::len) > KEYS {
        let below = &levels[levels.len() - 1];
        let firsts = (0..below.len()).step_by(KEYS).map(|at| below.peek(at)).collect();
        levels.push(recorder.vector(firsts, KEYS));
    }
    let ranks = shuffled(count / KEYS, seed);
    let mut numbers = noise(seed + 3);
    let mut number = |most: usize| below(numbers.next().unwrap_or(0), most as u64) as usize;
    let mut found = 0;
    for _ in 0..pages * TOUCHES_PER_PAGE / 2 {
        let hot = (ranks.len() / 5).max(1);
        let rank = if number(10) < 8 { number(hot) } else { number(ranks.len()) };
        let key = (ranks[rank] * KEYS + number(KEYS)) as u64;
        let leaf = levels.iter().rev().fold(0, |node, level| {
            let end = ((node + 1) * KEYS).min(level.len());
            node * KEYS + last_not_above(level, node * KEYS, end, key)
        });
        found += usize::from(levels[0].peek(leaf) == key);
    }
    found
}

/// Where the last key is that is not above `key`, counted from `start`.
fn last_not_above(level: &Recorded<'_, u64>, start: usize, end: usize, key: u64) -> usize {
    let (mut low, mut high) = (start, end);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if level.get(middle) <= key { low = middle } else { high = middle }
    }
    level.get(low);
    low - start
}

/// The page of rank `n` is touched in proportion to `n` to the power of -0.99.
fn zipf(recorder: &Recorder, pages: usize, seed: u64) {
    let memory = recorder.vector(vec![0u8; pages], 1);
    let ranks = shuffled(pages, seed);
    let mut sum = 0.0;
    let sums: Vec<f64> = (1..=pages)
        .map(|rank| {
            sum += (rank as f64).powf(-0.99);
            sum
        })
        .collect();
    for number in noise(seed + 4).take(pages * TOUCHES_PER_PAGE) {
        let at = (number >> 11) as f64 / (1u64 << 53) as f64 * sum;
        let rank = sums.partition_point(|upper| *upper <= at).min(pages - 1);
        memory.get(ranks[rank]);
    }
}

/// 90 % of the touches go to 10 % of the pages, scattered over all.
fn hot_set(recorder: &Recorder, pages: usize, seed: u64) {
    let memory = recorder.vector(vec![0u8; pages], 1);
    let order = shuffled(pages, seed);
    let hot = &order[..(pages / 10).max(1)];
    touch_hot(&memory, hot, pages * TOUCHES_PER_PAGE, seed + 5);
}

fn touch_hot(memory: &Recorded<'_, u8>, hot: &[usize], touches: usize, seed: u64) {
    for number in noise(seed).take(touches) {
        // Both from the upper bits, of different products.
        let is_hot = below(number, 10) > 0;
        let number = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        memory.get(match is_hot {
            true => hot[below(number, hot.len() as u64) as usize],
            false => below(number, memory.len() as u64) as usize,
        });
    }
}

/// All pages in order, with eight touches of a hot set of 10 % between two.
fn scan_and_hot_set(recorder: &Recorder, pages: usize, seed: u64) {
    let hot_pages = (pages / 10).max(1);
    let hot = recorder.vector(vec![0u8; hot_pages], 1);
    let scanned = recorder.vector(vec![0u8; pages - hot_pages], 1);
    let mut numbers = noise(seed + 6);
    for at in 0..pages * TOUCHES_PER_PAGE / 9 {
        scanned.get(at % scanned.len());
        for number in numbers.by_ref().take(8) {
            hot.get(below(number, hot_pages as u64) as usize);
        }
    }
}

/// Six hot sets of 15 % of the pages, one after the other.
fn phases(recorder: &Recorder, pages: usize, seed: u64) {
    let memory = recorder.vector(vec![0u8; pages], 1);
    let order = shuffled(pages, seed);
    for (phase, hot) in order.chunks(pages * 3 / 20).take(6).enumerate() {
        touch_hot(&memory, hot, pages * TOUCHES_PER_PAGE / 6, seed + 7 + phase as u64);
    }
}

/// All pages in order, again and again.
fn scan(recorder: &Recorder, pages: usize) {
    let memory = recorder.vector(vec![0u8; pages], 1);
    for _ in 0..25 {
        (0..pages).for_each(|page| {
            memory.get(page);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES: usize = 64;

    #[test]
    fn the_programs_do_what_they_are_named_after() {
        let recorder = Recorder::default();
        for sorted in [merge_sort(&recorder, PAGES, 3), quick_sort(&recorder, PAGES, 3)] {
            assert!(sorted.items().is_sorted() && sorted.len() >= PAGES / 2 * RECORDS);
        }
        assert_eq!(hash_join(&recorder, PAGES, 3), PAGES / 4 * ENTRIES);
        assert_eq!(btree(&recorder, PAGES, 3), PAGES * TOUCHES_PER_PAGE / 2);
        assert!(graph_search(&recorder, PAGES, 3) > PAGES * 3 / 4 * NODES / 2);
    }

    #[test]
    fn traces_have_about_as_many_pages_as_asked_for_and_are_the_same_for_a_seed() {
        for (one, again) in traces(PAGES, 1).zip(traces(PAGES, 1)) {
            assert!(
                (PAGES * 9 / 10..=PAGES * 11 / 10).contains(&one.pages),
                "{}: {}",
                one.name,
                one.pages
            );
            assert!(one.touches.len() > 2 * PAGES, "{}", one.name);
            assert!(one == again, "{}", one.name);
        }
        let differ = traces(PAGES, 1).zip(traces(PAGES, 2)).filter(|(one, other)| one != other);
        assert_eq!(differ.count(), PROGRAMS.len() - 1, "all but the loop");
    }
}
