//! Tests page moves while the kernel migrates pages for compaction, and write protection.

use crate::PAGE_SIZE;
use crate::faults::{self, Faults};
use crate::memory::{self, reserve_pages};
use crate::probe::{Ended, in_child};
use crate::raw;
use crate::window::{READ_WRITE, Touch, Window, Writes};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};

const PAGES: usize = 4096;
const BATCH: usize = 32;
const ROUNDS: usize = 100;

/// Makes the kernel compact memory until `is_done`. Returns false if the user is not root.
fn compact_until(is_done: &AtomicBool) -> bool {
    while !is_done.load(Ordering::Relaxed) {
        if std::fs::write("/proc/sys/vm/compact_memory", "1").is_err() {
            return false;
        }
    }
    true
}

fn fragment(window: &Window, start: u64, content: &[u8]) {
    for round in 0..16 {
        let first = start + round * PAGES as u64;
        assert_eq!(window.install(first, content, Writes::Allowed).pages, PAGES);
        for page in (0..PAGES as u64).filter(|page| page % 4 != 0) {
            window.discard(first + page, 1).unwrap();
        }
    }
}

fn move_all(window: &Window, from: u64, to: u64) {
    let mut done = 0;
    while done < PAGES {
        let count = BATCH.min(PAGES - done);
        let at = done as u64;
        let moved = window.relocate(to + at, from + at, count);
        assert_eq!(moved.error.is_some(), moved.pages < count, "{moved:?} of {count}");
        for page in at..at + count as u64 {
            let is_moved = page < at + moved.pages as u64;
            assert_eq!(window.is_present(to + page).unwrap(), is_moved, "{moved:?} of {count}");
            assert_eq!(window.is_present(from + page).unwrap(), !is_moved, "{moved:?} of {count}");
        }
        done += moved.pages;
    }
}

#[test]
fn reported_moves_are_complete_under_compaction() {
    let window = Window::reserve(BATCH, false).unwrap();
    if !window.uses_move() {
        return;
    }
    let mut content = vec![0; PAGES * PAGE_SIZE];
    for (page, bytes) in content.chunks_exact_mut(PAGE_SIZE).enumerate() {
        bytes[..8].copy_from_slice(&(page as u64).to_le_bytes());
    }
    let (mut from, mut to) = (0, 2 * PAGES as u64);
    assert_eq!(window.install(from, &content, Writes::Allowed).pages, PAGES);
    fragment(&window, 4 * PAGES as u64, &content);
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let compaction = scope.spawn(|| compact_until(&is_done));
        for _ in 0..ROUNDS {
            move_all(&window, from, to);
            (from, to) = (to, from);
        }
        is_done.store(true, Ordering::Relaxed);
        if !compaction.join().unwrap() {
            eprintln!("skipped: memory can be compacted by root only");
        }
    });
    let page = &mut reserve_pages(1).unwrap()[0];
    for number in 0..PAGES as u64 {
        window.read_page(from + number, &mut page.0).unwrap();
        assert_eq!(page.0[..8], number.to_le_bytes());
    }
}

fn takes_writes(window: &Window, page: u64) -> bool {
    let zeroes = std::fs::File::open("/dev/zero").unwrap();
    let address = window.base() + page as usize * PAGE_SIZE;
    let args = [zeroes.as_raw_fd() as usize, address, PAGE_SIZE, 0, 0, 0];
    // SAFETY: the kernel writes to a page of the window, to which no Rust reference points.
    raw::check(unsafe { raw::syscall(libc::SYS_read, args) }).is_ok()
}

fn with_each(test: impl Fn()) {
    for faults in [Faults::Userfaultfd, Faults::Protection] {
        faults::taken(faults, &test);
    }
}

#[test]
fn page_runs_are_moved_with_content() {
    let window = faults::taken(Faults::Protection, || Window::reserve(1, false)).unwrap();
    for page in 0..8 {
        assert_eq!(window.install(page, &[page as u8 + 1; PAGE_SIZE], Writes::Allowed).pages, 1);
    }
    let (pages, mut copies) = ([1, 2, 4, 7], [[0; PAGE_SIZE]; 4]);
    assert_eq!(window.take_each(&pages, &mut copies), pages.len());
    assert_eq!(copies.map(|copy| copy[PAGE_SIZE - 1]), [2, 3, 5, 8]);
    for page in 0..8 {
        assert_eq!(window.is_present(page).unwrap(), !pages.contains(&page));
    }
    // A taken page is dropped: it reads as zeroes if it is opened.
    assert_eq!(window.install_zero(2, 1).pages, 1);
    let page = &mut reserve_pages(1).unwrap()[0];
    window.read_page(2, &mut page.0).unwrap();
    assert_eq!(page.0, [0; PAGE_SIZE]);
}

