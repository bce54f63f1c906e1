use super::*;
use crate::codec::seal::Seal;
use crate::store::io::Operation;
use crate::store::io::sim_device::{Fault, SimDevice};
use crate::store::swap::CLUSTER_SLOTS;
use softswap_sys::PAGE_SIZE;
use softswap_sys::file::errno;
use softswap_sys::memory::reserve_bytes;
use std::collections::BTreeMap;

const MIB: u64 = 1 << 20;

fn areas(of: &[(u64, i32)]) -> (Vec<SimDevice>, SwapAreas) {
    let disks: Vec<_> = of.iter().map(|_| SimDevice::new(64 * MIB, 1)).collect();
    let storage = of.iter().zip(&disks).map(|(&(mib, priority), disk)| Backing {
        priority,
        ..Backing::growing(Box::new(disk.clone()), Some(mib * MIB), 0)
    });
    let polling = |mode: Option<Mode>| Polling::for_tests(mode.unwrap_or(Mode::Auto));
    let areas = SwapAreas::new(storage.collect(), 2, polling, Sealer::checking()).unwrap();
    (disks, areas)
}

fn write_run(areas: &SwapAreas, lanes: &mut Lanes, run: Run, pages: &[u8]) -> Result<(), IoError> {
    areas.write_each(lanes, SlotBatch::of(run).as_slice(), pages)
}

fn fill_up(areas: &SwapAreas) -> (Vec<usize>, AreaFull) {
    let mut order = Vec::new();
    loop {
        match areas.alloc_from_areas(0, 32) {
            Ok(run) => order.push(index_of(run.first)),
            Err(full) => return (order, full),
        }
    }
}

#[test]
fn highest_priority_is_filled_first_and_equals_rotate() {
    let (_, areas) = areas(&[(4, 1), (4, 5), (4, 5), (2, 0)]);
    let (order, full) = fill_up(&areas);
    assert_eq!(full, AreaFull::Every { areas: 4, size_bytes: 14 * MIB });
    let first_low = order.iter().position(|index| *index == 0).unwrap();
    let (equals, rest) = order.split_at(first_low);
    assert!(equals.windows(2).take(8).all(|pair| pair[0] != pair[1]), "{equals:?}");
    assert!(equals.iter().all(|index| [1, 2].contains(index)));
    let last = rest.iter().position(|index| *index == 3).unwrap();
    assert!(rest[..last].iter().all(|index| *index == 0));
    assert!(rest[last..].iter().all(|index| *index == 3));
}

#[test]
fn slot_number_identifies_area() {
    let (disks, areas) = areas(&[(4, 0), (4, 0), (4, 0)]);
    let mut lanes = areas.open_lanes();
    let mut stored = BTreeMap::new();
    for round in 0..9_u8 {
        let run = areas.alloc_from_areas(0, 16).unwrap();
        let page = reserve_bytes(run.len * PAGE_SIZE).unwrap();
        page.fill(round + 1);
        write_run(&areas, &mut lanes, run, page).unwrap();
        let (area, slot) = areas.of(run.first);
        area.set_seal(slot, Seal::Checksum(round.into()));
        stored.insert(run.first, round);
    }
    assert!(disks.iter().all(|disk| disk.counts().writes == 3));
    let mut page = [0; PAGE_SIZE];
    for (slot, round) in &stored {
        areas.read_page(&mut lanes, *slot, &mut page).unwrap();
        let (area, local) = areas.of(*slot);
        assert_eq!((page[0], area.seal(local)), (round + 1, Seal::Checksum((*round).into())));
        areas.free(*slot, 16);
    }
    assert_eq!(areas.used_slots(), 0);
}

