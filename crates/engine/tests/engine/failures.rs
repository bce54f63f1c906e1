//! With disk failures of all kinds, pages that are not on the disk are kept, no wrong content is
//! installed, and an access to a lost page fails.

use crate::common::{
    Content, Setup, World, assert_holds, assert_zero, every_kind, mix64, page_of, random, worlds,
    worlds_of, write_all,
};
use softswap_engine::api::control_protocol::Snapshot;
use softswap_engine::api::engine::{Engine, Move};
use softswap_engine::api::open_areas;
use softswap_engine::api::settings::{AreaSpec, Config, PoolLimit};
use softswap_engine::base::access::Access;
use softswap_engine::base::stats::{Counter, STATS_WORDS, Stats, StopReason};
use softswap_engine::codec::{CodecError, compressed_slot, seal::NoKey};
use softswap_engine::core::errors::{DecompressError, Exhausted, FaultError, NoSlot, RAISE_MEMORY};
use softswap_engine::policy::mechanism::Without;
use softswap_engine::store::io::{IoErrorKind, Operation};
use softswap_engine::store::pool::CompressedPool;
use softswap_engine::store::swap::area::AreaFull;
use softswap_engine::store::swap::extent_map::ExtentMap;
use softswap_engine::store::swap::named::Warning;
use softswap_engine::store::swap::raw::RawRefusal;
use softswap_engine::store::swap::slot_allocator::SlotAllocator;
use softswap_sys::PAGE_SIZE;
use softswap_sys::file::errno::{EIO, ENOSPC};
use softswap_sys::memory::reserve_u64;
use softswap_testkit::Memory;
use softswap_testkit::sim_device::Fault;

const UNLIMITED_TIMES: u64 = u64::MAX / 2;

fn fail_next(world: &World, operation: Operation, times: u64, fault: Fault) {
    let counts = world.disk.counts();
    let next = match operation {
        Operation::Read => counts.reads,
        Operation::Write => counts.writes,
        _ => counts.grows,
    };
    world.disk.fail(operation, next, times, fault);
}

fn fault(world: &World, memory: Memory, page: usize) -> Result<(), FaultError> {
    world.engine.fault(memory.address() + page * PAGE_SIZE, Access::Read)
}

fn is_corrupt(world: &World, memory: Memory, page: usize) -> bool {
    matches!(fault(world, memory, page), Err(FaultError::Corrupt { .. }))
}

#[test]
fn failed_write_keeps_pages_resident() {
    for avoid_move in [false, true] {
        for failure in [Fault::Errno(EIO), Fault::Errno(ENOSPC), Fault::Short(0)] {
            let world = World::new(&Setup { avoid_move, ..Setup::default() });
            let (memory, contents) = world.mapped(random(100));
            fail_next(&world, Operation::Write, UNLIMITED_TIMES, failure);
            assert_eq!(world.engine.reclaim_now(10), 0);
            assert_eq!(world.resident(memory), 100);
            assert_holds(memory, &contents);
            assert!(world.count(Counter::WriteErrors) > 0);
            world.disk.clear_faults();
            world.assert_survives(memory, &contents);
            world.assert_within_budget();
        }
    }
}

#[test]
fn pages_without_disk_are_evicted_despite_write_errors() {
    let world = World::new(&Setup::default());
    let (memory, contents) = world.mapped(every_kind(60));
    fail_next(&world, Operation::Write, UNLIMITED_TIMES, Fault::Errno(EIO));
    world.engine.reclaim_now(50);
    // One page in six is random, and can only be evicted to the disk.
    assert_eq!(world.resident(memory), 10);
    assert_holds(memory, &contents);
}