#[test]
fn unreadable_page_is_moved_out_and_back() {
    with_each(take_out_an_unreadable_page);
}

fn take_out_an_unreadable_page() {
    let window = Window::reserve(1, true).unwrap();
    let scratch = &mut reserve_pages(1).unwrap()[0];
    assert_eq!(window.install(0, &[0x5a; PAGE_SIZE], Writes::Allowed).pages, 1);
    window.protect(0, 1, 0).unwrap();
    window.take_out_by_copy(0, 0, scratch).unwrap();
    assert!(!window.is_present(0).unwrap());
    window.claim_frame(0).unwrap().restore_to(0).unwrap();
    window.protect(0, 1, READ_WRITE).unwrap();
    assert_eq!(content_of(&window, 0), 0x5a);
    assert!(takes_writes(&window, 0));
}

/// Runs in a child, because it forks.
#[test]
fn unshared_part_of_a_huge_page_is_moved() {
    const COUNT: usize = 512;
    const NO_MOVE: i32 = 3;
    const NO_HUGE_PAGES: i32 = 4;
    let ended = in_child(|| {
        let window = Window::reserve(1, false).unwrap();
        if !window.uses_move() {
            return NO_MOVE;
        }
        let (start, len) = (window.base(), COUNT * PAGE_SIZE);
        for page in 0..COUNT as u64 {
            assert_eq!(window.install(page, &[7; PAGE_SIZE], Writes::Allowed).pages, 1);
        }
        window.advise(start, len, libc::MADV_HUGEPAGE).unwrap();
        // Fails for a moment while the kernel migrates a page or has no free huge page.
        if (0..100).all(|_| window.advise(start, len, libc::MADV_COLLAPSE).is_err()) {
            return NO_HUGE_PAGES;
        }
        window.inherit(&[(0, COUNT)], true).unwrap();
        let (end, kept) = rustix::pipe::pipe().unwrap();
        // SAFETY: this process has one thread. The child only waits and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            drop(kept);
            let _ = rustix::io::read(&end, &mut [0]);
            // SAFETY: the call takes a number only.
            unsafe { libc::_exit(0) };
        }
        // The first page and another one are copied.
        for page in [0, 5] {
            let address = start + page * PAGE_SIZE;
            // SAFETY: the page is present and writable; no reference points to it.
            unsafe { (address as *mut u8).write_volatile(9) };
        }
        drop(kept);
        // SAFETY: the child is this process's own, and the status is not wanted.
        assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
        assert_eq!(window.take_out(2, 1, 0).pages, 0);
        // Fails for a moment while the kernel migrates the page.
        let is_moved =
            (0..10_000).any(|_| window.move_unshared(2, || window.take_out(2, 1, 0).pages == 1));
        assert!(is_moved);
        window.claim_frame(0).unwrap().restore_to(2).unwrap();
        assert_eq!(content_of(&window, 2), 7);
        0
    });
    match ended.unwrap() {
        Ended::Exit(NO_MOVE) => eprintln!("skipped: no UFFDIO_MOVE here"),
        Ended::Exit(NO_HUGE_PAGES) => eprintln!("skipped: the kernel collapses no pages here"),
        ended => assert_eq!(ended, Ended::Exit(0)),
    }
}

fn flags_of_mapping(address: usize) -> Vec<String> {
    let range = |line: &str| {
        let (start, end) = line.split_whitespace().next()?.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).ok();
        Some(number(start)?..number(end)?)
    };
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let of_it = |line: &&str| range(line).is_some_and(|range| range.contains(&address));
    let mut lines = maps.lines().skip_while(|line| !of_it(line));
    let flags = lines.find_map(|line| line.strip_prefix("VmFlags:")).unwrap();
    flags.split_whitespace().map(String::from).collect()
}

#[test]
fn window_is_excluded_from_ksm() {
    const IN_CHILD: &str = "SOFTSWAP_TEST_KSM";
    const PR_SET_MEMORY_MERGE: i32 = 67;
    // Runs in a child process: PR_SET_MEMORY_MERGE would affect the windows of the other tests.
    if std::env::var_os(IN_CHILD).is_none() {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--nocapture", "window_is_excluded_from_ksm"]).env(IN_CHILD, "1");
        assert!(child.status().unwrap().success());
        return;
    }
    // SAFETY: the call takes no pointers. The kernel merges equal pages of this process from now
    // on, which changes no content.
    if unsafe { libc::prctl(PR_SET_MEMORY_MERGE, 1, 0, 0, 0) } != 0 {
        eprintln!("skipped: the kernel has no KSM, or only root may enable it");
        return;
    }
    let window = Window::reserve(1, false).unwrap();
    window.restore(16, 16).unwrap();
    for page in [0, 16] {
        let flags = flags_of_mapping(window.base() + page * PAGE_SIZE);
        assert!(!flags.iter().any(|flag| flag == "mg"), "{flags:?}");
    }
}