#[test]
fn pages_of_any_slots_are_read_in_one_batch() {
    let (_disks, areas) = areas(&[(8, 0)]);
    let mut lanes = areas.open_lanes();
    let run = areas.alloc_from_areas(0, 64).unwrap();
    let pages = reserve_bytes(run.len * PAGE_SIZE).unwrap();
    for (number, page) in pages.chunks_exact_mut(PAGE_SIZE).enumerate() {
        page.fill(number as u8 + 1);
    }
    let slots: Vec<_> = (run.first..run.first + 64).collect();
    areas.write_each(&mut lanes, &slots, pages).unwrap();
    // More pieces than fit in one request, including runs and backward steps.
    let steps = (0..50_u64).map(|at| if at % 5 == 4 { at - 1 } else { at * 13 % 64 });
    let slots: Vec<u64> = steps.map(|at| run.first + at % run.len as u64).collect();
    let read = reserve_bytes(slots.len() * PAGE_SIZE).unwrap();
    areas.read_each(&mut lanes, &slots, read, false).unwrap();
    for (slot, page) in slots.iter().zip(read.chunks_exact(PAGE_SIZE)) {
        assert!(page.iter().all(|byte| u64::from(*byte) == slot - run.first + 1), "slot {slot}");
    }
    areas.read_each(&mut lanes, &[], &mut [], true).unwrap();
}

#[test]
fn failed_area_is_read_only() {
    let (disks, areas) = areas(&[(4, 9), (4, 0)]);
    let mut lanes = areas.open_lanes();
    let page = reserve_bytes(PAGE_SIZE).unwrap();
    page.fill(7);
    let kept = areas.alloc_from_areas(0, 1).unwrap();
    write_run(&areas, &mut lanes, kept, page).unwrap();
    disks[0].fail(Operation::Write, 0, u64::MAX, Fault::Errno(errno::EIO));
    let mut failures = 0;
    loop {
        let run = areas.alloc_from_areas(0, 1).unwrap();
        if write_run(&areas, &mut lanes, run, page).is_ok() {
            assert_eq!(index_of(run.first), 1, "the other area");
            break;
        }
        let (area, slot) = areas.of(run.first);
        area.retire(slot, 1);
        failures += 1;
        assert!(failures < 20, "a failed area is still preferred");
    }
    assert!(areas.area_of(kept.first).has_failed() && areas.area_of(kept.first).is_evacuating());
    let mut read = [0; PAGE_SIZE];
    areas.read_page(&mut lanes, kept.first, &mut read).unwrap();
    assert!(read.iter().all(|byte| *byte == 7));
    areas.free(kept.first, 1);
    assert!(!areas.area_of(kept.first).is_evacuating(), "the area has no used slot");
}

#[test]
fn all_failed_areas_are_retried() {
    let (disks, areas) = areas(&[(4, 0)]);
    let mut lanes = areas.open_lanes();
    disks[0].fail(Operation::Write, 0, u64::MAX, Fault::Errno(errno::EIO));
    let page = reserve_bytes(PAGE_SIZE).unwrap();
    for _ in 0..20 {
        let run = areas.alloc_from_areas(0, 1).unwrap();
        write_run(&areas, &mut lanes, run, page).unwrap_err();
    }
    assert!(areas.iter().all(SwapArea::has_failed));
    disks[0].clear_faults();
    let run = areas.alloc_from_areas(0, 1).unwrap();
    write_run(&areas, &mut lanes, run, page).unwrap();
    assert!(!areas.iter().any(SwapArea::has_failed));
}

#[test]
fn scattered_errors_do_not_fail_area() {
    let (disks, areas) = areas(&[(4, 0)]);
    let mut lanes = areas.open_lanes();
    let page = reserve_bytes(PAGE_SIZE).unwrap();
    disks[0].fail_at_random(Operation::Write, 3, Fault::Errno(errno::EIO));
    for _ in 0..200 {
        let run = areas.alloc_from_areas(0, 1).unwrap();
        let _ = write_run(&areas, &mut lanes, run, page);
    }
    assert!(!areas.iter().any(SwapArea::has_failed));
}

#[test]
fn area_count_is_validated() {
    let polling = |_| Polling::for_tests(Mode::Auto);
    for count in [0, MAX_AREAS + 1] {
        let storage = |_| Backing::growing(Box::new(SimDevice::new(8 * MIB, 1)), None, 0);
        let refused =
            SwapAreas::new((0..count).map(storage).collect(), 1, polling, Sealer::checking())
                .err()
                .unwrap();
        assert!(refused.to_string().starts_with(&format!("{count} swap areas")), "{refused}");
    }
}