#[test]
fn short_transfers_are_continued() {
    let world = World::new(&Setup::default());
    world.disk.fail_at_random(Operation::Write, 2, Fault::Short(5000));
    world.disk.fail_at_random(Operation::Read, 3, Fault::Short(100));
    let (memory, contents) = world.mapped(random(300));
    world.assert_survives(memory, &contents);
    let moved_bytes = world.disk.counts().read_bytes;
    assert!(moved_bytes > world.count(Counter::BytesRead), "no transfer was short");
    assert_eq!(world.count(Counter::ReadErrors) + world.count(Counter::WriteErrors), 0);
}

#[test]
fn failed_read_is_reported_and_page_kept() {
    let world = World::new(&Setup::default());
    let (memory, contents) = world.evicted(every_kind(60));
    for (failure, kind) in
        [(Fault::Errno(EIO), IoErrorKind::Errno(EIO)), (Fault::Short(0), IoErrorKind::Stopped)]
    {
        fail_next(&world, Operation::Read, UNLIMITED_TIMES, failure);
        let refused = fault(&world, memory, 5);
        assert!(matches!(refused, Err(FaultError::Read(error)) if error.kind == kind));
        for (page, content) in contents.iter().enumerate() {
            let expected = (!matches!(content, Content::Random(_))).then(|| content.bytes());
            assert!(page_of(memory, page) == expected, "page {page}");
        }
        world.disk.clear_faults();
    }
    assert!(world.count(Counter::ReadErrors) > 0);
    assert_holds(memory, &contents);
}

fn with_and_without_encryption<const N: usize>(
    faults: [Fault; N],
) -> impl Iterator<Item = (Fault, bool)> {
    faults.into_iter().flat_map(|fault| [(fault, true), (fault, false)])
}

fn never_wrong(memory: Memory, contents: &[Content]) -> usize {
    let wrong = |page: usize| page_of(memory, page).is_some_and(|b| b != contents[page].bytes());
    assert!((0..memory.pages()).all(|page| !wrong(page)));
    (0..memory.pages()).filter(|page| page_of(memory, *page).is_none()).count()
}

#[test]
fn corrupt_page_is_rejected() {
    for (silent, encrypt) in with_and_without_encryption([Fault::FlipBit, Fault::Lose]) {
        let world = World::new(&Setup { encrypt, ..Setup::default() });
        let (intact, contents) = world.evicted(random(64));
        let corrupt = world.map_with(&[Content::Random(99)]);
        fail_next(&world, Operation::Write, 1, silent);
        world.evict(corrupt);
        assert!(is_corrupt(&world, corrupt, 0));
        assert_eq!(corrupt.read(0), None);
        assert!(!corrupt.write(0, 1));
        assert_eq!(world.count(Counter::ChecksumErrors), 3);
        assert_holds(intact, &contents);
        // Discard the old content before the rewrite, which would fault it in.
        world.engine.discard(corrupt.address(), corrupt.len()).unwrap();
        write_all(corrupt, &[Content::Random(100)]);
        world.assert_survives(corrupt, &[Content::Random(100)]);
    }
}

#[test]
fn misdirected_write_is_detected_at_both_places() {
    for (misdirected, encrypt) in
        with_and_without_encryption([Fault::Misdirect(4 * PAGE_SIZE as u64)])
    {
        let world = World::new(&Setup { encrypt, ..Setup::default() });
        let (victims, contents) = world.evicted(random(64));
        write_all(victims.part(0, 8 * PAGE_SIZE), &contents[..8]);
        let before = world.count(Counter::PagesWritten);
        fail_next(&world, Operation::Write, 1, misdirected);
        world.evict(victims);
        let written = (world.count(Counter::PagesWritten) - before) as usize;
        let refused = never_wrong(victims, &contents);
        assert!(refused >= 4, "{refused} of {written} misdirected pages refused");
        assert!(refused <= 2 * written, "{refused} pages refused, {written} were misdirected");
    }
}

