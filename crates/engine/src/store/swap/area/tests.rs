use super::*;
use crate::store::io::poll::mode::Mode;
use crate::store::io::sim_device::{Fault, SimDevice};
use crate::store::io::{IoErrorKind, Operation};
use softswap_sys::PAGE_SIZE;
use softswap_sys::file::errno;
use softswap_sys::memory::reserve_bytes;

const MIB: u64 = 1 << 20;

fn config(chunk_mib: u64) -> AreaConfig {
    AreaConfig { chunk_bytes: chunk_mib * MIB, cpus: 2, ..AreaConfig::default() }
}

fn simulated(capacity_mib: u64, config: AreaConfig) -> (SimDevice, SwapArea) {
    let device = SimDevice::new(capacity_mib * MIB, 1);
    let area = SwapArea::growing(Box::new(device.clone()), config, polling()).unwrap();
    (device, area)
}

fn polling() -> Polling {
    Polling::for_tests(Mode::Auto)
}

fn stamped(run: Run) -> &'static mut [u8] {
    let buf = reserve_bytes(run.len * PAGE_SIZE).unwrap();
    for (page, slot) in buf.chunks_mut(PAGE_SIZE).zip(run.first..) {
        for (word, index) in page.chunks_mut(8).zip(0_u64..) {
            word.copy_from_slice(&(slot << 16 | index).to_le_bytes());
        }
    }
    buf
}

fn holds(area: &SwapArea, lane: &mut Lane, run: Run) -> bool {
    let read = reserve_bytes(run.len * PAGE_SIZE).unwrap();
    area.read(lane, run.first, read).unwrap();
    read == stamped(run)
}

fn fill_up(area: &SwapArea) -> (Vec<Run>, AreaFull) {
    let mut runs = Vec::new();
    loop {
        match area.alloc_run(0, 512) {
            Ok(run) => runs.push(run),
            Err(full) => return (runs, full),
        }
    }
}

fn slots_of(runs: &[Run]) -> u64 {
    runs.iter().map(|run| run.len as u64).sum()
}

fn each_of(run: Run) -> impl Fn(usize) -> u64 {
    move |at| run.first + at as u64
}

#[test]
fn first_slot_claims_storage() {
    let (device, area) = simulated(64, config(4));
    assert_eq!((device.counts().grows, area.size_bytes()), (0, 0));
    let run = area.alloc_run(0, 64).unwrap();
    assert_eq!((run.len, device.counts().grows, area.size_bytes()), (64, 1, 4 * MIB));
    assert_eq!(area.used_slots(), 64);
    area.free(run.first, run.len);
    assert_eq!(area.used_slots(), 0);
}

#[test]
fn every_slot_returns_its_own_content() {
    let (_, area) = simulated(16, config(4));
    let mut lane = area.open_lane();
    let (runs, _) = fill_up(&area);
    assert_eq!(slots_of(&runs), 16 * MIB / PAGE_BYTES - 1);
    for &run in &runs {
        area.write_each(&mut lane, each_of(run), stamped(run)).unwrap();
    }
    for &run in &runs {
        assert!(holds(&area, &mut lane, run), "run {run:?}");
    }
}

#[test]
fn transfers_are_split_where_extents_end() {
    let (device, mut area) = simulated(64, config(2));
    area.gap_blocks = 3;
    let (_, full) = fill_up(&area);
    assert!(matches!(full, AreaFull::NoSpace { .. } | AreaFull::Reserve { .. }), "{full}");
    assert!(area.extent_count() > 10);
    // From the middle of the first extent to the middle of the third.
    let run = Run { first: 256, len: 1024 };
    let mut lane = area.open_lane();
    area.write_each(&mut lane, each_of(run), stamped(run)).unwrap();
    assert_eq!(device.counts().writes, 3);
    assert!(holds(&area, &mut lane, run));
    assert_eq!(device.counts().reads, 3);
    // The second extent begins three blocks later on the device.
    let mut page = [0; PAGE_SIZE];
    device.read(&mut lane, (512 + 3) * PAGE_BYTES, &mut page).unwrap();
    assert_eq!(&page[..8], &(512_u64 << 16).to_le_bytes());
}

