//! Regions with several times their pool's budget: content, advice, pins, errors, and leaks.

use crate::common::{PAGE, builder};
use softswap::{Advice, Error, Pool};
use softswap_testkit::random::mix64;
use softswap_testkit::waiting::eventually;
use std::io::{Read, Seek, Write};
use std::sync::Mutex;

/// Serializes the tests, because the process's resources are counted.
static EXCLUSIVE: Mutex<()> = Mutex::new(());

fn exclusive() -> std::sync::MutexGuard<'static, ()> {
    EXCLUSIVE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn pool(memory: &str) -> Pool {
    builder(memory).build().unwrap()
}

fn content(number: usize) -> [u8; PAGE] {
    let mut page = [number as u8; PAGE];
    let step = if number.is_multiple_of(3) { 1 } else { 4 };
    for (at, word) in page.as_chunks_mut().0.iter_mut().enumerate().step_by(step) {
        *word = mix64((number << 9 | at) as u64).to_ne_bytes();
    }
    page
}

#[test]
fn region_holds_four_budgets_for_many_threads() {
    let _guard = exclusive();
    let pool = pool("16M");
    let mut region = pool.map(64 << 20).unwrap();
    let pages = region.len() / PAGE;
    std::thread::scope(|scope| {
        for (part, bytes) in region.chunks_mut(16 << 20).enumerate() {
            scope.spawn(move || {
                for (number, page) in bytes.chunks_mut(PAGE).enumerate() {
                    page.copy_from_slice(&content(part * 4096 + number));
                }
            });
        }
    });
    let region = &region;
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                for step in 0..6000 {
                    let number = mix64(thread << 32 | step) as usize % pages;
                    let found = &region[number * PAGE..][..PAGE];
                    assert!(found == content(number), "page {number}");
                }
            });
        }
    });
    let stats = pool.stats();
    assert!(stats.used_peak_bytes <= 16 << 20, "{stats:?}");
    assert!(stats.faults_disk > 0 && stats.written_bytes > 0, "{stats:?}");
    assert_eq!(stats.read_errors, 0);
}

#[test]
fn advised_order_needs_no_detection() {
    let _guard = exclusive();
    let pool = pool("16M");
    let mut region = pool.map(96 << 20).unwrap();
    // Incompressible, so that evicted pages are read from the disk.
    for (number, page) in region.chunks_mut(PAGE).enumerate() {
        for (at, word) in page.as_chunks_mut().0.iter_mut().enumerate() {
            *word = mix64((number << 9 | at) as u64).to_ne_bytes();
        }
    }
    // Reads runs of `run` pages at irregular distances. Returns faults and pages read ahead. How
    // many faults that saves is not checked, because it depends on the machine's load.
    let read = |region: &softswap::Region, first: usize, runs: usize, run: usize| {
        let before = pool.stats();
        for turn in 0..runs {
            let start = first + turn * 300 + mix64((first + turn) as u64) as usize % 100;
            for page in start..start + run {
                assert_eq!(region[page * PAGE..][..8], mix64((page << 9) as u64).to_ne_bytes());
            }
        }
        let after = pool.stats();
        (after.faults - before.faults, after.pages_read_ahead - before.pages_read_ahead)
    };
    region.advise(.., Advice::Random).unwrap();
    let (random, ahead) = read(&region, 8000, 50, 48);
    assert_eq!(ahead, 0, "of {random} faults");
    region.advise(.., Advice::Normal).unwrap();
    let (detected, ahead) = read(&region, 8150, 50, 48);
    assert!(detected < random && ahead > 0, "{random} {detected} {ahead}");
    // Single touches, so that there is no order to detect.
    let (_, detected) = read(&region, 0, 12, 1);
    region.advise(.., Advice::Sequential).unwrap();
    let (_, sequential) = read(&region, 4000, 12, 1);
    assert!(sequential > detected, "{detected} {sequential}");
}

#[test]
fn pools_are_independent() {
    let _guard = exclusive();
    let pools: Vec<_> = (0..8).map(|_| pool("8M")).collect();
    let mut regions: Vec<_> = pools.iter().map(|pool| pool.map(12 << 20).unwrap()).collect();
    for (number, region) in regions.iter_mut().enumerate() {
        for page in region.chunks_mut(PAGE) {
            page.fill(number as u8 + 1);
        }
    }
    for (number, region) in regions.iter().enumerate() {
        assert!(region.iter().all(|byte| *byte == number as u8 + 1));
    }
    let (last, others) = (regions.pop().unwrap(), regions);
    drop((others, pools));
    assert!(last.iter().all(|byte| *byte == 8), "a region keeps its pool");
}

