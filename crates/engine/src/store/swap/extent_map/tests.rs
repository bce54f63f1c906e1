//! Tests of the map, alone and against an oracle.

use super::*;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn adjacent_extents_merge() {
    let map = ExtentMap::new(8).unwrap();
    map.append(0, 10, 100).unwrap();
    map.append(10, 5, 110).unwrap();
    assert_eq!(map.count(), 1);
    map.append(15, 5, 200).unwrap();
    assert_eq!((map.count(), map.pages()), (2, 20));
    assert_eq!(map.lookup(12), Ok(Mapping { block: 112, pages_left: 3 }));
    assert_eq!(map.lookup(15), Ok(Mapping { block: 200, pages_left: 5 }));
}

#[test]
fn page_outside_area_has_own_error() {
    let map = ExtentMap::new(8).unwrap();
    assert_eq!(map.lookup(0), Err(Unmapped { page: 0, pages: 0 }));
    map.append(0, 10, 0).unwrap();
    assert_eq!(map.lookup(10), Err(Unmapped { page: 10, pages: 10 }));
}

#[test]
fn invalid_extents_are_rejected_unchanged() {
    let map = ExtentMap::new(1).unwrap();
    map.append(0, 10, 50).unwrap();
    assert_eq!(map.append(11, 1, 0), Err(AppendError::NotAdjacent { start_page: 11, pages: 10 }));
    assert_eq!(map.append(9, 1, 0), Err(AppendError::NotAdjacent { start_page: 9, pages: 10 }));
    assert_eq!(map.append(10, 0, 0), Err(AppendError::BadLength));
    assert_eq!(map.append(10, 5, u64::MAX - 1), Err(AppendError::BadLength));
    assert_eq!(map.append(10, 1, 0), Err(AppendError::TooMany { limit: 1 }));
    assert_eq!((map.pages(), map.count()), (10, 1));
    map.append(10, 1, 60).unwrap();
}

#[test]
fn range_is_iterated_by_extent() {
    let map = ExtentMap::new(8).unwrap();
    for (start, nr_pages, block) in [(0, 10, 100), (10, 5, 300), (15, 20, 200)] {
        map.append(start, nr_pages, block).unwrap();
    }
    let walk = |first, nr_pages| map.pieces(first, nr_pages).collect::<Vec<_>>();
    let piece = |page, block, nr_pages| Ok(Piece { page, block, nr_pages });
    assert_eq!(walk(0, 35), [piece(0, 100, 10), piece(10, 300, 5), piece(15, 200, 20)]);
    assert_eq!(walk(8, 8), [piece(8, 108, 2), piece(10, 300, 5), piece(15, 200, 1)]);
    assert_eq!(walk(11, 2), [piece(11, 301, 2)]);
    assert_eq!(walk(11, 0), []);
    let beyond = |page| Err(Unmapped { page, pages: 35 });
    assert_eq!(walk(34, 2), [piece(34, 219, 1), beyond(35)]);
    assert_eq!(walk(40, u64::MAX), [beyond(40)]);
}

#[test]
fn iteration_follows_growth_and_shrinking() {
    let map = ExtentMap::new(8).unwrap();
    map.append(0, 10, 100).unwrap();
    let mut walk = map.pieces(0, 30);
    assert_eq!(walk.next(), Some(Ok(Piece { page: 0, block: 100, nr_pages: 10 })));
    map.append(10, 5, 300).unwrap();
    assert_eq!(walk.next(), Some(Ok(Piece { page: 10, block: 300, nr_pages: 5 })));
    map.remove_tail(3);
    assert_eq!(walk.next(), Some(Err(Unmapped { page: 15, pages: 3 })));
    assert_eq!(walk.next(), None);
}

type Lengths = fn(u64) -> u64;

const SHAPES: [(&str, Lengths); 6] = [
    ("equal", |_| 256),
    ("just over a power of two", |_| 257),
    ("single pages, then large ones", |n| if n < 5_000 { 1 } else { 1 << 18 }),
    ("large ones, then single pages", |n| if n < 5_000 { 1 << 18 } else { 1 }),
    ("every magnitude in turn", |n| 1 << (n % 19)),
    ("one large one among single pages", |n| if n == 5_000 { 1 << 30 } else { 1 }),
];

fn map_of(lengths: Lengths, count: u64) -> ExtentMap {
    let map = ExtentMap::new(count as usize).unwrap();
    for number in 0..count {
        let pages = map.pages();
        map.append(pages, lengths(number), pages + number).unwrap();
        assert!(map.metadata_bytes() <= 20 * (number + 1));
    }
    map
}

#[test]
fn hints_are_correct_and_use_four_bytes_per_extent() {
    for (name, lengths) in SHAPES {
        let map = map_of(lengths, 10_000);
        for keep in [10_000, 7_500, 5_001, 5_000, 4_999, 1, 0] {
            let pages = if keep < map.count() { map.start(keep) } else { map.pages() };
            map.remove_tail(pages);
            assert_eq!(map.count(), keep, "{name}");
            assert!(map.metadata_bytes() <= 20 * keep as u64, "{name}");
            for index in 0..keep {
                let extent = map.extent(index, pages, keep);
                for page in [extent.start, extent.start.midpoint(extent.end), extent.end - 1] {
                    let (first, candidates) = map.hints.candidates(page, pages, keep);
                    assert!((first..first + candidates).contains(&index), "{name}, page {page}");
                    let mapping =
                        Mapping { block: page + index as u64, pages_left: extent.end - page };
                    assert_eq!(map.lookup(page), Ok(mapping), "{name}");
                }
            }
        }
    }
}