#[test]
fn limit_is_enforced_and_reported() {
    let limits = AreaConfig { limit_bytes: Some(5 * MIB), ..config(4) };
    let (_, area) = simulated(64, limits);
    let (runs, full) = fill_up(&area);
    assert_eq!((slots_of(&runs), area.size_bytes()), (4 * MIB / PAGE_BYTES - 1, 4 * MIB));
    assert_eq!(full, AreaFull::Limit { limit_bytes: 5 * MIB });
    let text = full.to_string();
    assert!(text.contains("limit of 5.0 MiB") && text.contains("raise SIZE"), "{text}");
    area.free(runs[0].first, 1);
    assert_eq!(area.alloc_run(1, 9), Ok(Run { first: runs[0].first, len: 1 }));
}

#[test]
fn reserve_is_kept_free() {
    let reserve = AreaConfig { reserve_bytes: 7 * MIB, ..config(8) };
    let (device, area) = simulated(20, reserve);
    let (_, full) = fill_up(&area);
    assert_eq!((area.size_bytes(), device.free_bytes().unwrap()), (12 * MIB, 8 * MIB));
    let expected =
        AreaFull::Reserve { size_bytes: 12 * MIB, free_bytes: 8 * MIB, reserve_bytes: 7 * MIB };
    assert_eq!(full, expected);
}

#[test]
fn lack_of_space_stops_growth_temporarily() {
    let (device, area) = simulated(20, config(4));
    area.alloc_run(0, 1).unwrap();
    device.take_space(16 * MIB);
    let (_, full) = fill_up(&area);
    assert!(matches!(full, AreaFull::Reserve { free_bytes: 0, .. }), "{full}");
    assert!(!area.has_spare(), "a full area has no spare slots");
    device.take_space(0);
    assert!(area.alloc_run(0, 512).is_ok());
}

#[test]
fn refused_growth_is_retried_with_smaller_chunk() {
    let (device, area) = simulated(64, config(16));
    device.fail(Operation::Grow, 0, 2, Fault::Errno(errno::ENOSPC));
    area.alloc_run(0, 1).unwrap();
    assert_eq!((device.counts().grows, area.size_bytes()), (3, 4 * MIB));
    device.fail(Operation::Grow, 3, u64::MAX - 3, Fault::Errno(errno::ENOSPC));
    let (_, full) = fill_up(&area);
    let AreaFull::NoSpace { size_bytes, cause } = full else { panic!("{full}") };
    assert_eq!(size_bytes, 4 * MIB);
    assert!(cause.is_no_space());
}

#[test]
fn growth_failure_is_not_reported_as_full() {
    let (device, area) = simulated(64, config(16));
    device.fail(Operation::Grow, 0, 1, Fault::Errno(errno::EIO));
    let full = area.alloc_run(0, 1).unwrap_err();
    assert!(matches!(full, AreaFull::Device { .. }), "{full}");
    assert!(area.alloc_run(0, 1).is_ok(), "the next attempt may succeed");
}

#[test]
fn area_without_space_is_rejected() {
    let device = || Box::new(SimDevice::new(8 * MIB, 1));
    let tiny = AreaConfig { limit_bytes: Some(MIB), ..config(4) };
    let error = SwapArea::growing(device(), tiny, polling()).err().unwrap();
    assert!(matches!(error, AreaError::LimitTooSmall { limit_bytes: MIB }), "{error}");
    let greedy = AreaConfig { reserve_bytes: 7 * MIB, ..config(4) };
    let error = SwapArea::growing(device(), greedy, polling()).err().unwrap();
    assert!(matches!(error, AreaError::NoSpaceLeft { .. }), "{error}");
    assert!(error.to_string().contains("lower the reserve"), "{error}");
}

#[test]
fn area_that_starts_full_grows_when_space_is_free() {
    let device = SimDevice::new(8 * MIB, 1);
    device.take_space(8 * MIB);
    let config = AreaConfig { may_start_full: true, ..config(4) };
    let area = SwapArea::growing(Box::new(device.clone()), config, polling()).unwrap();
    let full = area.alloc_run(0, 1).unwrap_err();
    assert!(matches!(full, AreaFull::Reserve { size_bytes: 0, .. }), "{full}");
    device.take_space(0);
    assert_eq!(area.alloc_run(0, 1).unwrap().len, 1);
}

