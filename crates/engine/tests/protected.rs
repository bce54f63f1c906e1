//! Pages that came in to be read, and of which there is no room for a copy: they stay
//! write-protected, leave together, and are what they were, or what was written since.

mod common;
use common::{Content, Setup, World, assert_holds, assert_zero, write_all};
use softswap_engine::config::PoolLimit;
use softswap_engine::stats::Counter;
use softswap_sys::PAGE_SIZE;
use softswap_sys::inline::Memory;

/// They take most of the pool, and their copies may take half of it.
const PAGES: usize = 1200;

fn worlds() -> impl Iterator<Item = World> {
    [false, true].into_iter().map(|avoid_move| {
        let pool = PoolLimit::Percent(10);
        World::new(&Setup { avoid_move, pool, ..Setup::default() })
    })
}

/// Pages that were packed and only read since.
fn unwritten(world: &World) -> (Memory, Vec<Content>) {
    let contents: Vec<_> = (0..PAGES as u64).map(Content::Sparse).collect();
    let memory = world.map_with(&contents);
    world.assert_survives(memory, &contents);
    let without = world.engine.protected_without_copy();
    assert!(without > 100 && without + world.engine.pooled_copies() == PAGES, "{without}");
    (memory, contents)
}

#[test]
fn what_was_only_read_leaves_and_comes_back_as_it_was() {
    for world in worlds() {
        let (memory, contents) = unwritten(&world);
        for _ in 0..3 {
            let without = world.engine.protected_without_copy() as u64;
            let packed = world.count(Counter::PagesPooled);
            world.evict(memory);
            // What has no copy is stored again, once, and nothing else.
            assert_eq!(world.count(Counter::PagesPooled), packed + without);
            assert_eq!(world.engine.protected_without_copy(), 0);
            assert_holds(memory, &contents);
        }
        world.assert_within_budget();
    }
}

#[test]
fn what_was_written_since_is_what_was_written() {
    for world in worlds() {
        let (memory, mut contents) = unwritten(&world);
        let without = world.engine.protected_without_copy();
        for page in (0..PAGES).step_by(3) {
            contents[page] = Content::Sparse((page + 5000) as u64);
            assert!(memory.write_bytes(page * PAGE_SIZE, &contents[page].bytes()));
        }
        assert!(world.engine.protected_without_copy() < without);
        assert_holds(memory, &contents);
        world.assert_survives(memory, &contents);
        world.assert_survives(memory, &contents);
    }
}

#[test]
fn pages_that_are_mostly_written_are_not_protected_without_a_copy() {
    for world in worlds() {
        let (memory, contents) = unwritten(&world);
        for _ in 0..4 {
            write_all(memory, &contents);
            assert_eq!(world.engine.protected_without_copy(), 0);
            world.assert_survives(memory, &contents);
        }
        // One in 16 is tried.
        let without = world.engine.protected_without_copy();
        assert!(without < PAGES / 8, "{without}");
    }
}

#[test]
fn a_page_that_is_pinned_may_be_written_by_the_kernel() {
    for world in worlds() {
        let (memory, mut contents) = unwritten(&world);
        let (start, len) = (memory.address() + PAGE_SIZE, memory.len() - PAGE_SIZE);
        assert_eq!(world.engine.pin(start, len, usize::MAX).unwrap(), len);
        assert_eq!(world.engine.protected_without_copy(), 0);
        let zeroes = std::fs::File::open("/dev/zero").unwrap();
        memory.part(PAGE_SIZE, len).read_from(&zeroes).unwrap();
        contents[1..].fill(Content::Zero);
        world.engine.unpin(start, len);
        world.assert_survives(memory, &contents);
    }
}

#[test]
fn none_outlives_its_page() {
    type End = fn(&World, Memory, &[Content]);
    let ends: [End; 3] = [
        |world, memory, _| {
            world.engine.discard(memory.address(), memory.len()).unwrap();
            assert_zero(memory);
        },
        |world, memory, contents| {
            let to = world.map(PAGES);
            let from = (memory.address(), memory.len());
            world.engine.move_to(from.0, from.1, to.address()).unwrap();
            assert_zero(memory);
            write_all(to, &contents[1..]);
            world.assert_survives(to, &contents[1..]);
            world.engine.unmap(to.address(), to.len()).unwrap();
        },
        |_, memory, contents| write_all(memory, contents),
    ];
    for end in ends {
        for world in worlds() {
            let (memory, contents) = unwritten(&world);
            end(&world, memory, &contents);
            world.engine.unmap(memory.address(), memory.len()).unwrap();
            assert_eq!(world.engine.protected_without_copy(), 0);
        }
    }
}
