//! Unchanged pages are evicted to their stored copy, in the swap area or in the pool. A write of
//! the program or the kernel frees the copy. A copy is freed with its page.

use crate::common::{
    Content, LINE, Setup, World, assert_holds, assert_zero, fill_from, in_threads, mix64, page_of,
    random, until_all_have_moved, worlds, worlds_of, write_all,
};
use softswap_engine::api::engine::Engine;
use softswap_engine::base::stats::Counter;
use softswap_engine::store::io::Operation;
use softswap_sys::PAGE_SIZE;
use softswap_sys::file::errno::EIO;
use softswap_testkit::Memory;
use softswap_testkit::sim_device::Fault;

const PAGES: usize = 300;

pub(crate) struct Copies {
    content: fn(u64) -> Content,
    count: fn(&Engine) -> usize,
    pages_stored: Counter,
    pages_unchanged: Counter,
    copies_kept: Counter,
    copies_written: Counter,
    copies_shed: Counter,
}

const IN_AREA: Copies = Copies {
    content: Content::Random,
    count: Engine::copies,
    pages_stored: Counter::PagesWritten,
    pages_unchanged: Counter::PagesUnchanged,
    copies_kept: Counter::CopiesKept,
    copies_written: Counter::CopiesWritten,
    copies_shed: Counter::CopiesShed,
};

pub(crate) const IN_POOL: Copies = Copies {
    content: Content::Sparse,
    count: Engine::pooled_copies,
    pages_stored: Counter::PagesPooled,
    pages_unchanged: Counter::PoolPagesUnchanged,
    copies_kept: Counter::PoolCopiesKept,
    copies_written: Counter::PoolCopiesWritten,
    copies_shed: Counter::PoolCopiesShed,
};

impl Copies {
    pub(crate) fn unchanged(&self, world: &World) -> (Memory, Vec<Content>) {
        let contents: Vec<_> = (0..PAGES as u64).map(self.content).collect();
        let memory = world.map_clean(&contents);
        (memory, contents)
    }
}

fn each_of<I: Iterator<Item = World>>(worlds: fn() -> I) -> impl Iterator<Item = (World, Copies)> {
    worlds().map(|world| (world, IN_AREA)).chain(worlds().map(|world| (world, IN_POOL)))
}

#[test]
fn clean_page_is_not_stored_again() {
    for (world, copies) in each_of(worlds) {
        let (memory, contents) = copies.unchanged(&world);
        for round in 1..4 {
            world.assert_survives(memory, &contents);
            assert_eq!(world.count(copies.pages_unchanged), (round * PAGES) as u64);
        }
        assert_eq!(world.count(copies.pages_stored), PAGES as u64);
        assert_eq!(world.count(copies.copies_written), 0);
    }
}

#[test]
fn only_dirty_pages_are_stored_again() {
    for (world, copies) in each_of(worlds) {
        let (memory, mut contents) = copies.unchanged(&world);
        for page in (0..PAGES).step_by(7) {
            contents[page] = (copies.content)((page + 1000) as u64);
            assert!(memory.write_bytes(page * PAGE_SIZE, &contents[page].bytes()));
        }
        let changed = PAGES.div_ceil(7);
        assert_eq!((copies.count)(&world.engine), PAGES - changed);
        world.assert_survives(memory, &contents);
        assert_eq!(world.count(copies.copies_written), changed as u64);
        assert_eq!(world.count(copies.pages_stored), (PAGES + changed) as u64);
        assert_eq!(world.count(copies.pages_unchanged), (PAGES - changed) as u64);
    }
}

#[test]
fn pinned_page_may_be_written_by_kernel() {
    for (world, copies) in each_of(worlds) {
        let (memory, mut contents) = copies.unchanged(&world);
        let (start, len) = (memory.address() + 10 * PAGE_SIZE, 20 * PAGE_SIZE);
        assert_eq!(world.engine.pin(start, len, usize::MAX).unwrap(), len);
        assert_eq!(world.count(copies.copies_written), 20);
        // The kernel writes the pinned pages without a fault, which could not be resolved.
        let zeroes = std::fs::File::open("/dev/zero").unwrap();
        fill_from(memory.part(10 * PAGE_SIZE, len), &zeroes);
        contents[10..30].fill(Content::Zero);
        world.engine.unpin(start, len);
        world.assert_survives(memory, &contents);
    }
}

/// Areas that remain half full only if copies are freed with their pages.
fn worlds_with_small_areas() -> impl Iterator<Item = World> {
    worlds_of(Setup { swap_mib: Some(8), ..Setup::default() })
}

#[test]
fn copies_are_freed_with_their_pages() {
    for (world, copies) in each_of(worlds_with_small_areas) {
        for round in 0..40 {
            let (memory, contents) = copies.unchanged(&world);
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
                    write_all(to, &contents);
                    world.engine.unmap(to.address(), to.len()).unwrap();
                }
                _ => write_all(memory, &contents),
            }
            world.engine.unmap(memory.address(), memory.len()).unwrap();
            assert_eq!((copies.count)(&world.engine), 0);
        }
        assert!(world.count(copies.copies_kept) > 3 * PAGES as u64);
        world.engine.reclaim_now(1);
        assert_eq!(world.count(copies.copies_shed), 0);
    }
}