#[test]
fn wrong_reads_are_rejected_until_disk_recovers() {
    for (silent, encrypt) in
        with_and_without_encryption([Fault::FlipBit, Fault::Misdirect(4096), Fault::Lose])
    {
        let world = World::new(&Setup { encrypt, ..Setup::default() });
        let (memory, contents) = world.evicted(random(40));
        fail_next(&world, Operation::Read, UNLIMITED_TIMES, silent);
        let refused = never_wrong(memory, &contents);
        // The flipped bit affects one of the pages that are read together. After a lost read the
        // buffer may still contain the right content from an earlier use.
        let all = !matches!(silent, Fault::Misdirect(_)) || refused == 40;
        assert!(all && refused > 0, "{refused} with {silent:?}");
        world.disk.clear_faults();
        assert_holds(memory, &contents);
    }
}

#[test]
fn disk_that_cannot_grow_loses_no_data() {
    for failure in [ENOSPC, EIO] {
        let world = World::new(&Setup::default());
        world.disk.fail(Operation::Grow, 0, UNLIMITED_TIMES, Fault::Errno(failure));
        let (memory, contents) = world.mapped(every_kind(120));
        world.engine.reclaim_now(50);
        assert_eq!(world.resident(memory), 20);
        assert_holds(memory, &contents);
        world.disk.clear_faults();
        world.assert_survives(memory, &contents);
    }
}

/// Writes random pages until the engine refuses one. Returns their number, and the error.
fn write_until_refused(world: &World, memory: Memory) -> (usize, FaultError) {
    for page in 0..memory.pages() {
        let address = memory.address() + page * PAGE_SIZE;
        match world.engine.fault(address, Access::Write) {
            Ok(()) => {
                let content = Content::Random(page as u64).bytes();
                assert!(memory.write_bytes(page * PAGE_SIZE, &content));
            }
            Err(error) => return (page, error),
        }
    }
    panic!("no page was refused");
}

#[test]
fn full_area_rejects_new_pages_and_keeps_old() {
    for world in worlds_of(Setup { memory_mib: 8, swap_mib: Some(4), ..Setup::default() }) {
        let memory = world.map(8192);
        let (taken, error) = write_until_refused(&world, memory);
        let limit = AreaFull::Limit { limit_bytes: 4 << 20 };
        let Exhausted::NoSlot(NoSlot::Area(full)) = exhausted(error) else { panic!("no slot") };
        assert_eq!(full, limit);
        assert!(taken > 1024, "the area stores 1024 pages, and DRAM some more: {taken}");
        // Discard half of the pages, because reads need free memory.
        let kept = taken / 2;
        let dropped = memory.part(kept * PAGE_SIZE, (taken - kept) * PAGE_SIZE);
        world.engine.discard(dropped.address(), dropped.len()).unwrap();
        assert_holds(memory, &random(kept as u64));
        assert_zero(dropped);
        world.assert_within_budget();
    }
}

fn exhausted(error: FaultError) -> Exhausted {
    match error {
        FaultError::Exhausted(exhausted) => exhausted,
        error => panic!("{error}"),
    }
}

#[test]
fn full_disk_is_reported_as_reason() {
    let world = World::new(&Setup { memory_mib: 8, disk_mib: 16, ..Setup::default() });
    world.disk.take_space(16 << 20);
    let memory = world.map(8192);
    let (taken, error) = write_until_refused(&world, memory);
    assert!(error.to_string().contains("free disk space"), "{error}");
    world.disk.take_space(0);
    assert_holds(memory, &random(taken as u64));
}

#[test]
fn randomly_failing_disk_never_corrupts_pages() {
    for world in worlds() {
        world.disk.fail_at_random(Operation::Write, 7, Fault::Errno(EIO));
        world.disk.fail_at_random(Operation::Write, 11, Fault::FlipBit);
        world.disk.fail_at_random(Operation::Read, 13, Fault::Errno(EIO));
        let (memory, contents) = world.mapped(every_kind(1200));
        for round in 0..20 {
            world.engine.reclaim_now(10 + mix64(round) as usize % 20);
            never_wrong(memory, &contents);
        }
        assert!(world.count(Counter::WriteErrors) > 0);
        assert!(world.count(Counter::ChecksumErrors) > 0);
        world.assert_within_budget();
    }
}

