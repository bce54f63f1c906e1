//! The `mmap` family, pins, and `quiesce` before a fork, with pages in every place.

use crate::common::{
    Content, Setup, World, assert_holds, assert_zero, every_kind, page_of, random, worlds,
    write_all,
};
use softswap_engine::api::engine::remap::Source;
use softswap_engine::api::engine::{GROWABLE_ALIGN_BYTES, Move};
use softswap_engine::base::stats::{Counter, Tier};
use softswap_engine::memory::address_space::Kind;
use softswap_sys::PAGE_SIZE;
use softswap_sys::window::READ_WRITE;
use softswap_testkit::Memory;

const PROT_NONE: i32 = 0;
const PROT_READ: i32 = 1;

/// Returns a mapping with every third page resident. Every seventh page is never written.
fn map_in_every_place(world: &World, contents: &[Content]) -> Memory {
    let memory = world.map(contents.len());
    for (page, content) in contents.iter().enumerate().filter(|(page, _)| page % 7 != 0) {
        assert!(memory.write_bytes(page * PAGE_SIZE, &content.bytes()));
    }
    world.evict(memory);
    for page in (0..contents.len()).step_by(3) {
        assert!(page_of(memory, page).is_some());
    }
    memory
}

fn contents() -> Vec<Content> {
    let mut contents = every_kind(130);
    contents.iter_mut().step_by(7).for_each(|content| *content = Content::Zero);
    contents
}

fn in_every_place() -> impl Iterator<Item = (World, Memory, Vec<Content>)> {
    worlds().map(|world| {
        let contents = contents();
        let memory = map_in_every_place(&world, &contents);
        (world, memory, contents)
    })
}

#[test]
fn discarded_pages_read_as_zeroes() {
    for (world, memory, contents) in in_every_place() {
        let dropped = memory.part(20 * PAGE_SIZE, 90 * PAGE_SIZE);
        world.engine.discard(dropped.address(), dropped.len()).unwrap();
        assert_zero(dropped);
        assert_holds(memory.part(0, 20 * PAGE_SIZE), &contents[..20]);
        assert_holds(memory.part(110 * PAGE_SIZE, 20 * PAGE_SIZE), &contents[110..]);
        let fresh = every_kind(90);
        write_all(dropped, &fresh);
        world.assert_survives(dropped, &fresh);
    }
}

#[test]
fn discard_and_unmap_free_slots_and_budget() {
    // The rounds together map ten times the memory that area and DRAM can store.
    let world = World::new(&Setup { memory_mib: 8, swap_mib: Some(8), ..Setup::default() });
    let contents: Vec<_> = random(1500).into_iter().chain(every_kind(600)).collect();
    for round in 0..20 {
        let memory = world.map_evicted(&contents);
        assert_holds(memory.part(0, 300 * PAGE_SIZE), &contents[..300]);
        if round % 2 == 0 {
            world.engine.discard(memory.address(), memory.len()).unwrap();
            assert_zero(memory);
        }
        world.engine.unmap(memory.address(), memory.len()).unwrap();
    }
    world.assert_within_budget();
}

#[test]
fn unmapped_memory_is_refused_and_remapped_fresh() {
    for (world, memory, contents) in in_every_place() {
        let unmapped = memory.part(40 * PAGE_SIZE, 50 * PAGE_SIZE);
        world.engine.unmap(unmapped.address(), unmapped.len()).unwrap();
        assert!(!world.engine.any_mapped(unmapped.address(), unmapped.len()));
        assert!((0..50).all(|page| unmapped.read(page * PAGE_SIZE).is_none()));
        assert!(!unmapped.write(0, 1));
        assert_holds(memory.part(0, 40 * PAGE_SIZE), &contents[..40]);
        assert_holds(memory.part(90 * PAGE_SIZE, 40 * PAGE_SIZE), &contents[90..]);
        assert!(world.engine.map_at(unmapped.address(), unmapped.len(), READ_WRITE, true).unwrap());
        assert_zero(unmapped);
    }
}

#[test]
fn mapping_over_mapping_drops_old_content() {
    for (world, memory, _) in in_every_place() {
        assert!(world.engine.map_at(memory.address(), memory.len(), READ_WRITE, true).unwrap());
        assert_zero(memory);
    }
}

#[test]
fn mapping_without_replace_keeps_existing() {
    for (world, memory, contents) in in_every_place() {
        let (start, len) = (memory.address(), memory.len());
        assert!(!world.engine.map_at(start, len, READ_WRITE, false).unwrap());
        assert_holds(memory, &contents);
        world.engine.unmap(start, len).unwrap();
        assert!(world.engine.map_at(start, len, READ_WRITE, false).unwrap());
        assert_zero(memory);
    }
}