#[test]
fn half_used_area_grows_ahead() {
    let (_, area) = simulated(64, config(6));
    assert_eq!(area.alloc_run(0, 512).unwrap().len, 512);
    assert_eq!(area.alloc_run(0, 100).unwrap().len, 100);
    // No cluster is free, but too little is used to grow.
    assert_eq!(area.alloc_run(0, 512).unwrap().len, 412);
    assert_eq!(area.size_bytes(), 6 * MIB);
    // Slots are left in the first cluster, but not in one run.
    assert_eq!(area.alloc_run(0, 512).unwrap().len, 512);
    assert_eq!(area.size_bytes(), 12 * MIB);
}

#[test]
fn failed_transfers_are_reported_and_transient() {
    let (device, area) = simulated(64, config(4));
    let mut lane = area.open_lane();
    let run = area.alloc_run(0, 8).unwrap();
    device.fail(Operation::Write, 0, 1, Fault::Errno(errno::EIO));
    let error = area.write_each(&mut lane, each_of(run), stamped(run)).unwrap_err();
    assert_eq!((error.kind, error.operation), (IoErrorKind::Errno(errno::EIO), Operation::Write));
    device.fail(Operation::Write, 1, 1, Fault::Short(6000));
    area.write_each(&mut lane, each_of(run), stamped(run)).unwrap();
    device.fail(Operation::Read, 0, 1, Fault::Errno(errno::EIO));
    device.fail(Operation::Read, 1, 1, Fault::Short(100));
    let read = reserve_bytes(run.len * PAGE_SIZE).unwrap();
    assert!(area.read(&mut lane, run.first, read).is_err());
    assert!(holds(&area, &mut lane, run));
}

#[test]
fn slot_outside_area_is_a_bug() {
    let (_, area) = simulated(64, config(4));
    let mut lane = area.open_lane();
    let error = area.read(&mut lane, 5, &mut [0; PAGE_SIZE]).unwrap_err();
    assert_eq!(error.kind, IoErrorKind::Unmapped);
    assert!(error.to_string().contains("bug"), "{error}");
}

#[test]
fn generations_count_allocations() {
    let (_, area) = simulated(64, config(4));
    let run = area.alloc_run(0, 2).unwrap();
    area.set_seal(run.first, Seal::Checksum(0xdead_beef));
    let seals = [0, 1].map(|at| area.seal(run.first + at));
    assert_eq!(seals, [0xdead_beef, 0].map(Seal::Checksum));
    assert_eq!(area.generation(run.first), 1);
    area.free(run.first, run.len);
    assert_eq!(area.generation(run.first), 1);
    let again = area.alloc_run(0, 2).unwrap();
    assert_eq!((again, area.generation(run.first)), (run, 2));
}

#[test]
fn tags_replace_checksums() {
    let (_, area) = simulated(64, config(4));
    let run = area.alloc_run(0, 2).unwrap();
    let before_bytes = area.metadata_bytes();
    let tags = [0, 1].map(|at| Seal::Tag {
        tag: std::array::from_fn(|byte| (byte + 100 * at) as u8),
        epoch: at as u32,
    });
    area.set_seal(run.first, tags[0]);
    let touched = u64::from(area.slots.touched_clusters()) * CLUSTER_SLOTS as u64;
    let tag_bytes = touched * (TAG_BYTES as u64 - 4);
    assert_eq!(area.metadata_bytes(), before_bytes + tag_bytes);
    // The table of epochs counts from the second epoch on.
    area.set_seal(run.first + 1, tags[1]);
    assert_eq!([0, 1].map(|at| area.seal(run.first + at)), tags);
    assert_eq!(area.metadata_bytes(), before_bytes + tag_bytes + 4 * touched);
}