#[test]
fn similar_extents_need_few_probes() {
    for (name, lengths) in &SHAPES[..2] {
        let map = map_of(*lengths, 10_000);
        let most = (0..map.pages())
            .step_by(97)
            .map(|page| map.hints.candidates(page, map.pages(), map.count()).1);
        assert!(most.max().unwrap() <= 4, "{name}");
    }
}

#[test]
fn wrong_hints_never_return_wrong_block() {
    let map = map_of(|number| 1 + number % 7, 1_000);
    for (lie, bucket) in (0..1_000).rev().zip(0..) {
        map.hints.set(bucket, lie);
    }
    for index in 0..1_000 {
        let page = map.start(index);
        assert_eq!(map.lookup(page).unwrap().block, page + index as u64);
    }
}

struct Chance(u64);

impl Chance {
    fn below(&mut self, count: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let number = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d);
        ((u128::from(number) * u128::from(count)) >> 64) as u64
    }
}

#[derive(Default)]
struct Oracle {
    extents: BTreeMap<u64, (u64, u64)>,
    pages: u64,
}

impl Oracle {
    fn append(&mut self, nr_pages: u64, block: u64) {
        match self.extents.last_entry() {
            Some(mut last) if last.get().0 + last.get().1 == block => last.get_mut().1 += nr_pages,
            _ => drop(self.extents.insert(self.pages, (block, nr_pages))),
        }
        self.pages += nr_pages;
    }

    fn remove_tail(&mut self, page: u64) {
        self.extents.split_off(&page);
        if let Some(mut last) = self.extents.last_entry() {
            let kept = (page - last.key()).min(last.get().1);
            last.get_mut().1 = kept;
        }
        self.pages = self.pages.min(page);
    }

    fn piece(&self, page: u64, most: u64) -> Piece {
        let (start, (block, nr_pages)) = self.extents.range(..=page).next_back().unwrap();
        let past = page - start;
        Piece { page, block: block + past, nr_pages: (nr_pages - past).min(most) }
    }

    fn next_block(&self) -> u64 {
        self.extents.last_key_value().map_or(0, |(_, (block, nr_pages))| block + nr_pages)
    }
}

#[test]
fn long_history_matches_model() {
    const STEPS: u32 = 3_000_000;
    const LIMIT: usize = 20_000;
    let (map, mut oracle, mut chance) =
        (ExtentMap::new(LIMIT).unwrap(), Oracle::default(), Chance(0x5eed));
    let (mut appended, mut most_extents) = (0_u32, 0);
    for step in 0..STEPS {
        match chance.below(1000) {
            0..100 if map.count() < LIMIT => {
                let nr_pages = 1 + chance.below(1 << (step / 5_000 * 7 % 19));
                let block = oracle.next_block() + chance.below(4);
                map.append(oracle.pages, nr_pages, block).unwrap();
                oracle.append(nr_pages, block);
                appended += 1;
            }
            100 if chance.below(20) == 0 => {
                let most = chance.below(1 + oracle.pages);
                let back = chance.below(1 + most);
                oracle.remove_tail(oracle.pages - back);
                map.remove_tail(oracle.pages);
            }
            101..120 if oracle.pages > 0 => {
                let first = chance.below(oracle.pages);
                let mut page = first;
                let end = oracle.pages.min(first + 1 + chance.below(1 << 16));
                for piece in map.pieces(first, end - first).take(50) {
                    assert_eq!(piece, Ok(oracle.piece(page, end - page)), "step {step}");
                    page += piece.unwrap().nr_pages;
                }
            }
            _ if oracle.pages > 0 => {
                let magnitude = chance.below(41);
                let back = chance.below(1 << magnitude).min(oracle.pages - 1);
                let page = oracle.pages - 1 - back;
                let Piece { block, nr_pages, .. } = oracle.piece(page, u64::MAX);
                let mapping = Mapping { block, pages_left: nr_pages };
                assert_eq!(map.lookup(page), Ok(mapping), "step {step}");
            }
            _ => assert!(map.lookup(chance.below(1 << 40)).is_err()),
        }
        assert_eq!(map.pages(), oracle.pages, "step {step}");
        assert_eq!(map.count(), oracle.extents.len(), "step {step}");
        most_extents = most_extents.max(map.count());
    }
    assert!(appended > STEPS / 20 && most_extents > 2_000, "{appended}, {most_extents}");
}

/// Extents of `LENGTH` pages, with a gap of one block after each, except every third.
fn stress_block(page: u64) -> u64 {
    const LENGTH: u64 = 5;
    let extent = page / LENGTH;
    page + extent - extent / 3
}

#[test]
fn lookups_are_correct_while_area_grows() {
    let map = ExtentMap::new(1 << 14).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for reader in 0..3_u64 {
            let (map, done) = (&map, &done);
            scope.spawn(move || {
                let mut chance = reader + 1;
                while !done.load(Ordering::Acquire) {
                    let pages = map.pages();
                    chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    // Half of the reads are close to the end, which moves.
                    let back = (chance >> 33)
                        % pages.clamp(1, if chance < 1 << 63 { 8 } else { u64::MAX });
                    let Some(page) = pages.checked_sub(1 + back) else {
                        continue;
                    };
                    let mapping = map.lookup(page).unwrap();
                    assert_eq!(mapping.block, stress_block(page));
                    let last = page + mapping.pages_left - 1;
                    assert!(mapping.pages_left > 0);
                    assert_eq!(stress_block(last) - mapping.block, last - page);
                }
            });
        }
        for extent in 0..20_000 {
            map.append(extent * 5, 5, stress_block(extent * 5)).unwrap();
        }
        done.store(true, Ordering::Release);
    });
    // Every third extent continued the one before it.
    assert_eq!(map.count(), 20_000 - 20_000 / 3);
}