#[test]
fn remap_moves_content() {
    for (world, memory, contents) in in_every_place() {
        // Map a neighbour, so that the range cannot grow in place.
        let after = memory.address() + memory.len();
        assert!(world.engine.map_at(after, PAGE_SIZE, READ_WRITE, true).unwrap());
        let len = 4 * memory.len();
        assert!(world.engine.remap(memory.address(), memory.len(), len, Move::Never).is_err());
        let moved =
            world.engine.remap(memory.address(), memory.len(), len, Move::Anywhere).unwrap();
        assert_ne!(moved, memory.address());
        let moved = Memory::new(moved, len).unwrap();
        assert_holds(moved, &contents);
        assert_zero(moved.part(memory.len(), 3 * memory.len()));
        assert!((0..memory.pages()).all(|page| memory.read(page * PAGE_SIZE).is_none()));
        world.assert_survives(moved, &contents);
    }
}

#[test]
fn a_range_shrinks_and_grows_in_place() {
    for (world, memory, contents) in in_every_place() {
        let (start, len) = (memory.address(), memory.len());
        let half = len / 2;
        assert_eq!(world.engine.remap(start, len, half, Move::Never).unwrap(), start);
        assert_eq!(memory.read(half), None);
        assert_eq!(world.engine.remap(start, half, len, Move::Never).unwrap(), start);
        assert_holds(memory.part(0, half), &contents[..65]);
        assert_zero(memory.part(half, half));
    }
}

#[test]
fn protection_applies_to_swapped_pages() {
    for (world, memory, contents) in in_every_place() {
        let (start, len) = (memory.address(), memory.len());
        world.engine.protect(start, len, PROT_READ).unwrap();
        world.assert_survives(memory, &contents);
        assert!((0..130).all(|page| !memory.write(page * PAGE_SIZE, 1)));
        world.engine.protect(start, len, PROT_NONE).unwrap();
        world.evict(memory);
        assert!((0..130).all(|page| memory.read(page * PAGE_SIZE).is_none()));
        world.engine.protect(start, len, READ_WRITE).unwrap();
        assert_holds(memory, &contents);
        assert!((0..130).all(|page| memory.write(page * PAGE_SIZE, 1)));
    }
}

#[test]
fn new_mapping_has_fresh_protection() {
    let world = World::new(&Setup::default());
    let memory = world.map(20);
    world.engine.protect(memory.address(), memory.len(), PROT_NONE).unwrap();
    world.engine.unmap(memory.address(), memory.len()).unwrap();
    assert!(world.engine.map_at(memory.address(), memory.len(), READ_WRITE, true).unwrap());
    write_all(memory, &every_kind(20));
}

#[test]
fn pinned_pages_stay_resident() {
    for (world, memory, contents) in in_every_place() {
        let (start, len) = (memory.address() + 10 * PAGE_SIZE + 100, 30 * PAGE_SIZE);
        assert_eq!(world.engine.pin(start, len, usize::MAX).unwrap(), len);
        world.engine.reclaim_now(100);
        assert_eq!(world.resident(memory), 31);
        assert_eq!(world.resident(memory.part(10 * PAGE_SIZE, 31 * PAGE_SIZE)), 31);
        assert_eq!(world.engine.pin(start, PAGE_SIZE, usize::MAX).unwrap(), PAGE_SIZE);
        world.engine.unpin(start, PAGE_SIZE);
        world.engine.reclaim_now(100);
        assert_eq!(world.resident(memory), 31);
        world.engine.unpin(start, len);
        world.assert_survives(memory, &contents);
    }
}

#[test]
fn pinning_stops_at_mapping_end() {
    let world = World::new(&Setup::default());
    let memory = world.map(8);
    world.engine.unmap(memory.address() + 5 * PAGE_SIZE, PAGE_SIZE).unwrap();
    let pinned = world.engine.pin(memory.address() + 10, memory.len() - 10, usize::MAX).unwrap();
    assert_eq!(pinned, 5 * PAGE_SIZE - 10);
    world.engine.unpin(memory.address() + 10, pinned);
    let most = 2 * PAGE_SIZE;
    assert_eq!(world.engine.pin(memory.address(), memory.len(), most).unwrap(), most);
    world.engine.unpin(memory.address(), most);
    world.evict(memory.part(0, 5 * PAGE_SIZE));
}

#[test]
fn locked_memory_is_resident_and_bounded() {
    let world = World::new(&Setup::default());
    let contents = contents();
    let memory = map_in_every_place(&world, &contents);
    world.engine.lock_range(memory.address(), memory.len()).unwrap();
    world.engine.reclaim_now(100);
    assert_eq!(world.resident(memory), 130);
    assert_holds(memory, &contents);
    let large = world.map(2000);
    assert!(world.engine.lock_range(large.address(), large.len()).is_err());
    world.engine.unlock_range(memory.address(), memory.len()).unwrap();
    world.assert_survives(memory, &contents);
}

#[test]
fn remap_may_keep_old_range_mapped() {
    for (world, memory, contents) in in_every_place() {
        let (start, len) = (memory.address(), memory.len());
        let moved = world.engine.remap_to(start, len, len, None, Source::Emptied).unwrap();
        let moved = Memory::new(moved, len).unwrap();
        assert_holds(moved, &contents);
        assert_zero(memory);
        world.assert_survives(moved, &contents);
    }
}