#[test]
fn slots_whose_generation_cannot_rise_are_retired() {
    let limits = AreaConfig { limit_bytes: Some(2 * MIB), ..config(4) };
    let (_, area) = simulated(64, limits);
    let run = area.alloc_run(0, 8).unwrap();
    for at in [0, 3, 4, 7] {
        area.generations[run.first as usize + at].store(u32::MAX - 1, Relaxed);
    }
    area.free(run.first, run.len);
    assert_eq!(area.retired_slots(), 0, "one allocation is left");
    assert_eq!(area.alloc_run(0, 8).unwrap(), run);
    assert_eq!(area.generation(run.first), u32::MAX);
    area.free(run.first, 4);
    area.freeze();
    area.free_unused(run.first + 4, 4);
    area.thaw();
    assert_eq!((area.retired_slots(), area.used_slots()), (4, 0));
    let (rest, _) = fill_up(&area);
    assert_eq!(slots_of(&rest), 512 - 1 - 4);
    assert!((1..512).all(|slot| area.generation(slot) != 0), "a generation was repeated");
}

#[test]
fn exhausted_slot_keeps_content_in_frozen_area() {
    let (_, area) = simulated(64, config(4));
    let run = area.alloc_run(0, 1).unwrap();
    area.generations[run.first as usize].store(u32::MAX, Relaxed);
    area.freeze();
    area.free(run.first, 1);
    area.thaw();
    assert_eq!((area.retired_slots(), area.used_slots()), (1, 0));
    assert!(area.alloc_run(0, 1).unwrap() != run);
}

#[test]
fn tables_use_dram_only_for_used_slots() {
    let device = Box::new(SimDevice::new(MIB << 10, 1));
    let area = SwapArea::growing(device, AreaConfig::default(), polling()).unwrap();
    assert_eq!(area.metadata_bytes(), 0);
    area.alloc_run(0, 1).unwrap();
    let little = area.metadata_bytes();
    assert!(little > 512 * 8 && little < 64 << 10, "{little}");
}

#[test]
fn content_is_intact_while_area_grows() {
    let (device, area) = simulated(64, config(2));
    device.fail_at_random(Operation::Write, 5, Fault::Short(4096));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let area = &area;
            scope.spawn(move || {
                let mut lane = area.open_lane();
                let mut held = Vec::new();
                for round in 0..300 {
                    if let Ok(run) = area.alloc_run(thread, 16) {
                        area.write_each(&mut lane, each_of(run), stamped(run)).unwrap();
                        held.push(run);
                    }
                    if held.len() > 60 || round > 200 {
                        let Some(run) = held.pop() else { continue };
                        assert!(holds(area, &mut lane, run), "{run:?}");
                        area.free(run.first, run.len);
                    }
                }
                held.iter().for_each(|run| area.free(run.first, run.len));
            });
        }
    });
    assert_eq!(area.used_slots(), 0);
}

fn discarding(capacity_mib: u64, discard: Discard) -> (SimDevice, SwapArea) {
    simulated(capacity_mib, AreaConfig { discard, ..config(2) })
}

fn emptied(area: &SwapArea) {
    let (runs, _) = fill_up(area);
    for run in runs {
        let kept = u64::from(run.first == 1);
        area.free(run.first + kept, run.len - kept as usize);
    }
}

#[test]
fn punched_cluster_is_reclaimed_before_write() {
    let (device, area) = discarding(16, Discard::Pages);
    emptied(&area);
    let mut clusters = 0;
    while let Discarded::Bytes(bytes) = area.discard_one() {
        assert_eq!(bytes, CLUSTER_BYTES);
        clusters += 1;
    }
    assert!(clusters >= 5, "{clusters}");
    let grows = device.counts().grows;
    let run = area.alloc_run(1, 64).unwrap();
    assert_eq!(device.counts().grows, grows + 1);
    let mut lane = area.open_lane();
    area.write_each(&mut lane, each_of(run), stamped(run)).unwrap();
    area.alloc_run(1, 64).unwrap();
    assert_eq!(device.counts().grows, grows + 1, "the storage is claimed once");
}