#[test]
fn advice_takes_effect() {
    let _guard = exclusive();
    let pool = pool("16M");
    let mut region = pool.map(32 << 20).unwrap();
    region.chunks_mut(PAGE).enumerate().for_each(|(number, page)| page.fill(number as u8 | 1));
    for range in [0..10, 100..PAGE, 5000..5001, 4096..8192, 10_000..100_000, 8192..9000] {
        region.advise(range.clone(), Advice::DontNeed).unwrap();
        assert!(region[range.clone()].iter().all(|byte| *byte == 0), "{range:?}");
        assert_ne!(region[range.end], 0, "{range:?}");
    }
    assert_eq!((region[11], region[99]), (1, 1));
    region.advise(.., Advice::Cold).unwrap();
    region.advise(.., Advice::Sequential).unwrap();
    region.advise_shared(.., Advice::Random).unwrap();
    let before = pool.stats();
    region.advise(1 << 20..5 << 20, Advice::WillNeed).unwrap();
    let after = pool.stats();
    assert!(after.faults > before.faults);
    assert_eq!(region[3 << 20], 1);
    region.advise(.., Advice::DontNeed).unwrap();
    assert!(region.iter().all(|byte| *byte == 0));
}

#[test]
fn pinned_memory_is_usable_by_kernel() {
    let _guard = exclusive();
    let pool = pool("16M");
    let mut region = pool.map(64 << 20).unwrap();
    region.chunks_mut(PAGE).enumerate().for_each(|(at, page)| page.copy_from_slice(&content(at)));
    let mut file = tempfile::tempfile().unwrap();
    // The first pages have been evicted.
    let refused = file.write(&region[..1 << 20]).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EFAULT));
    for start in (0..region.len()).step_by(1 << 20) {
        file.write_all(&region.pin(start..start + (1 << 20)).unwrap()).unwrap();
    }
    file.rewind().unwrap();
    let mut copy = pool.map(region.len()).unwrap();
    for start in (0..copy.len()).step_by(1 << 20) {
        file.read_exact(&mut copy.pin_mut(start..start + (1 << 20)).unwrap()).unwrap();
    }
    assert!(region[..] == copy[..]);

    let refused = region.pin(..).unwrap_err();
    let Error::Pinned { asked_bytes, most_bytes } = refused else { panic!("{refused}") };
    assert!(asked_bytes == region.len() && (1 << 20..4 << 20).contains(&most_bytes));
    let pins: Vec<_> = (0..1000).map_while(|_| region.pin(..PAGE).ok()).collect();
    assert!(pins.len() > 200, "{}", pins.len());
    drop(pins);
    assert!(region.pin(..1 << 20).is_ok());
}

#[test]
fn impossible_requests_are_rejected_with_reason() {
    let _guard = exclusive();
    for size in ["", "M", "-1", "1.5G", "64X", "99999999999999999999G"] {
        assert!(matches!(Pool::builder().memory(size), Err(Error::Size { .. })), "{size}");
    }
    for area in ["", ":1G", "/var/tmp:", "/var/tmp:0", "/var/tmp:many", "a\0b"] {
        assert!(matches!(Pool::builder().swap(area), Err(Error::Swap { .. })), "{area}");
    }
    let nowhere = Pool::builder().swap("/nowhere/at/all").unwrap().build();
    assert!(matches!(nowhere, Err(Error::Area { errno: libc::ENOENT, .. })), "{nowhere:?}");
    for (directory, part) in [
        ("/nowhere/at/all", "/nowhere"),
        ("/dev/shm", "is a tmpfs: its files"),
        ("/proc", "stores no files"),
        ("/etc/passwd", "give a directory, or create a swap file"),
    ] {
        let refused = Pool::builder().swap(directory).unwrap().build().unwrap_err();
        assert!(matches!(refused, Error::Area { .. }), "{refused:?}");
        assert!(refused.to_string().contains(part), "{refused}");
    }
    let small = Pool::builder().memory_bytes(1 << 20).build();
    assert!(matches!(small, Err(Error::TooLittleMemory { asked_bytes: 1_048_576, .. })));
    let message = small.unwrap_err().to_string();
    assert!(message.contains("at least 8M") && !message.contains("--memory"), "{message}");

    let pool = pool("16M");
    assert!(matches!(pool.map(0), Err(Error::Length { .. })));
    for len in [usize::MAX, usize::MAX - 4095, 1 << 50] {
        assert!(matches!(pool.map(len), Err(Error::Length { .. })), "{len}");
    }
    assert!(matches!(pool.set_memory("1M"), Err(Error::Limit(_))));
    let mut region = pool.map(100).unwrap();
    for range in [0..101, 50..101, 101..102] {
        assert!(matches!(region.advise(range.clone(), Advice::Cold), Err(Error::Range { .. })));
        assert!(matches!(region.pin(range), Err(Error::Range { .. })));
    }
    assert!(region.advise(100..100, Advice::WillNeed).is_ok());
    assert!(region.advise(..=usize::MAX, Advice::WillNeed).is_err());
    assert!(region.pin(100..).unwrap().is_empty());
}