#[test]
fn several_mappings_are_not_moved() {
    for (world, memory, contents) in in_every_place() {
        let (start, len) = (memory.address(), memory.len());
        let source = world.map(8);
        let middle = source.address() + 4 * PAGE_SIZE;
        world.engine.protect(middle, PAGE_SIZE, 0).unwrap();
        let to_memory = |from, len| {
            world.engine.remap_to(from, len, len, Some(start), Source::Unmapped).is_ok()
        };
        assert!(!to_memory(source.address(), source.len()));
        world.engine.unmap(middle, PAGE_SIZE).unwrap();
        assert!(!to_memory(source.address(), source.len()));
        assert_holds(memory, &contents);
        assert!(to_memory(source.address(), 4 * PAGE_SIZE));
        let parts = world.engine.segments(source.address(), source.len());
        let kinds: Vec<_> = parts.iter().map(|(_, len, kind)| (len / PAGE_SIZE, *kind)).collect();
        assert_eq!(kinds, [(5, Kind::Hole), (3, Kind::Managed)]);
        assert_eq!(world.engine.segments(start, len).len(), 1);
    }
}

#[test]
fn quiesced_engine_evicts_nothing_and_forker_can_fault() {
    for (world, memory, contents) in in_every_place() {
        let before = world.resident(memory);
        assert!(before < 130);
        let quiesced = world.engine.quiesce();
        assert_holds(memory, &contents);
        assert_eq!(world.resident(memory), 130);
        drop(quiesced);
        world.assert_survives(memory, &contents);
    }
}

#[test]
fn sequential_first_touch_uses_fault_around() {
    let world = World::new(&Setup::default());
    let memory = world.map(1024);
    assert!((0..1024).all(|page| memory.write(page * PAGE_SIZE, page as u64)));
    let faults = world.engine.stats().faults(Tier::Zero);
    assert!(faults < 256, "{faults} faults for 1024 pages");
    assert!((0..1024).all(|page| memory.read(page * PAGE_SIZE) == Some(page as u64)));
    assert_eq!(world.count(Counter::PagesOut), 0);
}

#[test]
fn growable_memory_grows_in_place() {
    let world = World::new(&Setup::default());
    let contents = contents();
    let mut len = contents.len() * PAGE_SIZE;
    let at =
        world.engine.map_growable(len, READ_WRITE).unwrap().expect("the window has free space");
    assert!(world.engine.growable().contains(&at) && at.is_multiple_of(GROWABLE_ALIGN_BYTES));
    write_all(Memory::new(at, len).unwrap(), &contents);
    while len < 64 << 20 {
        let other = world.engine.map_growable(PAGE_SIZE, READ_WRITE).unwrap().unwrap();
        assert!(!(at..at + len * 2).contains(&other) && world.map(300).address() < at);
        assert_eq!(world.engine.remap(at, len, len * 3 / 2, Move::Never).unwrap(), at);
        len = (len * 3 / 2).next_multiple_of(PAGE_SIZE);
    }
    world.assert_survives(Memory::new(at, contents.len() * PAGE_SIZE).unwrap(), &contents);
    assert_zero(Memory::new(at + contents.len() * PAGE_SIZE, 1 << 20).unwrap());
    assert_eq!(world.engine.remap(at, len, PAGE_SIZE, Move::Never).unwrap(), at);
    assert_eq!(world.engine.remap(at, PAGE_SIZE, len, Move::Never).unwrap(), at);
    world.engine.unmap(at, len).unwrap();
    assert_eq!(world.engine.map_growable(PAGE_SIZE, READ_WRITE).unwrap(), Some(at));
}

#[test]
fn mapping_moves_once_to_grow() {
    let world = World::new(&Setup::default());
    let contents = contents();
    let memory = map_in_every_place(&world, &contents);
    let after = memory.address() + memory.len();
    assert!(world.engine.map_at(after, PAGE_SIZE, READ_WRITE, true).unwrap());
    let mut len = memory.len() + PAGE_SIZE;
    let moved_to = world.engine.remap(memory.address(), memory.len(), len, Move::Anywhere);
    let at = moved_to.unwrap();
    for _ in 0..50 {
        assert_eq!(world.engine.remap(at, len, 2 * len, Move::Never).unwrap(), at);
        assert_eq!(world.engine.remap(at, 2 * len, len + PAGE_SIZE, Move::Never).unwrap(), at);
        len += PAGE_SIZE;
    }
    world.assert_survives(Memory::new(at, memory.len()).unwrap(), &contents);
}

#[test]
fn fault_around_stops_at_protection_change() {
    let world = World::new(&Setup::default());
    let memory = world.map(128);
    let (open, protected_bytes) = (96, 32 * PAGE_SIZE);
    world.engine.protect(memory.address() + open * PAGE_SIZE, protected_bytes, PROT_NONE).unwrap();
    let contents = every_kind(open as u64);
    write_all(memory, &contents);
    let faults = world.engine.stats().faults(Tier::Zero);
    assert!(faults <= 16, "{faults} faults for {open} pages");
    world.assert_survives(memory.part(0, open * PAGE_SIZE), &contents);
}
