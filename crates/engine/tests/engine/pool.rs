//! The compressed pool: admission, write-back of compressed pages, and intact content.

use crate::common::{
    Content, Setup, World, assert_holds, every_kind, mix64, page_of, read_in_threads, sparse,
    until_all_have_moved, wait_until,
};
use softswap_engine::api::engine::Move;
use softswap_engine::api::live_settings;
use softswap_engine::api::settings::PoolLimit;
use softswap_engine::base::access::Access;
use softswap_engine::base::stats::{Counter, StopReason};
use softswap_engine::store::io::Operation;
use softswap_sys::PAGE_SIZE;
use softswap_sys::file::errno::EIO;
use softswap_sys::window::READ_WRITE;
use softswap_testkit::Memory;
use softswap_testkit::sim_device::Fault;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn touch(world: &World, memory: Memory, steps: u64, page_of: impl Fn(u64) -> u64) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| world.engine.run_reclaim(|| !done.load(Ordering::Acquire)));
        for step in 0..steps {
            assert!(memory.read(page_of(step) as usize * PAGE_SIZE).is_some());
        }
        done.store(true, Ordering::Release);
    });
}

/// Returns a setup whose disk is much slower than decompression, on any machine.
fn slow() -> Setup {
    Setup { latency: Duration::from_micros(60), ..Setup::default() }
}

#[test]
fn auto_pool_grows_and_fixed_pool_stays() {
    let (world, memory, contents) = world_with_compressed(&slow());
    let reads = || {
        let before = world.count(Counter::PagesRead);
        touch(&world, memory, 20_000, |step| mix64(step) % 12_000);
        world.count(Counter::PagesRead) - before
    };
    let fixed = reads();
    world.engine.set_pool_limit(PoolLimit::Auto);
    // The pool's growth depends on measurements on this machine, so repeat until it has grown.
    wait_until("the pool has grown", || match reads() {
        grown if grown < fixed / 4 => Ok(()),
        grown => Err(format!("{fixed} pages read, then {grown}")),
    });
    assert_holds(memory, &contents);
    world.assert_within_budget();
    world.engine.set_pool_limit(PoolLimit::Percent(30));
    reads();
    assert_eq!(world.count(Counter::PoolLimitBytes), (16 << 20) / 100 * 30 / 65536 * 65536);
    assert_holds(memory, &contents);
}

#[test]
fn auto_pool_shrinks_for_hot_pages() {
    let world = World::new(&Setup { pool: PoolLimit::Auto, ..slow() });
    let (memory, contents) = world.evicted(sparse(PAGES));
    let before = world.count(Counter::PoolLimitBytes);
    // The touched pages do not fit with the largest pool, but with the smallest one.
    wait_until("the pool has shrunk", || {
        touch(&world, memory, 50_000, |step| mix64(step) % 1500 * 7);
        match world.count(Counter::PoolLimitBytes) {
            after if after < before => Ok(()),
            after => Err(format!("{before} became {after}")),
        }
    });
    assert_holds(memory, &contents);
    world.assert_within_budget();
}

/// Number of pages, more than the pool of a small budget holds.
const PAGES: u64 = 16_384;

fn world_with_compressed(setup: &Setup) -> (World, Memory, Vec<Content>) {
    let world = World::new(&setup.clone().all_offered());
    let (memory, contents) = world.mapped(sparse(PAGES));
    world.evict_and_write_back(memory);
    assert!(world.count(Counter::PagesWrittenBack) > 1000);
    (world, memory, contents)
}

#[test]
fn pages_fitting_pool_use_no_disk() {
    let world = World::new(&Setup { memory_mib: 64, ..Setup::default() });
    let (memory, contents) = world.mapped(sparse(PAGES));
    world.assert_survives(memory, &contents);
    assert_eq!(world.count(Counter::PagesWritten), 0);
    assert!(world.count(Counter::PagesPooled) >= PAGES);
    world.assert_within_budget();
}

#[test]
fn faulting_threads_reclaim_while_disk_is_unused() {
    let batches_of = |content: fn(u64) -> Content| {
        let world = World::new(&Setup { memory_mib: 64, ..Setup::default() });
        let (memory, contents) = world.mapped((0..2 * PAGES).map(content).collect());
        touch(&world, memory, 60_000, |step| mix64(step) % (2 * PAGES));
        assert_holds(memory, &contents);
        world.assert_within_budget();
        (world.count(Counter::ReclaimedAhead), world.count(Counter::PagesWritten))
    };
    let (many, written) = batches_of(Content::Sparse);
    assert_eq!(written, 0);
    assert!(many > 8, "{many} batches");
    // At first clean pages need no disk writes either.
    let (few, written) = batches_of(Content::Random);
    assert!(written > 0);
    assert!(few * 4 < many, "{few} batches with disk writes, {many} without");
}

