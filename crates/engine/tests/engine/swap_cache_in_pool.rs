//! Unchanged pages leave DRAM for the copy that the pool still has; a write ends
//! that, whoever makes it, and no copy outlives its page.

use crate::common::{
    Content, Setup, World, assert_holds, assert_zero, fill_from, in_threads, read_and_write,
    worlds, write_all,
};
use softswap_engine::base::stats::Counter;
use softswap_sys::PAGE_SIZE;
use softswap_testkit::Memory;

const PAGES: usize = 300;

fn sparse(count: usize) -> Vec<Content> {
    (0..count as u64).map(Content::Sparse).collect()
}

/// Pages that were packed and only read since.
fn unchanged(world: &World) -> (Memory, Vec<Content>) {
    let contents = sparse(PAGES);
    let memory = world.map_clean(&contents);
    assert!(world.engine.pooled_copies() > 0);
    (memory, contents)
}

#[test]
fn what_was_only_read_is_not_packed_again() {
    for world in worlds() {
        let (memory, contents) = unchanged(&world);
        for round in 1..4 {
            world.assert_survives(memory, &contents);
            assert_eq!(world.count(Counter::PoolPagesUnchanged), (round * PAGES) as u64);
        }
        assert_eq!(world.count(Counter::PagesPooled), PAGES as u64);
        assert_eq!(world.count(Counter::PoolCopiesWritten), 0);
        assert_eq!(world.count(Counter::PagesUnchanged), 0);
    }
}

#[test]
fn what_was_written_since_is_packed_again_and_nothing_else() {
    for world in worlds() {
        let (memory, mut contents) = unchanged(&world);
        for page in (0..PAGES).step_by(7) {
            contents[page] = Content::Sparse((page + 1000) as u64);
            assert!(memory.write_bytes(page * PAGE_SIZE, &contents[page].bytes()));
        }
        let changed = PAGES.div_ceil(7);
        assert_eq!(world.engine.pooled_copies(), PAGES - changed);
        world.assert_survives(memory, &contents);
        assert_eq!(world.count(Counter::PoolCopiesWritten), changed as u64);
        assert_eq!(world.count(Counter::PagesPooled), (PAGES + changed) as u64);
        assert_eq!(world.count(Counter::PoolPagesUnchanged), (PAGES - changed) as u64);
    }
}

#[test]
fn a_page_that_is_pinned_may_be_written_by_the_kernel() {
    for world in worlds() {
        let (memory, mut contents) = unchanged(&world);
        let (start, len) = (memory.address() + 10 * PAGE_SIZE, 20 * PAGE_SIZE);
        assert_eq!(world.engine.pin(start, len, usize::MAX).unwrap(), len);
        let zeroes = std::fs::File::open("/dev/zero").unwrap();
        fill_from(memory.part(10 * PAGE_SIZE, len), &zeroes);
        contents[10..30].fill(Content::Zero);
        world.engine.unpin(start, len);
        world.assert_survives(memory, &contents);
    }
}

#[test]
fn copies_go_with_their_pages() {
    for world in worlds() {
        for round in 0..12 {
            let (memory, contents) = unchanged(&world);
            match round % 3 {
                0 => {
                    world.engine.discard(memory.address(), memory.len()).unwrap();
                    assert_zero(memory);
                }
                1 => {
                    let to = world.map(PAGES);
                    write_all(to, &contents[1..]);
                    let from = (memory.address(), memory.len());
                    world.engine.move_to(from.0, from.1, to.address()).unwrap();
                    assert_zero(memory);
                    world.assert_survives(to, &contents);
                    world.engine.unmap(to.address(), to.len()).unwrap();
                }
                _ => write_all(memory, &contents),
            }
            world.engine.unmap(memory.address(), memory.len()).unwrap();
            assert_eq!(world.engine.pooled_copies(), 0);
        }
        world.engine.reclaim_now(1);
        assert_eq!(world.engine.stats().get(Counter::PoolCopiesShed), 0);
    }
}

/// Gaps in the slabs, so that what is left moves together.
#[test]
fn copies_move_with_what_lies_beside_them() {
    let world = World::new(&Setup { memory_mib: 32, ..Setup::default() });
    let contents = sparse(8000);
    let memory = world.map_with(&contents);
    world.assert_survives(memory, &contents[..]);
    let kept = world.engine.pooled_copies();
    assert!(kept > 1000, "{kept}");
    world.evict(memory);
    // Every page of which one copy in five is left in its slab.
    let stays = |page: usize| page.is_multiple_of(5);
    for page in (0..contents.len()).filter(|page| !stays(*page)) {
        world.engine.discard(memory.address() + page * PAGE_SIZE, PAGE_SIZE).unwrap();
    }
    let part = |page: usize| memory.part(page * PAGE_SIZE, PAGE_SIZE);
    let left: Vec<_> = (0..contents.len()).filter(|page| stays(*page)).collect();
    left.iter().for_each(|page| assert_holds(part(*page), &contents[*page..][..1]));
    assert!(world.engine.pooled_copies() > left.len() / 2);
    let before = world.count(Counter::PagesCompacted);
    let packed = world.count(Counter::PagesPooled);
    // Rounds of reclaim begin with it.
    for _ in 0..200 {
        world.engine.reclaim_now(1);
    }
    assert!(world.count(Counter::PagesCompacted) > before + left.len() as u64 / 4);
    left.iter().for_each(|page| assert_holds(part(*page), &contents[*page..][..1]));
    assert!(world.count(Counter::PagesPooled) - packed < left.len() as u64 / 2);
    world.engine.unmap(memory.address(), memory.len()).unwrap();
    assert_eq!(world.engine.pooled_copies(), 0);
}

#[test]
fn a_pool_that_is_nearly_full_gives_copies_up_and_none_is_lost() {
    let world = World::new(&Setup::default());
    let (memory, contents) = unchanged(&world);
    let more: Vec<_> = (0..16_000).map(|page| Content::Sparse(page + 5000)).collect();
    let other = world.map_with(&more);
    world.evict(other);
    assert_holds(memory, &contents);
    assert_holds(other, &more);
    world.assert_survives(memory, &contents);
    world.assert_survives(other, &more);
    let copies = world.engine.pooled_copies() as u64;
    let gone = [Counter::PoolPagesUnchanged, Counter::PoolCopiesShed].map(|of| world.count(of));
    assert_eq!(gone.iter().sum::<u64>() + copies, world.count(Counter::PoolCopiesKept));
    world.assert_within_budget();
}

#[test]
fn threads_that_read_and_write_see_what_they_wrote() {
    for avoid_move in [false, true] {
        let setup = Setup { memory_mib: 12, avoid_move, ..Setup::default() };
        let world = World::new(&setup);
        let contents = sparse(4000);
        let memory = world.map_with(&contents);
        in_threads(&world, |thread| read_and_write(&world, (memory, &contents), thread, 8), || {});
        assert!(world.count(Counter::PoolPagesUnchanged) > 100);
        assert!(world.count(Counter::PoolCopiesWritten) > 100);
        world.engine.unmap(memory.address(), memory.len()).unwrap();
        assert_eq!(world.engine.pooled_copies(), 0);
        world.assert_within_budget();
    }
}