#[test]
fn budget_beyond_dram_is_all_dram() {
    let _guard = exclusive();
    let budget = |size| pool(size).stats().budget_bytes;
    let dram_bytes = budget("99999G");
    assert!(dram_bytes < 99_999 << 30 && budget("999999G") == dram_bytes, "{dram_bytes}");
}

#[test]
fn budget_can_be_changed() {
    let _guard = exclusive();
    let pool = pool("32M");
    let mut region = pool.map(96 << 20).unwrap();
    region.chunks_mut(PAGE).enumerate().for_each(|(at, page)| page.copy_from_slice(&content(at)));
    for size in ["16M", "64M", "24M"] {
        pool.set_memory(size).unwrap();
        for number in (0..region.len() / PAGE).step_by(7) {
            assert!(region[number * PAGE..][..PAGE] == content(number));
        }
    }
}

#[test]
fn more_pools_than_large_windows_can_exist() {
    let _guard = exclusive();
    // There is address space for 56 windows of one TiB.
    let mut pools: Vec<_> = (0..80).map(|_| pool("8M")).collect();
    let mut regions: Vec<_> = pools.iter().map(|pool| pool.map(1 << 20).unwrap()).collect();
    regions.iter_mut().enumerate().for_each(|(number, region)| region[4097] = number as u8);
    pools.truncate(1);
    let found = regions.iter().enumerate().all(|(number, region)| region[4097] == number as u8);
    assert!(found, "each region has its own content");
}

/// A thread remains visible for a moment after it was joined.
fn pool_threads() -> usize {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = threads.filter_map(|it| std::fs::read_to_string(it.path().join("comm")).ok());
    names.filter(|name| ["softswap", "softswap-ahead"].contains(&name.trim_end())).count()
}

fn process_resources() -> [usize; 2] {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    // The standard library's allocator does not return all of its memory.
    let is_heap_or_stack = |line: &&str| line.contains("[heap]") || line.contains("[stack]");
    let bytes_of = |line: &str| {
        let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let number = |text| usize::from_str_radix(text, 16).unwrap();
        number(end) - number(start)
    };
    let bytes = maps.lines().filter(|line| !is_heap_or_stack(line)).map(bytes_of).sum::<usize>();
    [bytes, std::fs::read_dir("/proc/self/fd").unwrap().count()]
}

#[test]
fn dropped_pools_leak_nothing() {
    let _guard = exclusive();
    let directory = tempfile::tempdir().unwrap();
    let swap = directory.path().to_str().unwrap();
    let create_and_drop = |bytes: usize| {
        let pool = Pool::builder().memory("8M").unwrap().swap(swap).unwrap().build().unwrap();
        let mut region = pool.map(bytes).unwrap();
        region.chunks_mut(PAGE).enumerate().for_each(|(at, page)| page.fill(at as u8));
        assert_eq!(region[PAGE * 17], 17);
    };
    let pool = pool("8M");
    eventually("the threads of a pool run", || pool_threads() > 0);
    drop(pool);
    create_and_drop(16 << 20);
    create_and_drop(16 << 20);
    let all_have_exited = || eventually("the pools' threads have exited", || pool_threads() == 0);
    all_have_exited();
    let before = process_resources();
    for number in 0..1000 {
        create_and_drop(if number % 100 == 0 { 16 << 20 } else { 256 << 10 });
    }
    all_have_exited();
    let after = process_resources();
    let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten().take(40);
    let open: Vec<_> = open.map(|link| std::fs::read_link(link.path())).collect();
    assert_eq!(before[1], after[1], "descriptors: {open:?}");
    // The C library's allocator may create or free arenas of exited threads.
    let more_bytes = after[0].saturating_sub(before[0]);
    assert!(more_bytes <= 256 << 20, "{more_bytes} bytes more");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}
