//! Background readahead: pages of streams are resident before their touch and have the right
//! content. Pages wrongly read ahead do no harm.

use crate::common::{
    Content, Setup, World, assert_holds, mix64, page_of, prefetch, random, wait_until,
    with_prefetch, write_all,
};
use softswap_engine::api::settings::PoolLimit;
use softswap_engine::base::stats::{Counter, Tier};
use softswap_engine::store::io::Operation;
use softswap_sys::PAGE_SIZE;
use softswap_sys::file::errno::EIO;
use softswap_testkit::Memory;
use softswap_testkit::sim_device::Fault;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const PAGES: usize = 1500;

/// Waits for readahead after each touch, so that results do not depend on timing.
fn touch_all(
    world: &World,
    memory: Memory,
    contents: &[Content],
    order: impl Iterator<Item = usize>,
) {
    for page in order {
        let found = page_of(memory, page).unwrap_or_else(|| panic!("page {page} was refused"));
        assert!(found == contents[page].bytes(), "page {page}");
        wait_for_readahead(world);
    }
}

fn wait_for_readahead(world: &World) {
    // Readahead is usually complete immediately, so poll briefly first.
    for _ in 0..1000 {
        if world.engine.is_prefetch_idle() {
            return;
        }
        thread::sleep(Duration::from_micros(50));
    }
    wait_until("the requested pages are read", || match world.engine.is_prefetch_idle() {
        true => Ok(()),
        false => Err(format!("{} pages read ahead", world.count(Counter::PagesReadAhead))),
    });
}

fn faults(world: &World) -> u64 {
    [Tier::Pool, Tier::Disk].into_iter().map(|tier| world.engine.stats().faults(tier)).sum()
}

fn evicted(kind: fn(u64) -> Content) -> (World, Memory, Vec<Content>) {
    let world = World::new(&Setup::default());
    let (memory, contents) = world.evicted((0..PAGES as u64).map(kind).collect());
    (world, memory, contents)
}

fn kinds() -> [fn(u64) -> Content; 2] {
    [Content::Random, Content::Text]
}

fn touch_both_ways(order: &[usize], most_faults: u64, least_windows: u64) {
    for (kind, down) in kinds().into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
        let (world, memory, contents) = evicted(kind);
        let order = order.iter().map(|page| if down { PAGES - 1 - page } else { *page });
        with_prefetch(&world, || touch_all(&world, memory, &contents, order));
        let (faults, reached) = (faults(&world), world.count(Counter::WindowsReached));
        assert!(faults < most_faults, "{faults} faults, down: {down}");
        assert!(reached >= least_windows, "{reached} windows");
        world.assert_survives(memory, &contents);
        world.assert_within_budget();
    }
}

#[test]
fn readahead_serves_streams_in_both_directions() {
    touch_both_ways(&(0..PAGES).collect::<Vec<_>>(), PAGES as u64 / 6, 5);
}

#[test]
fn readahead_serves_strided_streams() {
    const STRIDE: usize = 20;
    let order = (0..STRIDE).flat_map(|column| (column..PAGES).step_by(STRIDE));
    // The size of a window depends on the speed of reads: 300 to 510 faults were measured.
    touch_both_ways(&order.collect::<Vec<_>>(), PAGES as u64 / 2, 2 * STRIDE as u64);
}

#[test]
fn readahead_works_with_scattered_slots() {
    const GROUPS: u64 = 30;
    for down in [false, true] {
        let world = World::new(&Setup::default());
        let contents = random(PAGES as u64);
        let memory = world.map(PAGES);
        // Pages evicted together have adjacent slots, so neighbours in memory do not.
        for group in 0..GROUPS {
            for (page, content) in contents.iter().enumerate() {
                if mix64(page as u64) % GROUPS == group {
                    assert!(memory.write_bytes(page * PAGE_SIZE, &content.bytes()));
                }
            }
            world.evict(memory);
        }
        with_prefetch(&world, || {
            let at = |step: usize| if down { PAGES - 1 - step } else { step };
            touch_all(&world, memory, &contents, (0..PAGES).map(at));
        });
        let faults = faults(&world);
        assert!(faults < PAGES as u64 / 6, "{faults} faults, down: {down}");
        world.assert_survives(memory, &contents);
        world.assert_within_budget();
    }
}