#[test]
fn discarding_reaches_every_area() {
    let disks: Vec<_> = (0..2).map(|_| SimDevice::new(64 * MIB, 1)).collect();
    let storage = disks.iter().map(|disk| Backing {
        discard: Discard::Pages,
        ..Backing::growing(Box::new(disk.clone()), Some(8 * MIB), 0)
    });
    let polling = |_| Polling::for_tests(Mode::Auto);
    let areas = SwapAreas::new(storage.collect(), 1, polling, Sealer::checking()).unwrap();
    let mut runs = Vec::new();
    while let Ok(run) = areas.alloc_from_areas(0, CLUSTER_SLOTS) {
        runs.push(run);
    }
    runs.iter().for_each(|run| areas.free(run.first, run.len));
    let mut bytes = 0;
    while let Discarded::Bytes(more) = areas.discard_one() {
        bytes += more;
    }
    // Excludes clusters with slot 0, and clusters that a processor still uses.
    assert!(bytes >= 8 * MIB, "{bytes}");
    assert!(disks.iter().all(|disk| disk.counts().discards > 0));
}

#[test]
fn recovered_area_is_used_when_others_are_full() {
    let (disks, areas) = areas(&[(4, 9), (4, 0)]);
    let mut lanes = areas.open_lanes();
    let page = reserve_bytes(PAGE_SIZE).unwrap();
    disks[0].fail(Operation::Write, 0, 8, Fault::Errno(errno::EIO));
    for _ in 0..8 {
        let run = areas.alloc_from_areas(0, 1).unwrap();
        write_run(&areas, &mut lanes, run, page).unwrap_err();
        areas.free_unused(run.first, 1);
    }
    disks[0].clear_faults();
    let elsewhere = areas.alloc_elsewhere(0, 1).unwrap();
    assert_eq!(index_of(elsewhere.as_slice()[0]), 1);
    let (order, full) = fill_up(&areas);
    assert!(order.contains(&0), "{full}");
}

#[test]
fn enospc_is_not_a_device_failure() {
    let (disks, areas) = areas(&[(4, 9), (4, 0)]);
    let mut lanes = areas.open_lanes();
    let page = reserve_bytes(PAGE_SIZE).unwrap();
    disks[0].fail(Operation::Write, 0, u64::MAX, Fault::Errno(errno::ENOSPC));
    let full_one = areas.alloc_from_areas(0, 1).unwrap();
    for _ in 0..20 {
        let error = write_run(&areas, &mut lanes, full_one, page).unwrap_err();
        assert!(matches!(
            areas.area_of(full_one.first).refusal(&error),
            Some(AreaFull::NoSpace { .. })
        ));
    }
    assert!(!areas.iter().any(SwapArea::has_failed));
}

#[test]
fn paused_area_is_tried_last() {
    for number in [errno::ENOSPC, errno::ETIMEDOUT] {
        let (disks, areas) = areas(&[(4, 9), (4, 0)]);
        let mut lanes = areas.open_lanes();
        let page = reserve_bytes(PAGE_SIZE).unwrap();
        disks[0].fail(Operation::Write, 0, u64::MAX, Fault::Errno(number));
        let run = areas.alloc_from_areas(0, 1).unwrap();
        assert_eq!(index_of(run.first), 0);
        write_run(&areas, &mut lanes, run, page).unwrap_err();
        areas.free_unused(run.first, 1);
        // Runs come from the other area, and from the paused one when the other is full.
        let run = areas.alloc_from_areas(0, 1).unwrap();
        assert_eq!(index_of(run.first), 1);
        let (order, full) = fill_up(&areas);
        assert_eq!(order.first(), Some(&1), "{full}");
        assert!(order.contains(&0), "{full}");
    }
}