#[test]
fn only_given_pages_are_discarded() {
    with_each(discard_named_pages);
}

fn discard_named_pages() {
    let window = Window::reserve(BATCH, false).unwrap();
    // More runs than one call takes, of one to three pages each.
    let named: Vec<u64> = (0..600).filter(|page| page % 5 < 1 + page / 5 % 3).collect();
    let content = vec![7; 600 * PAGE_SIZE];
    for by_call in [true, false] {
        assert_eq!(window.install(100, &content, Writes::Caught).pages, 600);
        let pages: Vec<u64> = named.iter().map(|page| 100 + page).collect();
        if by_call {
            assert_eq!(window.discard_each(&pages), pages.len());
        } else {
            let few = &pages[..40];
            let (runs, count) = window.runs(few);
            assert_eq!(window.discard_runs(&runs[..count]), few.len());
            few.iter().for_each(|page| window.discard(*page, 1).unwrap());
        }
        let discarded = if by_call { &named[..] } else { &named[..40] };
        for page in 0..600 {
            let is_present = window.is_present(100 + page).unwrap();
            assert_eq!(is_present, !discarded.contains(&page), "page {page}");
        }
        let all: Vec<u64> = (100..700).collect();
        assert_eq!(window.discard_each(&all), 600);
    }
}

fn content_of(window: &Window, page: u64) -> u8 {
    let content = &mut reserve_pages(1).unwrap()[0];
    window.read_page(page, &mut content.0).unwrap();
    assert!(content.0.iter().all(|byte| *byte == content.0[0]), "mixed content");
    content.0[0]
}

#[test]
fn page_runs_round_trip() {
    with_each(|| {
        let window = Window::reserve(8, false).unwrap();
        if !window.takes_runs() {
            return;
        }
        for page in 0..8 {
            let content = [10 + page as u8; PAGE_SIZE];
            assert_eq!(window.install(page, &content, Writes::Allowed).pages, 1);
        }
        assert_eq!(window.take_out(2, 4, 0).pages, 4);
        for page in 0..8 {
            assert_eq!(window.is_present(page).unwrap(), !(2..6).contains(&page));
        }
        assert!(!takes_writes(&window, 3), "the page was taken out");
        for page in 2..6 {
            let frame = window.claim_frame(page as usize - 2).unwrap();
            assert_eq!(frame.bytes()[0], 10 + page as u8);
            frame.restore_to(page).unwrap();
        }
        assert_eq!(
            (0..8).map(|page| content_of(&window, page)).collect::<Vec<_>>(),
            [10, 11, 12, 13, 14, 15, 16, 17]
        );
        assert!(takes_writes(&window, 3));
    });
}

#[test]
fn protected_writes_fault_until_allowed() {
    with_each(|| {
        let window = Window::reserve(1, false).unwrap();
        assert_eq!(window.install(5, &[1; 3 * PAGE_SIZE], Writes::Caught).pages, 3);
        assert!(!takes_writes(&window, 6));
        window.allow_writes(6).unwrap();
        assert!(takes_writes(&window, 6) && !takes_writes(&window, 5));
        window.set_writes(0, 9, Writes::Allowed).unwrap();
        assert!(takes_writes(&window, 5) && !window.is_present(8).unwrap());
        assert_eq!(
            window.install(6, &[2; PAGE_SIZE], Writes::Allowed).pages,
            0,
            "the page is present"
        );
        assert_eq!(content_of(&window, 6), 0, "/dev/zero was read into it");
    });
}

#[test]
fn program_protection_applies_to_installed_pages() {
    with_each(|| {
        let window = Window::reserve(1, false).unwrap();
        assert_eq!(window.install(700, &[1; PAGE_SIZE], Writes::Allowed).pages, 1);
        window.protect(100, 2000, libc::PROT_READ).unwrap();
        assert_eq!(window.install(701, &[1; PAGE_SIZE], Writes::Allowed).pages, 1);
        for page in [700, 701] {
            assert!(!takes_writes(&window, page));
        }
        window.protect(700, 2, READ_WRITE).unwrap();
        for page in [700, 701] {
            assert!(takes_writes(&window, page));
        }
        assert_eq!(window.install(702, &[1; PAGE_SIZE], Writes::Allowed).pages, 1);
        assert!(!takes_writes(&window, 702));
        window.restore(600, 200).unwrap();
        assert!(!window.is_present(700).unwrap() && !window.is_present(702).unwrap());
        assert_eq!(window.install_zero(702, 1).pages, 1);
        assert!(takes_writes(&window, 702));
    });
}