#[test]
fn concurrent_streams_are_followed() {
    let world = World::new(&Setup::default());
    let (memory, contents) = world.evicted(random(1600));
    with_prefetch(&world, || {
        let order = (0..200).flat_map(|step| (0..8).map(move |run| run * 200 + step));
        touch_all(&world, memory, &contents, order);
    });
    assert!(faults(&world) < 500, "{} faults", faults(&world));
    assert!(world.count(Counter::WindowsReached) >= 24);
    world.assert_survives(memory, &contents);
}

#[test]
fn random_touches_cause_little_readahead() {
    let world = World::new(&Setup::default());
    let (memory, contents) = world.evicted(random(PAGES as u64));
    with_prefetch(&world, || {
        let order = (0..200).map(|step| mix64(step) as usize % PAGES);
        touch_all(&world, memory, &contents, order);
    });
    let ahead = world.count(Counter::PagesReadAhead);
    assert!(ahead < 60, "{ahead} pages were read ahead for 200 touches");
    assert_holds(memory, &contents);
}

/// Returns the pages of rows in random order. A row has three pages; the second is touched first.
fn rows() -> impl Iterator<Item = usize> {
    let row = |step| mix64(step) as usize % (PAGES / 3);
    (0..300).map(row).flat_map(|row| [3 * row + 1, 3 * row, 3 * row + 2])
}

#[test]
fn co_accessed_pages_are_read_together() {
    // First each page has its own slot. Then two or more compressed pages share a slot.
    for pool in [PoolLimit::Percent(0), PoolLimit::Bytes(64 << 10)] {
        let world = World::new(&Setup { pool, ..Setup::default() });
        let (memory, contents) = world.mapped((0..PAGES as u64).map(kinds()[1]).collect());
        let (mut touched, mut faulted) = (0, 0);
        for page in rows() {
            // Evict all pages before each row, as if memory were much larger than the budget.
            if page % 3 == 1 {
                world.evict(memory);
            }
            let before = faults(&world);
            assert!(page_of(memory, page).is_some_and(|it| it == contents[page].bytes()));
            touched += 1;
            faulted += faults(&world) - before;
        }
        assert!(faulted * 5 < touched * 3, "{faulted} faults of {touched} touches, pool {pool:?}");
        assert_holds(memory, &contents);
        world.assert_within_budget();
    }
}

#[test]
fn unreadable_neighbour_is_ignored() {
    for fault in [Fault::Errno(EIO), Fault::FlipBit] {
        let world = World::new(&Setup { pool: PoolLimit::Percent(0), ..Setup::default() });
        let (memory, contents) = world.mapped(random(PAGES as u64));
        for page in rows() {
            if page % 3 == 1 {
                world.evict(memory);
            }
            assert!(page_of(memory, page).is_some());
        }
        world.evict(memory);
        let errors = || world.count(Counter::ReadErrors) + world.count(Counter::ChecksumErrors);
        // The first read includes neighbours and fails. Then the page is read again, alone.
        world.disk.fail(Operation::Read, world.disk.counts().reads, 1, fault);
        assert!(page_of(memory, 601).is_some_and(|it| it == contents[601].bytes()));
        assert_eq!(errors(), 0);
        world.disk.clear_faults();
        assert_holds(memory, &contents);
        world.assert_within_budget();
    }
}

#[test]
fn read_error_ahead_affects_one_page() {
    for fault in [Fault::Errno(EIO), Fault::FlipBit] {
        let world = World::new(&Setup::default());
        let (memory, contents) = world.evicted(random(400));
        world.disk.fail(Operation::Read, 6, 8, fault);
        with_prefetch(&world, || {
            for (page, content) in contents.iter().enumerate() {
                let found = page_of(memory, page);
                assert!(found.is_none_or(|bytes| bytes == content.bytes()), "page {page}");
            }
        });
        world.disk.clear_faults();
        assert_holds(memory, &contents);
    }
}