#[test]
fn shared_slots_are_read_in_any_order() {
    let (world, memory, contents) = world_with_compressed(&Setup::default());
    let written_back = world.count(Counter::PagesWrittenBack);
    let slots = world.count(Counter::PagesWritten);
    assert!(slots * 3 <= written_back, "{slots} slots for {written_back} pages");
    for step in 0..PAGES {
        let page = mix64(step) % PAGES;
        let found = page_of(memory, page as usize).unwrap();
        assert!(found == contents[page as usize].bytes(), "page {page}");
    }
    assert_holds(memory, &contents);
    world.assert_survives(memory, &contents);
    world.assert_within_budget();
}

#[test]
fn shared_slot_is_freed_with_last_page() {
    let setup = Setup { swap_mib: Some(12), ..Setup::default() };
    let world = World::new(&setup.all_offered());
    for round in 0..6 {
        let (memory, contents) =
            world.mapped((0..PAGES).map(|page| Content::Sparse(page << 8 | round)).collect());
        world.assert_survives(memory, &contents);
        world.engine.unmap(memory.address(), memory.pages() * PAGE_SIZE).unwrap();
    }
    // The rounds together write back more pages than the disk can store.
    assert!(world.count(Counter::PagesWrittenBack) > 20_000);
}

#[test]
fn page_in_shared_slot_can_be_remapped() {
    let (world, memory, contents) = world_with_compressed(&Setup::default());
    let len = memory.pages() * PAGE_SIZE;
    // Map the address space after the range, so that it cannot grow in place.
    let next = memory.address() + len;
    assert!(world.engine.map_at(next, 16 * PAGE_SIZE, READ_WRITE, false).unwrap());
    let grown =
        world.engine.remap(memory.address(), len, len + 8 * PAGE_SIZE, Move::Anywhere).unwrap();
    assert_ne!(grown, memory.address());
    assert_holds(Memory::new(grown, len).unwrap(), &contents);
}

#[test]
fn shared_slots_leave_failed_area() {
    let setup = Setup { spare_disk_mib: Some(64), ..Setup::default() };
    let (world, memory, contents) = world_with_compressed(&setup);
    world.disk.fail(Operation::Write, 0, u64::MAX, Fault::Errno(EIO));
    let (other, more) = world.evicted((0..1000).map(Content::Random).collect());
    assert_eq!(world.count(Counter::AreasFailed), 1);
    let reads_before = world.disk.counts().reads;
    until_all_have_moved(&world, || world.count(Counter::PagesMoved) > 0);
    assert!(world.disk.counts().reads > reads_before);
    world.disk.fail(Operation::Read, 0, u64::MAX, Fault::Errno(EIO));
    assert_holds(memory, &contents);
    assert_holds(other, &more);
}

#[test]
fn damaged_shared_slot_affects_its_pages_only() {
    let (world, memory, contents) = world_with_compressed(&Setup::default());
    world.disk.fail(Operation::Read, world.disk.counts().reads, 1, Fault::FlipBit);
    let mut refused = 0;
    for (page, content) in contents.iter().enumerate() {
        match page_of(memory, page) {
            Some(bytes) => assert!(bytes == content.bytes(), "page {page}"),
            None => refused += 1,
        }
    }
    assert_eq!((refused, world.count(Counter::ChecksumErrors)), (1, 1));
    // The bit was flipped in transfer, not on the disk, so a second read succeeds.
    assert_holds(memory, &contents);
}

#[test]
fn damaged_pool_object_affects_one_page() {
    for codec in ["lz4", "zstd"] {
        let world = World::new(&Setup { memory_mib: 64, ..Setup::default() });
        live_settings::set(&world.engine, "codec", codec).unwrap();
        let (memory, contents) = world.evicted(sparse(PAGES / 4));
        let damaged: Vec<_> = (0..memory.pages()).step_by(97).collect();
        for &page in &damaged {
            assert!(world.engine.damage(memory.address() + page * PAGE_SIZE, page * 31));
        }
        let error = world.engine.fault(memory.address(), Access::Read).unwrap_err();
        assert!(
            error.to_string().contains("does not match its checksum (checksum mismatch)"),
            "{error}"
        );
        assert_eq!(error.stop_reason(), Some(StopReason::PoolDamaged));
        for (page, content) in contents.iter().enumerate() {
            match page_of(memory, page) {
                Some(bytes) => assert!(bytes == content.bytes(), "page {page}"),
                None => assert!(damaged.contains(&page), "page {page} was refused"),
            }
            assert!(damaged.binary_search(&page).is_err() || page_of(memory, page).is_none());
        }
        assert!(world.count(Counter::DecompressErrors) > damaged.len() as u64);
    }
}

