use super::*;
use proptest::prelude::*;
use softswap_sys::memory::reserve_u64;
use std::collections::{BTreeMap, BTreeSet};

fn area(inode: u64, clusters: usize) -> SharedArea {
    SharedArea { device: 9, inode, clusters }
}

fn tables(areas: &[SharedArea]) -> ClusterTables {
    ClusterTables::create(reserve_u64(ClusterTables::words(areas)).unwrap(), areas)
}

#[test]
fn areas_have_separate_tables() {
    let areas = [area(1, 2), area(2, 5), area(3, 1)];
    let made = tables(&areas);
    let opened = ClusterTables::open(made.segment.words()).unwrap();
    for area in areas {
        assert_eq!(opened.table(area).unwrap().count(), area.clusters);
    }
    let second = opened.table(areas[1]).unwrap();
    assert_eq!(second.take(4, 4), Some(4));
    assert_eq!((second.take(4, 4), made.table(areas[1]).unwrap().free_count()), (Some(0), 3));
    assert!(
        made.table(areas[0]).unwrap().free_count() == 2
            && made.table(areas[2]).unwrap().free_count() == 1
    );
    assert!(opened.table(area(4, 1)).is_none() && opened.table(area(2, 6)).is_none());
}

#[test]
fn invalid_tables_are_rejected() {
    let areas = [area(1, 4)];
    let made = tables(&areas);
    assert!(ClusterTables::open(&made.segment.words()[..FIRST_CLUSTER_WORD - 1]).is_none());
    assert!(ClusterTables::open(reserve_u64(FIRST_CLUSTER_WORD).unwrap()).is_none());
    // Sizes that exceed the words, or whose sums overflow.
    for clusters in [5, u64::MAX, u64::MAX - FIRST_CLUSTER_WORD as u64] {
        made.segment.words()[HEADER_WORDS + 2].store(clusters, Relaxed);
        let claimed = area(1, clusters as usize);
        assert!(ClusterTables::open(made.segment.words()).unwrap().table(claimed).is_none());
    }
}

#[test]
fn marks_are_unique() {
    let table = tables(&[area(1, 1)]).table(area(1, 1)).unwrap();
    let taken: BTreeSet<u64> = (2..40).collect();
    assert_eq!(table.mark(|mark| Some(!taken.contains(&mark))), Some(40));
    assert_eq!(table.mark(|_| None), None, "the mark cannot be put");
    assert_eq!(table.mark(|_| Some(false)), None, "no mark is free");
    table.next_mark.store(u64::MAX, Relaxed);
    let mark = table.mark(|mark| Some(mark > MARK_OF_TREE));
    assert!(mark.is_some_and(|mark| mark < MAX_MARKS), "{mark:?}");
}

#[derive(Debug, Clone)]
enum Act {
    Take(u64, u32),
    Free(u64, u32),
    Die(u64),
    Reap,
    Overwrite(usize, u64),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let mark = || 2..8_u64;
    let act = prop_oneof![
        6 => (mark(), any::<u32>()).prop_map(|(mark, from)| Act::Take(mark, from)),
        3 => (mark(), 0..24_u32).prop_map(|(mark, at)| Act::Free(mark, at)),
        1 => mark().prop_map(Act::Die),
        1 => Just(Act::Reap),
    ];
    prop::collection::vec(act, 1..200)
}

fn corrupting_acts() -> impl Strategy<Value = Vec<Act>> {
    let overwrite = (0..400_usize, any::<u64>()).prop_map(|(at, word)| Act::Overwrite(at, word));
    (acts(), prop::collection::vec(overwrite, 1..40)).prop_map(|(acts, wild)| {
        let mut wild = wild.into_iter();
        acts.into_iter().flat_map(|act| [Some(act), wild.next()]).flatten().collect()
    })
}

proptest! {
    #[test]
    fn a_cluster_belongs_to_its_taker_until_it_is_freed_or_reaped(acts in acts()) {
        let area = area(1, 20);
        let table = tables(&[area]).table(area).unwrap();
        let mut owners: BTreeMap<u32, u64> = BTreeMap::new();
        let mut dead = BTreeSet::new();
        for act in acts {
            match act {
                Act::Take(mark, _) if dead.contains(&mark) => {}
                Act::Take(mark, from) => {
                    let taken = table.take(mark, from);
                    prop_assert_eq!(taken.is_none(), owners.len() == 20);
                    if let Some(cluster) = taken {
                        prop_assert!(owners.insert(cluster, mark).is_none());
                    }
                }
                Act::Free(mark, at) => {
                    let is_owner = owners.get(&at) == Some(&mark);
                    prop_assert_eq!(table.free(mark, at), is_owner);
                    if is_owner {
                        owners.remove(&at);
                    }
                }
                Act::Die(mark) => drop(dead.insert(mark)),
                Act::Reap => {
                    let before = owners.len();
                    owners.retain(|_, mark| !dead.contains(mark));
                    prop_assert_eq!(table.reap(|mark| dead.contains(&mark)), before - owners.len());
                }
                Act::Overwrite(..) => {}
            }
            prop_assert_eq!(table.free_count(), 20 - owners.len());
        }
    }

    #[test]
    fn no_content_makes_a_table_exceed_its_words(acts in corrupting_acts()) {
        let areas = [area(1, 20), area(2, 3)];
        let made = tables(&areas);
        for act in acts {
            let Some(table) = made.table(areas[0]) else { continue };
            match act {
                Act::Take(mark, from) => prop_assert!(table.take(mark, from).is_none_or(|at| at < 20)),
                Act::Free(mark, at) => drop(table.free(mark, at)),
                Act::Die(_) => prop_assert!(table.mark(|_| Some(true)).is_some()),
                Act::Reap => prop_assert!(table.reap(|mark| mark % 2 == 0) <= 20),
                Act::Overwrite(at, word) => {
                    made.segment.words()[at % made.segment.words().len()].store(word, Relaxed);
                }
            }
        }
    }
}