#[test]
fn fragmented_batch_uses_one_area() {
    let (_disks, areas) = areas(&[(4, 0), (4, 0)]);
    let mut slots = Vec::new();
    while let Ok(run) = areas.alloc_from_areas(0, 64) {
        slots.extend(run.first..run.first + run.len as u64);
    }
    let mut gaps: Vec<_> = slots.into_iter().filter(|slot| slot % 2 == 0).collect();
    let stamp = |slot: u64| slot.to_ne_bytes().repeat(PAGE_SIZE / 8);
    gaps.iter().for_each(|slot| areas.free(*slot, 1));
    assert_eq!(
        areas.alloc_from_areas(0, 32).map(|run| (run.len, areas.free(run.first, 1))),
        Ok((1, ()))
    );

    let mut lanes = areas.open_lanes();
    let (mut batches, mut found) = (Vec::new(), Vec::new());
    while let Ok(batch) = areas.alloc_batch(0, 32) {
        let slots = batch.as_slice();
        assert!(slots.iter().all(|slot| areas.are_in_one_area(slots[0], *slot)));
        let pages: Vec<u8> = slots.iter().flat_map(|slot| stamp(*slot)).collect();
        areas.write_each(&mut lanes, slots, &pages).unwrap();
        found.extend_from_slice(slots);
        batches.push(slots.len());
    }
    // The rest of an area is a separate batch.
    assert!(batches.iter().filter(|len| **len < 32).count() <= 2, "{batches:?}");
    let mut page = vec![0; PAGE_SIZE];
    for slot in &found {
        areas.read_page(&mut lanes, *slot, &mut page).unwrap();
        assert!(page == stamp(*slot), "slot {slot:#x}");
    }
    found.sort_unstable();
    gaps.sort_unstable();
    assert_eq!(found, gaps);
}

fn add(areas: &SwapAreas, mib: u64) -> Result<(), AreaError> {
    let device = Box::new(SimDevice::new(64 * MIB, 1));
    let backing = Backing::growing(device, Some(mib * MIB), 0);
    areas.add(backing, 2, Polling::for_tests(Mode::Auto), Sealer::encrypting().unwrap())
}

#[test]
fn child_allocates_only_from_own_areas_with_own_key() {
    let (_, areas) = areas(&[(8, 0)]);
    let before = areas.alloc_from_areas(0, 4).unwrap();
    areas.inherit();
    assert!(areas.is_inherited(before.first) && !areas.has_own());
    assert!(areas.alloc_from_areas(0, 1).is_err());
    areas.free(before.first, before.len);
    assert!(areas.alloc_from_areas(0, 1).is_err(), "inherited slots are never reallocated");
    for round in 1..3 {
        add(&areas, 4).unwrap();
        let own = areas.alloc_from_areas(0, 4).unwrap();
        assert!(!areas.is_inherited(own.first) && areas.has_own());
        assert!(!areas.are_in_one_area(own.first, before.first));
        assert!(areas.sealer(own.first).encrypts() && !areas.sealer(before.first).encrypts());
        assert_eq!(areas.own_used_slots(), 4);
        areas.inherit();
        assert_eq!((areas.first_own(), areas.own_used_slots()), (1 + round, 0));
    }
    while areas.have_space() {
        add(&areas, 4).unwrap();
    }
    assert!(matches!(add(&areas, 4), Err(AreaError::Count { .. })));
}

#[test]
fn area_added_during_freeze_thaws_with_others() {
    let (_, areas) = areas(&[(8, 0)]);
    areas.inherit();
    add(&areas, 2).unwrap();
    while areas.alloc_from_areas(0, CLUSTER_SLOTS).is_ok() {}
    areas.freeze();
    add(&areas, 4).unwrap();
    let late = areas.alloc_from_areas(0, 4).unwrap();
    areas.freeze();
    let used = areas.used_slots();
    areas.free(late.first, late.len);
    areas.thaw();
    assert_eq!(areas.used_slots(), used, "a second child still reads them");
    areas.thaw();
    assert_eq!(areas.used_slots(), used - 4);
}