#[test]
fn remap_onto_clean_pages_drops_them() {
    for world in worlds() {
        let (target, _) = IN_AREA.unchanged(&world);
        let (source, contents) = IN_AREA.unchanged(&world);
        world.engine.move_to(source.address(), source.len(), target.address()).unwrap();
        assert_holds(target, &contents);
        let rewritten: Vec<_> =
            (0..PAGES).map(|page| Content::Random(page as u64 + 7000)).collect();
        write_all(target, &rewritten);
        world.assert_survives(target, &rewritten);
        assert_zero(source);
    }
}

#[test]
fn half_full_area_keeps_no_copies_and_full_area_frees_them() {
    // Of 2048 slots fewer than half are in use at the first swap-ins, so copies are kept.
    let world = World::new(&Setup { swap_mib: Some(8), ..Setup::default() });
    let (memory, first) = world.mapped(random(900));
    world.assert_survives(memory, &first);
    assert_eq!(world.count(Counter::CopiesKept), 900);
    let (other, more) = world.mapped((0..1100).map(|page| Content::Random(page + 5000)).collect());
    world.assert_survives(other, &more);
    assert_eq!(world.count(Counter::CopiesShed) + world.count(Counter::PagesUnchanged), 900);
    world.evict(memory);
    world.evict(other);
    let kept = world.count(Counter::CopiesKept);
    assert_holds(memory.part(0, 600 * PAGE_SIZE), &first[..600]);
    assert_eq!(world.count(Counter::CopiesKept), kept, "a half-full area must keep no copies");
    assert_holds(memory, &first);
    assert_holds(other, &more);
}

#[test]
fn pages_with_copies_leave_failed_area() {
    let world = World::new(&Setup { spare_disk_mib: Some(64), ..Setup::default() });
    let (memory, contents) = IN_AREA.unchanged(&world);
    world.disk.fail(Operation::Write, 0, u64::MAX / 2, Fault::Errno(EIO));
    let (other, more) = world.evicted((0..100).map(|page| Content::Random(page + 9000)).collect());
    assert_eq!(world.count(Counter::AreasFailed), 1);
    until_all_have_moved(&world, || world.engine.copies() == 0);
    world.evict(memory);
    world.disk.fail(Operation::Read, 0, u64::MAX / 2, Fault::Errno(EIO));
    assert_holds(memory, &contents);
    assert_holds(other, &more);
}

#[test]
fn written_chunk_stops_keeping_copies() {
    let world = World::new(&Setup::default());
    let (memory, contents) = world.mapped(random(PAGES as u64));
    let kept = |world: &World| world.count(Counter::CopiesKept);
    for _ in 0..4 {
        world.evict(memory);
        let before = kept(&world);
        for (page, content) in contents.iter().enumerate() {
            assert!(page_of(memory, page).is_some_and(|bytes| bytes == content.bytes()));
            assert!(memory.write_bytes(page * PAGE_SIZE, &content.bytes()));
        }
        if world.count(Counter::CopiesWritten) > 200 {
            assert!(kept(&world) - before < PAGES as u64 / 4);
        }
    }
    world.assert_survives(memory, &contents);
}

fn share(world: &World, memory: Memory, thread: usize) {
    let zeroes = std::fs::File::open("/dev/zero").unwrap();
    let mut expected = vec![0; memory.pages()];
    for step in 0..15_000 {
        let chance = mix64((thread << 32 | step) as u64);
        let page = (chance >> 8) as usize % memory.pages();
        let at = page * PAGE_SIZE + thread * LINE;
        let wanted = &mut expected[page];
        assert!(*wanted == 0 || memory.read(at) == Some(*wanted), "page {page}");
        match chance % 16 {
            0..3 => {
                *wanted = chance | 1;
                assert!(memory.write(at, *wanted));
            }
            3 => {
                let start = memory.address() + at;
                assert_eq!(world.engine.pin(start, LINE, usize::MAX).unwrap(), LINE);
                fill_from(memory.part(at, LINE), &zeroes);
                assert_eq!(memory.read(at), Some(0));
                world.engine.unpin(start, LINE);
                *wanted = 0;
            }
            _ => {}
        }
    }
    for (page, wanted) in expected.into_iter().enumerate().filter(|(_, wanted)| *wanted != 0) {
        assert_eq!(memory.read(page * PAGE_SIZE + thread * LINE), Some(wanted), "page {page}");
    }
}

#[test]
fn shared_pages_lose_no_write() {
    // The area has space for all copies, or so little that copies are freed.
    for (avoid_move, swap_mib) in [(false, None), (true, None), (false, Some(14))] {
        let setup = Setup { memory_mib: 12, avoid_move, swap_mib, ..Setup::default() };
        let world = World::new(&setup);
        let memory = world.map_with(&random(3500));
        in_threads(&world, |thread| share(&world, memory, thread), || {});
        assert!(world.count(Counter::PagesUnchanged) > 100);
        assert!(world.count(Counter::CopiesWritten) > 100);
        world.engine.unmap(memory.address(), memory.len()).unwrap();
        assert_eq!(world.engine.copies(), 0);
        world.assert_within_budget();
    }
}
