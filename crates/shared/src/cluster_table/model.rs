//! Interleavings, by loom, of processes that take, free and reap clusters.

use super::*;
use crate::common_model::check;
use loom::thread;
use softswap_sys::primitive::Ordering::AcqRel;
use softswap_sys::primitive::reserve_u64;

/// Returns a table of only two clusters, because loom tracks each word.
fn table() -> ClusterTable {
    let words = reserve_u64(4).unwrap();
    words[0].store(MARK_OF_TREE + 1, Relaxed);
    ClusterTable { next_mark: &words[0], stopped: &words[1], clusters: Claims(&words[2..]) }
}

#[test]
fn no_cluster_is_taken_twice() {
    check(|| {
        let table = table();
        let other = thread::spawn(move || [table.take(7, 0), table.take(7, 0)]);
        let own = table.take(8, 0);
        let mut taken: Vec<_> = other.join().unwrap().into_iter().chain([own]).flatten().collect();
        taken.sort_unstable();
        assert_eq!(taken, [0, 1]);
        assert_eq!(table.held(7) + table.held(8), 2);
    });
}

#[test]
fn a_freed_cluster_is_taken_once() {
    check(|| {
        let table = table();
        assert_eq!((table.take(7, 0), table.take(7, 1)), (Some(0), Some(1)));
        let releaser = thread::spawn(move || table.free(7, 1));
        let taker = thread::spawn(move || table.take(8, 0));
        let own = table.take(9, 0);
        let other = taker.join().unwrap();
        assert!(releaser.join().unwrap());
        assert!(own.is_none() || other.is_none());
        assert_eq!(table.held(8) + table.held(9) + table.free_count(), 1);
    });
}

#[test]
fn reapers_free_clusters_of_the_dead_once_and_never_those_taken_after() {
    check(|| {
        let table = table();
        assert_eq!((table.take(7, 0), table.take(9, 0)), (Some(0), Some(1)));
        let reap = move || table.reap(|mark| mark == 7);
        let reaper = thread::spawn(reap);
        let other = thread::spawn(reap);
        let own = table.take(8, 0);
        assert_eq!(reaper.join().unwrap() + other.join().unwrap(), 1);
        assert_eq!((table.held(8), table.held(9)), (usize::from(own.is_some()), 1));
    });
}

#[test]
fn no_mark_is_put_twice() {
    check(|| {
        let table = table();
        let words = reserve_u64(8).unwrap();
        let put = move |mark: u64| {
            let word = &words[mark as usize];
            Some(word.compare_exchange(0, 1, AcqRel, Relaxed).is_ok())
        };
        let other = thread::spawn(move || table.mark(put));
        let own = table.mark(put).unwrap();
        assert_ne!(other.join().unwrap().unwrap(), own);
    });
}