#[test]
fn clusters_without_storage_are_skipped() {
    let (device, area) = discarding(64, Discard::Pages);
    let runs: Vec<_> = (0..4).map(|_| area.alloc_run(0, 512).unwrap()).collect();
    area.free(runs[1].first, runs[1].len);
    area.free(runs[0].first, 300);
    assert!(matches!(area.discard_one(), Discarded::Bytes(_)));
    let used = area.used_slots();
    device.fail(Operation::Grow, device.counts().grows, u64::MAX, Fault::Errno(errno::ENOSPC));
    let (rest, full) = fill_up(&area);
    assert_eq!(slots_of(&rest), 300, "{full}");
    assert!(matches!(full, AreaFull::NoSpace { .. }), "{full}");
    assert_eq!(area.used_slots(), used + 300);
    device.clear_faults();
    assert!(area.alloc_run(1, 512).is_ok_and(|run| run.len == 512));
}

#[test]
fn usable_storage_is_found_after_unavailable_storage() {
    let (device, area) = discarding(64, Discard::Pages);
    // The first cluster never becomes empty; the last two are held.
    let runs: Vec<_> =
        [0, 0, 1, 0, 1].iter().map(|cpu| area.alloc_run(*cpu, 512).unwrap()).skip(1).collect();
    area.free(runs[0].first, runs[0].len);
    assert!(matches!(area.discard_one(), Discarded::Bytes(_)));
    // Emptied but not discarded yet, so its storage is still claimed.
    area.free(runs[1].first, runs[1].len);
    device.fail(Operation::Grow, device.counts().grows, u64::MAX, Fault::Errno(errno::ENOSPC));
    let (rest, full) = fill_up(&area);
    assert_eq!(slots_of(&rest), runs[1].len as u64, "{full}");
}

#[test]
fn punched_storage_is_not_taken_from_reserve() {
    let config = AreaConfig { reserve_bytes: 8 * MIB, discard: Discard::Pages, ..config(2) };
    let (device, area) = simulated(24, config);
    emptied(&area);
    while let Discarded::Bytes(_) = area.discard_one() {}
    device.take_space(64 * MIB);
    let grows = device.counts().grows;
    while area.alloc_run(0, 512).is_ok() {}
    assert_eq!(device.counts().grows, grows);
    device.take_space(0);
    assert!(area.alloc_run(0, 512).is_ok());
}

#[test]
fn unsupported_discard_is_tried_once() {
    for (errno, expected) in
        [(errno::EOPNOTSUPP, Discarded::Unsupported), (errno::EIO, Discarded::Failed)]
    {
        let (device, area) = discarding(16, Discard::Both);
        device.fail(Operation::Discard, 0, u64::MAX, Fault::Errno(errno));
        emptied(&area);
        assert_eq!(area.discard_one(), expected);
        assert_eq!(area.discard_one(), Discarded::Nothing);
        assert_eq!(device.counts().discards, 1);
        let (runs, _) = fill_up(&area);
        assert_eq!(slots_of(&runs), 16 * MIB / PAGE_BYTES - 2);
    }
}

#[test]
fn area_shrinks_and_grows() {
    let (device, area) = simulated(32, config(2));
    emptied(&area);
    assert_eq!(area.size_bytes(), 32 * MIB);
    let gone = area.shrink();
    assert!(gone >= 20 * MIB, "{gone}");
    assert_eq!(area.size_bytes(), 32 * MIB - gone);
    assert_eq!(device.free_bytes().unwrap(), gone);
    assert_eq!(area.shrink(), 0, "nothing is left to remove");
    let (runs, _) = fill_up(&area);
    assert_eq!((slots_of(&runs), area.size_bytes()), (32 * MIB / PAGE_BYTES - 2, 32 * MIB));
    let mut lane = area.open_lane();
    for run in runs {
        area.write_each(&mut lane, each_of(run), stamped(run)).unwrap();
    }
    assert_eq!(area.shrink(), 0, "used clusters stay");
}

fn fixed(discard: Discard) -> (SimDevice, SwapArea) {
    let device = SimDevice::new(16 * MIB, 1);
    device.grow(0, 16 * MIB).unwrap();
    let pages = FixedPages {
        pages: 1300,
        spans: vec![(0, 1000, 5), (1000, 300, 1500)],
        bad_pages: vec![3, 1299],
    };
    let config = AreaConfig { discard, cpus: 2, ..AreaConfig::default() };
    let area = SwapArea::fixed(Box::new(device.clone()), &pages, config, polling()).unwrap();
    (device, area)
}

