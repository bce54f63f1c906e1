//! What shares a slot on the disk with a touched page is in the pool again, where that
//! has room.

mod common;
use common::{Content, Setup, World, assert_holds, page_of, read_in_threads};
use softswap_engine::base::stats::Counter;
use softswap_engine::door::settings::PoolLimit;
use softswap_engine::store::io::Operation;
use softswap_engine::store::io::sim::Fault;
use softswap_sys::PAGE_SIZE;
use softswap_sys::file::errno::EIO;
use softswap_sys::inline::Memory;

const PAGES: u64 = 12_288;
/// Of a budget of 16 MiB, in percent: room for some of the pages, and for all of them.
const SMALL: u8 = 20;
const LARGE: u8 = 80;

fn sparse(round: u64) -> Vec<Content> {
    (0..PAGES).map(|page| Content::Sparse(page << 8 | round)).collect()
}

/// None of the memory is resident any more, and most of it is on the disk, packed.
fn send_on(world: &World, memory: Memory) {
    world.engine.set_pool_limit(PoolLimit::Percent(SMALL));
    world.send_on(memory);
}

fn world_with_packed(setup: &Setup) -> (World, Memory, Vec<Content>) {
    let world = World::new(setup);
    let contents = sparse(0);
    let memory = world.map_with(&contents);
    send_on(&world, memory);
    assert!(world.count(Counter::PagesPacked) > PAGES / 2);
    (world, memory, contents)
}

/// Touches all pages, far apart from each other. How many reads that took.
fn touch_all(world: &World, memory: Memory, contents: &[Content]) -> u64 {
    let before = world.count(Counter::PagesRead);
    for step in 0..PAGES {
        // A prime: each page once.
        let page = (step * 4099 % PAGES) as usize;
        assert!(page_of(memory, page).unwrap() == contents[page].bytes(), "page {page}");
    }
    world.count(Counter::PagesRead) - before
}

#[test]
fn one_read_brings_all_of_a_slot_where_the_pool_has_room() {
    for avoid_move in [false, true] {
        let (world, memory, contents) =
            world_with_packed(&Setup { avoid_move, ..Setup::default() });
        let without_room = touch_all(&world, memory, &contents);
        let few = world.count(Counter::PagesRegained);
        send_on(&world, memory);
        world.engine.set_pool_limit(PoolLimit::Percent(LARGE));
        let with_room = touch_all(&world, memory, &contents);
        let many = world.count(Counter::PagesRegained) - few;
        assert!(with_room * 2 < without_room, "{with_room} and {without_room} reads");
        assert!(many > 4 * few && many > with_room, "{many} and {few} with {with_room} reads");
        // Of those that are in the pool again none is on the disk as well.
        assert_eq!(touch_all(&world, memory, &contents), 0);
        world.assert_within_budget();
    }
}

#[test]
fn slots_whose_pages_are_back_are_free_and_what_is_discarded_is_gone() {
    // Room for what one round leaves on the disk, and for what the pool refuses while its
    // own pages are on their way there. Two rounds have no room.
    let world = World::new(&Setup { swap_mib: Some(14), ..Setup::default() });
    for round in 0..6 {
        let mut contents = sparse(round);
        let memory = world.map_with(&contents);
        send_on(&world, memory);
        world.engine.set_pool_limit(PoolLimit::Percent(LARGE));
        for page in (0..PAGES as usize).step_by(16) {
            assert!(memory.read(page * PAGE_SIZE).is_some());
        }
        for page in (3..PAGES as usize).step_by(5) {
            world.engine.discard(memory.address() + page * PAGE_SIZE, PAGE_SIZE).unwrap();
            contents[page] = Content::Zero;
        }
        world.assert_survives(memory, &contents);
        world.engine.unmap(memory.address(), memory.pages() * PAGE_SIZE).unwrap();
    }
    let regained = world.count(Counter::PagesRegained);
    assert!(regained > PAGES / 2, "{regained}");
}

#[test]
fn threads_find_what_they_look_for_while_pages_come_and_go() {
    let (world, memory, contents) = world_with_packed(&Setup::default());
    read_in_threads(&world, (memory, &contents), 4_000, |thread, step| {
        if step % 500 == 0 {
            let percent = if step / 500 % 2 == thread % 2 { SMALL } else { LARGE };
            world.engine.set_pool_limit(PoolLimit::Percent(percent));
        }
    });
    assert!(world.count(Counter::PagesRegained) > 0);
    world.assert_survives(memory, &contents);
    world.assert_within_budget();
}

#[test]
fn nothing_is_taken_from_a_slot_that_cannot_be_read_or_trusted() {
    for fault in [Fault::Errno(EIO), Fault::FlipBit] {
        let (world, memory, contents) = world_with_packed(&Setup::default());
        world.engine.set_pool_limit(PoolLimit::Percent(LARGE));
        world.disk.fail(Operation::Read, world.disk.counts().reads, u64::MAX, fault);
        let is_refused = |page: &usize| page_of(memory, *page).is_none();
        let refused = (0..PAGES as usize).step_by(16).filter(is_refused).count() as u64;
        assert!(refused > PAGES / 64, "{refused}");
        assert_eq!(world.count(Counter::PagesRegained), 0);
        // The faults were on the way.
        world.disk.heal();
        assert_holds(memory, &contents);
        assert!(world.count(Counter::PagesRegained) > 0);
    }
}