#[test]
fn every_page_is_read_ahead_or_faulted() {
    let world = World::new(&Setup { memory_mib: 64, ..Setup::default() });
    let (memory, contents) = world.evicted(random(PAGES as u64));
    with_prefetch(&world, || touch_all(&world, memory, &contents, 0..PAGES));
    let ahead = world.count(Counter::PagesReadAhead);
    assert_eq!(ahead + faults(&world), PAGES as u64);
    assert_eq!(
        world.count(Counter::PagesRead),
        PAGES as u64,
        "each page must be read once, including markers"
    );
}

#[test]
fn readahead_error_counts_on_touch() {
    for fault in [Fault::Errno(EIO), Fault::FlipBit] {
        let world = World::new(&Setup { memory_mib: 64, ..Setup::default() });
        // Few of 4000 pages are resident, so one page behind the fault suffices to read neighbours.
        let (memory, contents) = world.evicted(random(4000));
        let errors = || world.count(Counter::ReadErrors) + world.count(Counter::ChecksumErrors);
        with_prefetch(&world, || {
            let mut begun = (100..300).step_by(30);
            while world.count(Counter::WindowsReached) == 0 {
                let first = begun.next().expect("a stream must be detected");
                touch_all(&world, memory, &contents, first..first + 30);
            }
            // The touches of pages 0, 1 and 3 read one to four pages each; the readahead that the
            // last one starts fails.
            let reads = world.disk.counts().reads;
            world.disk.fail(Operation::Read, reads + 3, u64::MAX / 2, fault);
            touch_all(&world, memory, &contents, 0..7);
            wait_until("pages are read ahead", || match world.disk.counts().reads - reads {
                4.. => Ok(()),
                few => Err(format!("{few} reads")),
            });
            wait_for_readahead(&world);
            assert_eq!(errors(), 0, "no failed page was touched");
            assert_eq!(page_of(memory, 399), None);
            assert_eq!(errors(), 1);
            world.disk.clear_faults();
            touch_all(&world, memory, &contents, 7..400);
            assert_eq!(errors(), 1);
        });
    }
}

#[test]
fn stale_read_ahead_page_is_not_used() {
    for encrypt in [true, false] {
        let world = World::new(&Setup { encrypt, ..Setup::default() });
        let (memory, before) = world.evicted(random(600));
        with_prefetch(&world, || {
            // Each start of a stream leaves a marker page in the read-ahead cache.
            for first in (0..600).step_by(60) {
                touch_all(&world, memory, &before, first..first + 7);
            }
        });
        world.engine.discard(memory.address(), memory.len()).unwrap();
        let after: Vec<_> = (0..600).map(|page| Content::Random(page << 20 | 7)).collect();
        write_all(memory, &after);
        world.evict(memory);
        assert_holds(memory, &after);
        assert_eq!(world.count(Counter::ChecksumErrors), 0);
    }
}

#[test]
fn streams_are_intact_under_reclaim() {
    let world = World::new(&Setup { memory_mib: 12, ..Setup::default() });
    let done = AtomicBool::new(false);
    let pass = |number: u64| {
        let kind = kinds()[number as usize % 2];
        let (memory, mut contents) =
            world.mapped((0..1200).map(|page| kind(number << 20 | page)).collect());
        for round in 1..5 {
            for (page, content) in contents.iter_mut().enumerate() {
                let found = page_of(memory, page);
                assert!(found.is_some_and(|bytes| bytes == content.bytes()), "page {page}");
                if (page as u64).is_multiple_of(round + 1) {
                    *content = kind(number << 20 | round << 16 | page as u64);
                    assert!(memory.write_bytes(page * PAGE_SIZE, &content.bytes()));
                }
            }
        }
        assert_holds(memory, &contents);
    };
    thread::scope(|scope| {
        prefetch(scope, &world, &done);
        scope.spawn(|| world.engine.run_reclaim(|| !done.load(Ordering::Relaxed)));
        thread::scope(|inner| {
            let pass = &pass;
            for number in 0..6 {
                inner.spawn(move || pass(number));
            }
        });
        done.store(true, Ordering::Relaxed);
    });
    assert!(world.count(Counter::WindowsReached) > 0);
    world.assert_within_budget();
}