#[test]
fn sparse_slabs_are_compacted() {
    let world = World::new(&Setup { memory_mib: 64, ..Setup::default() });
    let (memory, _) = world.evicted(sparse(PAGES));
    for page in (0..PAGES as usize).filter(|page| page % 8 != 0) {
        assert!(memory.write_bytes(page * PAGE_SIZE, &Content::Zero.bytes()));
    }
    for _ in 0..50 {
        world.engine.reclaim_now(100);
    }
    assert!(world.count(Counter::PagesCompacted) > 0);
    let expected: Vec<_> = (0..PAGES)
        .map(|page| if page % 8 == 0 { Content::Sparse(page) } else { Content::Zero })
        .collect();
    assert_holds(memory, &expected);
}

#[test]
fn small_pool_keeps_pages_of_many_threads() {
    let world = World::new(&Setup::default());
    let (memory, contents) = world.mapped(every_kind(PAGES));
    read_in_threads(&world, (memory, &contents), 3_000, |_, _| ());
    world.assert_survives(memory, &contents);
    world.assert_within_budget();
}

#[test]
fn full_pool_uses_dense_codec() {
    let average_bytes = |codec: &str| {
        let world = World::new(&Setup { memory_mib: 64, ..Setup::default() });
        live_settings::set(&world.engine, "codec", codec).unwrap();
        let (memory, contents) = world.mapped((0..3 * PAGES).map(Content::Text).collect());
        world.engine.set_pool_limit(PoolLimit::Percent(20));
        world.assert_survives(memory, &contents);
        world.assert_within_budget();
        let pooled = world.count(Counter::PagesPooled);
        assert!(pooled > PAGES / 4, "{codec}: {pooled}");
        world.count(Counter::PooledBytes) / pooled
    };
    let (lz4, auto) = (average_bytes("lz4"), average_bytes("auto"));
    assert!(auto < lz4 * 9 / 10, "{auto} and {lz4} bytes");
}

#[test]
fn zstd_compresses_what_lz4_cannot_unless_lz4_is_fixed() {
    for (codec, is_compressed) in [("auto", true), ("lz4", false)] {
        let world = World::new(&Setup { memory_mib: 64, ..Setup::default() });
        live_settings::set(&world.engine, "codec", codec).unwrap();
        let (memory, contents) = world.evicted((0..PAGES / 2).map(Content::Digits).collect());
        let pooled = world.count(Counter::PagesPooled);
        assert_eq!(pooled > PAGES * 4 / 10, is_compressed, "{codec}: {pooled}");
        assert_holds(memory, &contents);
    }
}

#[test]
fn pool_limit_can_change_under_load() {
    let world = World::new(&Setup { memory_mib: 32, ..Setup::default() });
    let (memory, contents) = world.mapped(sparse(PAGES));
    for limit in ["1M", "80%", "0", "8M", "40%"] {
        live_settings::set(&world.engine, "pool.limit", limit).unwrap();
        world.assert_survives(memory, &contents);
        for _ in 0..200 {
            world.engine.reclaim_now(100);
        }
        world.engine.note_peaks();
        let (used, most) =
            (world.count(Counter::PoolUsedBytes), world.count(Counter::PoolLimitBytes));
        assert!(used <= most, "{used} of {most} with {limit}");
    }
    let text = live_settings::get(&world.engine, "pool.limit").unwrap();
    assert_eq!(text, "13369344B");
    assert!(live_settings::set(&world.engine, "pool.limit", "81%").is_err());
}

#[test]
fn shared_slots_work_with_scattered_free_slots() {
    let setup = Setup { swap_mib: Some(64), ..Setup::default() };
    let world = World::new(&setup.all_offered());
    // Fill the disk, then free every second slot.
    let random: Vec<_> = (0..PAGES).map(Content::Random).collect();
    let other = world.map_evicted(&random[..15_000]);
    for page in (0..other.pages()).step_by(2) {
        world.engine.discard(other.address() + page * PAGE_SIZE, PAGE_SIZE).unwrap();
    }
    let (written, parts) = (world.count(Counter::SlotsPacked), world.count(Counter::PagesPacked));
    let (memory, contents) = world.mapped(sparse(PAGES));
    world.evict_and_write_back(memory);
    let slots = world.count(Counter::SlotsPacked) - written;
    let parts = world.count(Counter::PagesPacked) - parts;
    assert!(slots > 500 && slots * 3 <= parts, "{parts} pages in {slots} slots");
    assert_holds(memory, &contents);
}

#[test]
fn write_back_empties_whole_slabs() {
    let world = World::new(&Setup { memory_mib: 32, ..Setup::default() }.all_offered());
    let kind =
        |page| if mix64(page) & 1 == 0 { Content::Text(page) } else { Content::Sparse(page) };
    let (memory, contents) = world.mapped((0..40_000).map(kind).collect());
    let compacted = world.count(Counter::PagesCompacted);
    let written_back = world.count(Counter::PagesWrittenBack);
    assert!(written_back > 10_000, "{written_back}");
    assert!(compacted * 16 < written_back, "{compacted} moved, {written_back} written back");
    assert_holds(memory, &contents);
}
