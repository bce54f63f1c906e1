//! Recently evicted pages on standby are restored without the disk, if early refaults make that
//! worthwhile. Their memory is released if it is needed.

use crate::common::{Content, Setup, World, assert_holds, mix64, page_of, random, worlds};
use softswap_engine::base::stats::{Counter, Tier};
use softswap_engine::store::io::Operation;
use softswap_sys::PAGE_SIZE;
use softswap_sys::file::errno::{EIO, ENOSPC};
use softswap_testkit::Memory;
use softswap_testkit::sim_device::Fault;

const PAGES: usize = 300;
/// Distance between used pages, so that no fault reads another used page.
const STEP_BYTES: usize = 5 * PAGE_SIZE;

/// Pages that are evicted once and never used again, so that early refaults are rare.
const UNRELATED_PAGES: u64 = 6000;

/// Returns pages that all refaulted early, so that the engine keeps more pages on standby.
fn early_refaulted_pages(world: &World) -> (Memory, Vec<Content>) {
    world.evict(world.map_with(&random(UNRELATED_PAGES)));
    let (memory, contents) = map_random(world, 0);
    for _ in 0..2 {
        evict_resident(world, memory);
        assert_each(memory, &contents);
    }
    (memory, contents)
}

fn map_random(world: &World, seed: u64) -> (Memory, Vec<Content>) {
    let contents: Vec<_> = (seed..).take(PAGES).map(Content::Random).collect();
    let memory = world.map(PAGES * STEP_BYTES / PAGE_SIZE);
    write(memory, &contents);
    (memory, contents)
}

fn write(memory: Memory, contents: &[Content]) {
    for (at, content) in contents.iter().enumerate() {
        assert!(memory.write_bytes(at * STEP_BYTES, &content.bytes()));
    }
}

fn part(memory: Memory, at: usize) -> Memory {
    memory.part(at * STEP_BYTES, PAGE_SIZE)
}

fn assert_each(memory: Memory, contents: &[Content]) {
    for (at, content) in contents.iter().enumerate() {
        assert_holds(part(memory, at), std::slice::from_ref(content));
    }
}

/// Evicts resident pages one batch at a time, so that pages on standby are not released.
fn evict_resident(world: &World, memory: Memory) {
    while world.resident(memory) > 0 {
        assert_eq!(world.engine.reclaim_now(1), 1);
    }
}

fn from_standby(world: &World) -> u64 {
    world.engine.stats().faults(Tier::Standby)
}

#[test]
fn early_refaults_need_no_disk() {
    for encrypt in [false, true] {
        let world = World::new(&Setup { encrypt, ..Setup::default() });
        let (memory, contents) = early_refaulted_pages(&world);
        let (before, read) = (from_standby(&world), world.count(Counter::PagesRead));
        evict_resident(&world, memory);
        assert_each(memory, &contents);
        let kept = from_standby(&world) - before;
        assert!(kept >= PAGES as u64 / 3, "{kept}");
        assert_eq!(world.count(Counter::PagesRead), read + PAGES as u64 - kept);
        assert_eq!(world.count(Counter::PagesWritten), UNRELATED_PAGES + PAGES as u64);
    }
}

#[test]
fn stream_pages_are_not_kept() {
    let world = World::new(&Setup::default());
    let (stream, contents) = world.mapped((50_000..50_512).map(Content::Random).collect());
    for _ in 0..3 {
        evict_resident(&world, stream);
        assert_holds(stream, &contents);
    }
    let (memory, wanted) = early_refaulted_pages(&world);
    assert_holds(stream, &contents);
    evict_resident(&world, memory);
    evict_resident(&world, stream);
    let before = from_standby(&world);
    assert_holds(stream, &contents);
    assert_eq!(from_standby(&world), before);
    assert_each(memory, &wanted);
    assert!(from_standby(&world) > before, "other pages are kept");
}

#[test]
fn standby_returns_written_content() {
    let world = World::new(&Setup::default());
    let (memory, _) = early_refaulted_pages(&world);
    for round in 1..5 {
        let rewritten: Vec<_> =
            (0..PAGES as u64).map(|at| Content::Random(at + 1000 * round)).collect();
        write(memory, &rewritten);
        for _ in 0..2 {
            evict_resident(&world, memory);
            assert_each(memory, &rewritten);
        }
    }
    assert!(from_standby(&world) >= PAGES as u64);
}

#[test]
fn standby_works_with_failing_disk() {
    let world = World::new(&Setup::default());
    let (memory, contents) = early_refaulted_pages(&world);
    evict_resident(&world, memory);
    let before = from_standby(&world);
    world.disk.fail(Operation::Read, 0, u64::MAX, Fault::Errno(EIO));
    let is_readable = |at: &usize| {
        let found = page_of(part(memory, *at), 0);
        assert!(found.is_none_or(|found| found == contents[*at].bytes()));
        found.is_some()
    };
    let readable = (0..PAGES).filter(is_readable).count() as u64;
    assert_eq!(readable, from_standby(&world) - before);
    assert!(readable >= PAGES as u64 / 3, "{readable}");
    world.disk.clear_faults();
    assert_each(memory, &contents);
}

#[test]
fn clean_page_is_written_once() {
    let world = World::new(&Setup::default());
    early_refaulted_pages(&world);
    let before = world.count(Counter::PagesWritten);
    let (memory, contents) = map_random(&world, 5000);
    for _ in 0..6 {
        evict_resident(&world, memory);
        assert_each(memory, &contents);
    }
    assert!(from_standby(&world) > PAGES as u64);
    assert_eq!(world.count(Counter::PagesWritten) - before, PAGES as u64);
}

#[test]
fn write_error_is_reported_despite_standby() {
    let world = World::new(&Setup::default());
    let (memory, contents) = early_refaulted_pages(&world);
    world.disk.fail(Operation::Write, 0, u64::MAX, Fault::Errno(ENOSPC));
    let more = world.map(8192);
    let stopped = (0..8192)
        .find(|page| !more.write_bytes(page * PAGE_SIZE, &Content::Random(*page as u64).bytes()));
    assert!(stopped.is_some(), "a full disk must refuse a write");
    world.disk.clear_faults();
    assert_each(memory, &contents);
}

/// Most touches are of a hot set that barely fits, so that many pages refault early.
#[test]
fn random_touches_find_last_write() {
    for world in worlds() {
        let pages = 12_000;
        let (memory, mut contents) = world.mapped(random(pages as u64));
        for step in 0..60_000 {
            if step % 64 == 0 {
                // Takes the place of background reclaim, which does not run in this test.
                world.engine.reclaim_now(0);
            }
            let number = mix64(step);
            let within = if number % 10 < 9 { 3000 } else { pages };
            // Scatter the pages, so that no fault reads another page of the hot set.
            let page = (number >> 32) as usize % within * 7919 % pages;
            match number >> 8 & 7 {
                0 | 1 => {
                    contents[page] = Content::Random(number);
                    assert!(memory.write_bytes(page * PAGE_SIZE, &contents[page].bytes()));
                }
                2 if number >> 12 & 63 == 0 => {
                    let address = memory.address() + page * PAGE_SIZE;
                    world.engine.discard(address, PAGE_SIZE).unwrap();
                    contents[page] = Content::Zero;
                }
                _ => assert_holds(memory.part(page * PAGE_SIZE, PAGE_SIZE), &contents[page..=page]),
            }
        }
        let kept = from_standby(&world);
        assert!(kept > 2000, "{kept}");
        assert_holds(memory, &contents);
        world.assert_within_budget();
    }
}
