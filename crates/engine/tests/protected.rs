//! Pages that came in to be read, and of which there is no room for a copy: they stay
//! write-protected, leave together, and are what they were, or what was written since.

mod common;
use common::{
    Content, LINE, Setup, World, assert_holds, assert_zero, in_threads, random, read_and_write,
    write_all,
};
use softswap_engine::base::stats::Counter;
use softswap_engine::door::settings::PoolLimit;
use softswap_engine::store::io::Operation;
use softswap_engine::store::io::sim::Fault;
use softswap_sys::PAGE_SIZE;
use softswap_sys::file::errno::EIO;
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
            assert!(without > 100, "{without}");
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

/// Pages that only the disk takes, and of which it keeps no copies: more than half of
/// the area is in use.
fn on_a_full_disk(avoid_move: bool) -> (World, Memory, Vec<Content>) {
    let world = World::new(&Setup { swap_mib: Some(4), avoid_move, ..Setup::default() });
    let contents = random(900);
    let memory = world.map_with(&contents);
    world.evict(memory);
    // In no order: what comes along in a stream is not protected.
    (0..900).for_each(|at| assert!(memory.read(at * 463 % 900 * PAGE_SIZE).is_some()));
    let without = world.engine.protected_without_copy();
    assert!(without > 100, "{without}");
    (world, memory, contents)
}

#[test]
fn what_only_the_disk_takes_is_written_again() {
    for avoid_move in [false, true] {
        let (world, memory, contents) = on_a_full_disk(avoid_move);
        let without = world.engine.protected_without_copy() as u64;
        let written = world.count(Counter::PagesWritten);
        world.evict(memory);
        assert_eq!(world.count(Counter::PagesWritten), written + without);
        assert_eq!(world.engine.protected_without_copy(), 0);
        assert_holds(memory, &contents);
        world.assert_within_budget();
    }
}

#[test]
fn what_cannot_be_written_stays_as_it_was() {
    for avoid_move in [false, true] {
        let (world, memory, contents) = on_a_full_disk(avoid_move);
        let protected = || world.engine.copies() + world.engine.protected_without_copy();
        let before = protected();
        world.disk.fail(
            Operation::Write,
            world.disk.counts().writes,
            u64::MAX / 2,
            Fault::Errno(EIO),
        );
        world.engine.reclaim_now(100);
        assert!(world.resident(memory) > 100);
        assert!(world.count(Counter::WriteErrors) > 0);
        assert!(protected() < before, "some were to leave");
        world.disk.heal();
        assert_holds(memory, &contents);
        world.assert_survives(memory, &contents);
        world.assert_within_budget();
    }
}

#[test]
fn written_and_unwritten_pages_leave_together_and_none_is_lost() {
    for avoid_move in [false, true] {
        let (world, memory, mut contents) = on_a_full_disk(avoid_move);
        for page in (0..900).filter(|page| page % 3 != 0) {
            contents[page] = Content::Random((page + 5000) as u64);
            assert!(memory.write_bytes(page * PAGE_SIZE, &contents[page].bytes()));
        }
        let (without, written) =
            (world.engine.protected_without_copy() as u64, world.count(Counter::PagesWritten));
        assert!(without > 0);
        world.evict(memory);
        assert_eq!(world.count(Counter::PagesWritten), written + 600 + without);
        assert_holds(memory, &contents);
        world.assert_within_budget();
    }
}

#[test]
fn a_copy_that_is_given_up_leaves_its_page_protected_until_it_is_written() {
    // 2048 slots: under half of them are in use when the first pages come in.
    let world = World::new(&Setup { swap_mib: Some(8), ..Setup::default() });
    let mut contents = random(900);
    let memory = world.map_with(&contents);
    world.assert_survives(memory, &contents);
    assert_eq!((world.engine.copies(), world.engine.protected_without_copy()), (900, 0));
    // These need slots that the copies have.
    let more: Vec<_> = (0..1500).map(|page| Content::Random(page + 5000)).collect();
    let other = world.map_with(&more);
    for _ in 0..1000 {
        world.engine.reclaim_now(1);
        if world.count(Counter::CopiesShed) > 0 {
            break;
        }
    }
    let shed = world.engine.protected_without_copy();
    assert!(shed > 0);
    for page in (0..900).step_by(2) {
        contents[page] = Content::Random(page as u64 + 9000);
        assert!(memory.write_bytes(page * PAGE_SIZE, &contents[page].bytes()));
    }
    assert!(world.engine.protected_without_copy() < shed);
    assert_holds(memory, &contents);
    assert_holds(other, &more);
    world.engine.unmap(other.address(), other.len()).unwrap();
    world.assert_survives(memory, &contents);
}

/// Little of the pool is for copies, so that most pages have none.
#[test]
fn threads_that_read_and_write_see_what_they_wrote() {
    for avoid_move in [false, true] {
        let pool = PoolLimit::Percent(20);
        let world = World::new(&Setup { memory_mib: 10, avoid_move, pool, ..Setup::default() });
        let contents: Vec<_> = (0..4000).map(Content::Sparse).collect();
        let memory = world.map_with(&contents);
        let mut seen = 0;
        in_threads(
            &world,
            |thread| read_and_write(&world, (memory, &contents), thread, 16),
            || seen = seen.max(world.engine.protected_without_copy()),
        );
        assert!(seen > 100, "{seen}");
        for (page, content) in contents.iter().enumerate() {
            let mut bytes = [0; PAGE_SIZE];
            assert!(memory.read_bytes(page * PAGE_SIZE, &mut bytes));
            assert!(bytes[8 * LINE..] == content.bytes()[8 * LINE..], "page {page}");
        }
        world.engine.unmap(memory.address(), memory.len()).unwrap();
        assert_eq!(world.engine.protected_without_copy(), 0);
        world.assert_within_budget();
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
