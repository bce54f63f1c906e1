//! Copies of unchanged pages in the pool. For both kinds of copy see [`crate::swap_cache`].

use crate::common::{
    Content, Setup, World, assert_holds, in_threads, read_and_write, sparse, worlds_of,
};
use crate::swap_cache::IN_POOL;
use softswap_engine::base::stats::Counter;
use softswap_sys::PAGE_SIZE;

#[test]
fn compaction_moves_copies() {
    let world = World::new(&Setup { memory_mib: 32, ..Setup::default() });
    let (memory, contents) = world.mapped(sparse(8000));
    world.assert_survives(memory, &contents);
    let kept = world.engine.pooled_copies();
    assert!(kept > 1000, "{kept}");
    world.evict(memory);
    // One page in five keeps its copy in the slab.
    let keep_copy = |page: usize| page.is_multiple_of(5);
    for page in (0..contents.len()).filter(|page| !keep_copy(*page)) {
        world.engine.discard(memory.address() + page * PAGE_SIZE, PAGE_SIZE).unwrap();
    }
    let part = |page: usize| memory.part(page * PAGE_SIZE, PAGE_SIZE);
    let left: Vec<_> = (0..contents.len()).filter(|page| keep_copy(*page)).collect();
    left.iter().for_each(|page| assert_holds(part(*page), &contents[*page..][..1]));
    assert!(world.engine.pooled_copies() > left.len() / 2);
    let before = world.count(Counter::PagesCompacted);
    let compressed = world.count(Counter::PagesPooled);
    // Each round of reclaim starts with compaction.
    for _ in 0..200 {
        world.engine.reclaim_now(1);
    }
    assert!(world.count(Counter::PagesCompacted) > before + left.len() as u64 / 4);
    left.iter().for_each(|page| assert_holds(part(*page), &contents[*page..][..1]));
    assert!(world.count(Counter::PagesPooled) - compressed < left.len() as u64 / 2);
    world.engine.unmap(memory.address(), memory.len()).unwrap();
    assert_eq!(world.engine.pooled_copies(), 0);
}

#[test]
fn nearly_full_pool_frees_copies() {
    let world = World::new(&Setup::default());
    let (memory, contents) = IN_POOL.unchanged(&world);
    let (other, more) =
        world.evicted((0..16_000).map(|page| Content::Sparse(page + 5000)).collect());
    assert_holds(memory, &contents);
    assert_holds(other, &more);
    world.assert_survives(memory, &contents);
    world.assert_survives(other, &more);
    let copies = world.engine.pooled_copies() as u64;
    let freed = [Counter::PoolPagesUnchanged, Counter::PoolCopiesShed].map(|of| world.count(of));
    assert_eq!(freed.iter().sum::<u64>() + copies, world.count(Counter::PoolCopiesKept));
    world.assert_within_budget();
}

#[test]
fn threads_see_their_writes() {
    for world in worlds_of(Setup { memory_mib: 12, ..Setup::default() }) {
        let (memory, contents) = world.mapped(sparse(4000));
        in_threads(&world, |thread| read_and_write(&world, (memory, &contents), thread, 8), || {});
        assert!(world.count(Counter::PoolPagesUnchanged) > 100);
        assert!(world.count(Counter::PoolCopiesWritten) > 100);
        world.engine.unmap(memory.address(), memory.len()).unwrap();
        assert_eq!(world.engine.pooled_copies(), 0);
        world.assert_within_budget();
    }
}