#[test]
fn forbidden_touch_is_passed_to_program() {
    let window = faults::taken(Faults::Protection, || Window::reserve(1, false)).unwrap();
    assert_eq!(window.touch(3, libc::PROT_WRITE), Touch::Absent);
    window.protect(3, 1, libc::PROT_READ).unwrap();
    assert_eq!(window.touch(3, libc::PROT_WRITE), Touch::Forbidden);
    assert_eq!(window.touch(3, libc::PROT_READ), Touch::Absent);
    assert_eq!(window.touch(3, libc::PROT_EXEC), Touch::Forbidden);
    window.protect(3, 1, libc::PROT_NONE).unwrap();
    assert_eq!(window.touch(3, libc::PROT_READ), Touch::Forbidden);
}

fn mappings_in(window: &Window) -> usize {
    let end = window.base() + window.len_bytes();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let start = |line: &str| usize::from_str_radix(line.split('-').next().unwrap(), 16).unwrap();
    maps.lines().filter(|line| (window.base()..end).contains(&start(line))).count()
}

#[test]
fn mappings_are_counted_and_merge_if_neighbours_are_equal() {
    let window = faults::taken(Faults::Protection, || Window::reserve(64, false)).unwrap();
    let fill = |page| assert_eq!(window.install(page, &[1; PAGE_SIZE], Writes::Allowed).pages, 1);
    assert_eq!((window.mappings(), mappings_in(&window)), (1, 1));
    assert!(window.mappings_limit() > 1000);
    for page in (1000..1100).step_by(2) {
        fill(page);
    }
    assert_eq!((window.mappings(), mappings_in(&window)), (101, 101));
    window.protect(1040, 10, libc::PROT_READ).unwrap();
    assert_eq!((window.mappings(), mappings_in(&window)), (101, 101));
    window.protect(1040, 10, READ_WRITE).unwrap();
    for page in (1001..1100).step_by(2) {
        fill(page);
    }
    assert_eq!((window.mappings(), mappings_in(&window)), (3, 3));
    assert_eq!(window.take_out(1010, 64, 0).pages, 64);
    assert_eq!((window.mappings(), mappings_in(&window)), (5, 5));
    let pages: Vec<u64> = (1000..1100).collect();
    assert_eq!(window.discard_each(&pages), 100);
    assert_eq!((window.mappings(), mappings_in(&window)), (1, 1));
}

/// Runs in a child, which uses up the limit on mappings: no page can be made inaccessible then.
#[test]
fn pages_that_cannot_be_discarded_stay() {
    let ended = in_child(|| {
        // Otherwise only root may open /proc/self/mem.
        let dumpable = rustix::process::DumpableBehavior::Dumpable;
        rustix::process::set_dumpable_behavior(dumpable).unwrap();
        let window = faults::taken(Faults::Protection, || Window::reserve(1, false)).unwrap();
        for page in 0..20 {
            assert_eq!(window.install(page, &[page as u8; PAGE_SIZE], Writes::Allowed).pages, 1);
        }
        let (mut fillers, mut count) = ([0; 100], 0);
        let make = || {
            let len = 2 * PAGE_SIZE;
            // SAFETY: the mapping is new, and only this test refers to it.
            let filler = unsafe { memory::map(0, len, READ_WRITE, memory::RESERVE) }?;
            // SAFETY: as above. Different protections keep the kernel from merging the pages.
            unsafe { memory::protect(filler, PAGE_SIZE, libc::PROT_NONE).map(|()| filler) }
        };
        while let Ok(filler) = make() {
            fillers[count % 100] = filler;
            count += 1;
        }
        assert_eq!(window.discard_each(&[3, 5, 7, 9]), 0);
        assert!(window.discard(12, 1).is_err());
        for filler in fillers {
            // SAFETY: the mapping is this test's.
            unsafe { memory::unmap(filler, 2 * PAGE_SIZE) };
        }
        for page in [3, 4, 5, 7, 9, 12, 19] {
            assert!(window.is_present(page).unwrap(), "{page}");
            window.renew(page).unwrap();
            let address = window.base() + page as usize * PAGE_SIZE;
            // SAFETY: the page is present and accessible; no reference points to it.
            assert_eq!(unsafe { (address as *const u8).read_volatile() }, page as u8);
        }
        assert_eq!(window.discard_each(&[3, 5, 7, 9]), 4);
        0
    });
    assert_eq!(ended.unwrap(), Ended::Exit(0));
}
