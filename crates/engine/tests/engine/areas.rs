//! Several swap areas of one engine: order, failure, recovery and discards.

use crate::common::{
    Setup, World, assert_holds, random, until, until_all_have_moved, worlds_of, write_all,
};
use softswap_engine::api::engine::Engine;
use softswap_engine::api::settings::Config;
use softswap_engine::base::stats::{Counter, STATS_WORDS, Stats};
use softswap_engine::store::io::Operation;
use softswap_engine::store::swap::{Backing, Discard, FixedPages, Layout};
use softswap_sys::PAGE_SIZE;
use softswap_sys::file::errno::{EIO, EOPNOTSUPP};
use softswap_sys::memory::reserve_u64;
use softswap_testkit::sim_device::{Fault, SimDevice};

const UNLIMITED_TIMES: u64 = u64::MAX;

#[test]
fn second_area_is_used_after_first() {
    let setup = Setup { swap_mib: Some(4), spare_disk_mib: Some(64), ..Setup::default() };
    let world = World::new(&setup);
    let (memory, contents) = world.evicted(random(2500));
    let spare = world.spare.as_ref().unwrap();
    assert_eq!(world.disk.counts().written_bytes, 1023 * PAGE_SIZE as u64);
    assert_eq!(spare.counts().written_bytes, (2500 - 1023) * PAGE_SIZE as u64);
    assert_holds(memory, &contents);
}

#[test]
fn pages_of_failed_area_are_moved() {
    for world in worlds_of(Setup { spare_disk_mib: Some(64), ..Setup::default() }) {
        let contents = random(1500);
        let (old, new) = contents.split_at(1000);
        let first = world.map_evicted(old);
        world.disk.fail(Operation::Write, 0, UNLIMITED_TIMES, Fault::Errno(EIO));
        let second = world.map_evicted(new);
        assert_eq!(world.count(Counter::AreasFailed), 1);
        until(&world, || world.count(Counter::PagesMoved) == 1000);
        // All pages were moved, so reads from the failed area are not needed.
        world.disk.fail(Operation::Read, 0, UNLIMITED_TIMES, Fault::Errno(EIO));
        assert_holds(first, old);
        assert_holds(second, new);
        world.assert_within_budget();
    }
}

#[test]
fn unreadable_pages_stay_and_others_are_moved() {
    let world = World::new(&Setup { spare_disk_mib: Some(64), ..Setup::default() });
    let (memory, contents) = world.evicted(random(300));
    world.disk.fail(Operation::Write, 0, UNLIMITED_TIMES, Fault::Errno(EIO));
    world.map_evicted(&random(100));
    let reads = world.disk.counts().reads;
    world.disk.fail(Operation::Read, reads, 10, Fault::Errno(EIO));
    // The next round retries these ten, successfully.
    until(&world, || world.count(Counter::PagesMoved) == 300);
    assert_holds(memory, &contents);
}

#[test]
fn bad_block_costs_one_slot() {
    let world = World::new(&Setup::default());
    let (memory, contents) = world.mapped(random(320));
    // Fail the first batch, then its sixth page when each page is written alone.
    world.disk.fail(Operation::Write, 0, 1, Fault::Errno(EIO));
    world.disk.fail(Operation::Write, 6, 1, Fault::Errno(EIO));
    world.evict(memory);
    assert_eq!(world.count(Counter::SlotsRetired), 1);
    assert_eq!((world.count(Counter::WriteErrors), world.count(Counter::AreasFailed)), (2, 0));
    assert_holds(memory, &contents);
}

#[test]
fn free_clusters_are_discarded_in_background() {
    let world = World::new(&Setup { discard: Discard::Pages, ..Setup::default() });
    let (memory, contents) = world.evicted(random(2000));
    assert_eq!(world.count(Counter::DiscardedBytes), 0);
    assert_holds(memory, &contents);
    // Rewrite the pages, which frees their copies. A read would keep them.
    write_all(memory, &contents);
    until(&world, || world.count(Counter::DiscardedBytes) > 0);
    for round in 0..3 {
        let (memory, contents) = world.mapped(random(2000 + round));
        world.assert_survives(memory, &contents);
        world.engine.unmap(memory.address(), memory.len()).unwrap();
        until(&world, || world.disk.counts().discards > round);
    }
}

