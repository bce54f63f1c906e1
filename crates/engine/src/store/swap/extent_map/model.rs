//! Loom models of concurrent growth, shrinking and look-ups.

use super::*;
use loom::sync::Arc;
use loom::thread;

/// Explores with the fewest preemptions that find every planted error.
fn explore(body: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(body);
}

type Extents = &'static [(u64, u64, u64)];

fn append_all(map: &ExtentMap, extents: Extents) {
    for (start, nr_pages, block) in extents {
        map.append(*start, *nr_pages, *block).unwrap();
    }
}

fn check(map: &ExtentMap, page: u64, extents: Extents) {
    let mapping = map.lookup(page).unwrap();
    let of = |page| extents.iter().rev().find(|(start, ..)| *start <= page).unwrap();
    let (start, nr_pages, block) = of(page);
    assert_eq!(mapping.block, block + (page - start), "page {page}");
    assert!((1..=start + nr_pages - page).contains(&mapping.pages_left), "page {page}");
}

fn empty() -> Arc<ExtentMap> {
    Arc::new(ExtentMap::new(4).unwrap())
}

#[test]
fn lookups_are_correct_during_growth_and_new_hints() {
    // The third and the fourth make the buckets larger.
    const EXTENTS: Extents = &[(0, 1, 10), (1, 1, 20), (2, 6, 30), (8, 20, 50)];
    explore(|| {
        let map = empty();
        append_all(&map, &EXTENTS[..2]);
        let grower = {
            let map = map.clone();
            thread::spawn(move || append_all(&map, &EXTENTS[2..]))
        };
        let last = map.pages() - 1;
        check(&map, last, EXTENTS);
        check(&map, 1, EXTENTS);
        grower.join().unwrap();
        assert_eq!(map.count(), 4);
        check(&map, 27, EXTENTS);
    });
}

#[test]
fn last_extent_may_grow_concurrently() {
    const BEFORE: Extents = &[(0, 2, 10), (2, 2, 20)];
    const AFTER: Extents = &[(0, 2, 10), (2, 7, 20)];
    explore(|| {
        let map = empty();
        append_all(&map, BEFORE);
        let grower = {
            let map = map.clone();
            thread::spawn(move || map.append(4, 5, 22).unwrap())
        };
        let last = map.pages() - 1;
        check(&map, last, AFTER);
        grower.join().unwrap();
        assert_eq!(map.count(), 2);
    });
}

#[test]
fn lookups_are_correct_while_tail_is_replaced() {
    explore(|| {
        let map = empty();
        append_all(&map, &[(0, 2, 10), (2, 3, 20), (5, 1, 30), (6, 9, 40)]);
        let reader = {
            let map = map.clone();
            thread::spawn(move || {
                let cut = map.pages() != 15;
                let mapping = map.lookup(2).unwrap();
                assert_eq!(mapping.block, 20);
                // A reader that sees the cut does not see the removed pages.
                assert!(!cut || mapping.pages_left == 1);
                let first = map.pieces(0, 3).next().unwrap().unwrap();
                assert_eq!(first, Piece { page: 0, block: 10, nr_pages: 2 });
            })
        };
        map.remove_tail(3);
        map.append(3, 40, 60).unwrap();
        reader.join().unwrap();
        assert_eq!(map.pages(), 43);
        assert_eq!(map.lookup(7), Ok(Mapping { block: 64, pages_left: 36 }));
    });
}