#[test]
fn failed_mremap_keeps_mapping() {
    for world in worlds() {
        // mremap must fault compressed pages in, but not pages in slots.
        let (memory, contents) = world.mapped(every_kind(600));
        let _neighbour = world.map(600);
        world.evict(memory);
        let compressed = |page: &usize| matches!(contents[*page], Content::Text(_));
        let page = (300..600).find(compressed).unwrap();
        assert!(world.engine.damage(memory.address() + page * PAGE_SIZE, 9999));
        let (at, len) = (memory.address(), memory.len());
        assert!(world.engine.remap(at, len, 2 * len, Move::Anywhere).is_err());
        assert!(!world.engine.any_mapped(world.engine.growable().start, 1 << 30));
        for (at, content) in contents.iter().enumerate() {
            match page_of(memory, at) {
                Some(bytes) => assert!(at != page && bytes == content.bytes(), "page {at}"),
                None => assert_eq!(at, page),
            }
        }
    }
}

#[test]
fn messages_state_cause_and_remedy() {
    let start = |memory_bytes| {
        let config = Config { memory_bytes, ..Config::default() };
        let stats = Stats::new(reserve_u64(STATS_WORDS).unwrap());
        Engine::start(&config, Vec::new(), stats).err().unwrap().to_string()
    };
    let nowhere = [AreaSpec::new("/nowhere/swap")];
    let not_opened = open_areas::open(&nowhere, None, 0, true).next().unwrap().err().unwrap();
    let slots = SlotAllocator::new(1, 1).unwrap();
    slots.grow(1);
    let full = NoSlot::from(AreaFull::Limit { limit_bytes: 1 << 20 });
    let full = FaultError::from(Exhausted::NoSlot(full));
    let rows: [(String, &str); 17] = [
        (start(1 << 20), "a budget of 1 MiB is below the minimum"),
        (start(1 << 30), "0 swap areas were given; give at least one"),
        (not_opened.to_string(), "/nowhere/swap"),
        (RawRefusal::Changed { path: "/swap".into() }.to_string(), "/swap"),
        (Warning::PageCache.to_string(), "it refuses O_DIRECT"),
        (NoKey::from(std::io::Error::other("no entropy")).to_string(), "--no-encrypt"),
        (compressed_slot::part(&[0; 4096], 3).unwrap_err().to_string(), "has no part 3"),
        ("steam".parse::<Without>().unwrap_err().to_string(), "there is no mechanism \"steam\""),
        ("90%".parse::<PoolLimit>().unwrap_err().to_string(), "from 0% to 80%"),
        (Snapshot::parse("").unwrap_err().to_string(), "the program runs another version"),
        (
            CompressedPool::new(0).unwrap().store(b"packed", 42, 1).unwrap_err().to_string(),
            "pool is full",
        ),
        (ExtentMap::new(1).unwrap().lookup(7).unwrap_err().to_string(), "page 7 is outside"),
        (slots.free(7, 1).unwrap_err().to_string(), "slots 7..8"),
        (NoSlot::ForkedChild.to_string(), "a forked child cannot write"),
        (
            full.message(RAISE_MEMORY).to_string(),
            "`--swap DIR:SIZE`, add another swap area, or raise --memory",
        ),
        (
            DecompressError::from(CodecError::UnknownTag { tag: 3 }).to_string(),
            "cannot be decompressed (compressed page has",
        ),
        (StopReason::from_code(4).unwrap().text().to_string(), "no memory could be freed"),
    ];
    for (message, part) in rows {
        assert!(message.contains(part), "{part:?} is missing in: {message}");
    }
    assert_eq!(FaultError::NotMapped.stop_reason(), None);
    assert_eq!(FaultError::Corrupt { slot: 7 }.stop_reason(), Some(StopReason::WrongData));
}