#[test]
fn named_area_uses_all_but_header_and_bad_pages() {
    let (device, area) = fixed(Discard::None);
    let mut lane = area.open_lane();
    let (runs, full) = fill_up(&area);
    assert_eq!(full, AreaFull::Fixed { size_bytes: 1300 * PAGE_BYTES });
    let mut slots: Vec<u64> =
        runs.iter().flat_map(|run| run.first..run.first + run.len as u64).collect();
    slots.sort_unstable();
    assert!(slots.iter().copied().eq((1..1299).filter(|slot| *slot != 3)));
    for &run in &runs {
        area.write_each(&mut lane, each_of(run), stamped(run)).unwrap();
    }
    let mut page = [0; PAGE_SIZE];
    for (slot, block) in [(1_u64, 6), (999, 1004), (1000, 1500), (1298, 1798)] {
        device.read(&mut lane, block * PAGE_BYTES, &mut page).unwrap();
        assert_eq!(&page[..8], &(slot << 16).to_le_bytes(), "slot {slot}");
    }
    device.read(&mut lane, 5 * PAGE_BYTES, &mut page).unwrap();
    assert!(page.iter().all(|byte| *byte == 0), "the header's page");
    assert_eq!((area.shrink(), area.size_bytes()), (0, 1300 * PAGE_BYTES));
}

#[test]
fn area_is_discarded_before_use_on_request() {
    for (discard, count) in [(Discard::Once, 2), (Discard::Both, 2), (Discard::Pages, 0)] {
        let (device, area) = fixed(discard);
        assert_eq!(device.counts().discards, count, "{discard}");
        let bytes = (count > 0).then_some(Discarded::Bytes(1299 * PAGE_BYTES));
        assert_eq!(area.discarded_at_start(), bytes.unwrap_or(Discarded::Nothing));
    }
    let device = SimDevice::new(16 * MIB, 1);
    device.grow(0, 16 * MIB).unwrap();
    let stamp = [9; PAGE_SIZE];
    for block in [5, 6] {
        device.write(&mut Lane::Plain, block * PAGE_BYTES, &stamp).unwrap();
    }
    let pages = FixedPages { pages: 600, spans: vec![(0, 600, 5)], bad_pages: vec![] };
    let config = AreaConfig { discard: Discard::Once, ..AreaConfig::default() };
    SwapArea::fixed(Box::new(device.clone()), &pages, config, polling()).unwrap();
    let mut page = [1; PAGE_SIZE];
    device.read(&mut Lane::Plain, 5 * PAGE_BYTES, &mut page).unwrap();
    assert_eq!(page, stamp, "the header");
    device.read(&mut Lane::Plain, 6 * PAGE_BYTES, &mut page).unwrap();
    assert_eq!(page, [0; PAGE_SIZE]);
}

#[test]
fn pages_without_extent_are_rejected() {
    for spans in [vec![], vec![(0, 10, 0)], vec![(1, 100, 0)], vec![(0, 50, 0), (60, 40, 60)]] {
        let pages = FixedPages { pages: 100, spans, bad_pages: vec![] };
        let device = Box::new(SimDevice::new(16 * MIB, 1));
        let refused = SwapArea::fixed(device, &pages, AreaConfig::default(), polling());
        assert!(matches!(
            refused.err().unwrap(),
            AreaError::Unmapped { .. } | AreaError::Extents(_)
        ));
    }
}

#[test]
fn failed_discard_is_not_retried() {
    let (device, area) = discarding(64, Discard::Pages);
    let runs: Vec<_> = (0..4).map(|_| area.alloc_run(0, 512).unwrap()).collect();
    area.free(runs[1].first, runs[1].len);
    assert!(matches!(area.discard_one(), Discarded::Bytes(_)));
    area.free(runs[2].first, runs[2].len);
    device.fail(Operation::Discard, 1, u64::MAX, Fault::Errno(errno::EIO));
    assert_eq!(area.discard_one(), Discarded::Failed);
    device.fail(Operation::Grow, device.counts().grows, u64::MAX, Fault::Errno(errno::ENOSPC));
    fill_up(&area);
    assert_eq!(area.discard_one(), Discarded::Nothing);
    assert_eq!(device.counts().discards, 2);
}