#[test]
fn storage_without_discard_works() {
    let world = World::new(&Setup { discard: Discard::Both, ..Setup::default() });
    world.disk.fail(Operation::Discard, 0, UNLIMITED_TIMES, Fault::Errno(EOPNOTSUPP));
    let (memory, contents) = world.evicted(random(2000));
    write_all(memory, &contents);
    until(&world, || world.disk.counts().discards == 1);
    world.assert_survives(memory, &contents);
    assert_eq!(world.count(Counter::DiscardErrors), 0);
}

#[test]
fn pages_are_not_moved_within_failed_area() {
    let world = World::new(&Setup::default());
    let (memory, contents) = world.evicted(random(1000));
    world.disk.fail(Operation::Write, 0, UNLIMITED_TIMES, Fault::Errno(EIO));
    let more = world.map_with(&random(100));
    world.engine.reclaim_now(20);
    assert_eq!((world.count(Counter::AreasFailed), world.resident(more)), (1, 100));
    let reads = world.disk.counts().reads;
    until_all_have_moved(&world, || true);
    assert_eq!(world.disk.counts().reads, reads);
    world.disk.clear_faults();
    world.evict(more);
    world.engine.note_peaks();
    assert_eq!(world.count(Counter::AreasFailed), 0);
    assert_holds(memory, &contents);
}

#[test]
fn unpublished_slots_are_freed_despite_child() {
    let world = World::new(&Setup { spare_disk_mib: Some(256), ..Setup::default() });
    world.evicted(random(100));
    world.disk.fail(Operation::Write, 0, UNLIMITED_TIMES, Fault::Errno(EIO));
    world.map_evicted(&random(100));
    assert_eq!(world.count(Counter::AreasFailed), 1);
    // The pages to move cannot be read, so the slots allocated for them remain unused.
    world.disk.fail(Operation::Read, 0, UNLIMITED_TIMES, Fault::Errno(EIO));
    let quiesced = world.engine.quiesce();
    assert!(world.engine.child_reads_slots(&quiesced));
    world.engine.child_made(&quiesced, true);
    drop(quiesced);
    world.engine.note_peaks();
    let before = world.count(Counter::DiskPeakBytes);
    until_all_have_moved(&world, || true);
    world.engine.note_peaks();
    assert_eq!(world.count(Counter::DiskPeakBytes), before);
}

#[test]
fn changing_data_with_child_uses_twice_the_slots_at_most() {
    const PAGES: u64 = 2000;
    // Space for twice the data in clusters of 512 slots, and for one half-full cluster.
    let world = World::new(&Setup { swap_mib: Some(18), ..Setup::default() });
    let memory = world.map_evicted(&random(PAGES));
    world.fork();
    for _ in 0..20 {
        let contents = random(PAGES);
        write_all(memory, &contents);
        world.evict(memory);
        world.assert_survives(memory, &contents);
        world.evict(memory);
    }
    assert_eq!(world.resident(memory), 0);
    world.engine.child_exited();
}

#[test]
fn pages_written_between_forks_are_readable() {
    const PAGES: u64 = 500;
    let world = World::new(&Setup { swap_mib: Some(32), ..Setup::default() });
    let mut blocks = Vec::new();
    for _ in 0..6 {
        let (memory, contents) = world.evicted(random(PAGES));
        blocks.push((memory, contents));
        world.fork();
    }
    for (memory, contents) in blocks {
        assert_holds(memory, &contents);
    }
}

#[test]
fn budget_used_up_by_area_tables_is_rejected() {
    let clusters = 1 << 21;
    let pages = FixedPages {
        pages: clusters * 512,
        spans: vec![(0, clusters * 512, 0)],
        bad_pages: vec![],
    };
    let backing = Backing {
        layout: Layout::Fixed(pages),
        ..Backing::growing(Box::new(SimDevice::new(1 << 20, 1)), None, 0)
    };
    let config = Config { memory_bytes: 16 << 20, ..Config::default() };
    let stats = Stats::new(reserve_u64(STATS_WORDS).unwrap());
    let refused = Engine::start(&config, vec![backing], stats).map(|_| ()).unwrap_err();
    let text = refused.to_string();
    assert!(text.contains("the budget is 16 MiB") && text.contains("fewer areas"), "{text}");
}
