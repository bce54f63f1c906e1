//! Pages that move while the kernel migrates them for compaction, and protection
//! that stays for as long as nobody lifts it.

use crate::PAGE_SIZE;
use crate::memory::reserve_pages;
use crate::raw;
use crate::window::{READ_WRITE, Window, Writes};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

const PAGES: usize = 4096;
const BATCH: usize = 32;

/// Asks the kernel to compact memory again and again; false when it may not
/// be asked, which is so for all but root.
fn compact_until(end: Instant) -> bool {
    while Instant::now() < end {
        if std::fs::write("/proc/sys/vm/compact_memory", "1").is_err() {
            return false;
        }
    }
    true
}

/// Leaves memory full of holes, so that there is something to compact.
fn fragment(window: &Window, start: u64, content: &[u8]) {
    for round in 0..16 {
        let first = start + round * PAGES as u64;
        assert_eq!(window.install(first, content, Writes::Allowed).pages, PAGES);
        for page in (0..PAGES as u64).filter(|page| page % 4 != 0) {
            window.discard(first + page, 1).unwrap();
        }
    }
}

/// Moves every page from `from` to `to`, and checks that what is said to have
/// moved has, and nothing else.
fn move_all(window: &Window, from: u64, to: u64) {
    let mut done = 0;
    while done < PAGES {
        let count = BATCH.min(PAGES - done);
        let at = done as u64;
        let moved = window.relocate(to + at, from + at, count);
        assert_eq!(moved.error.is_some(), moved.pages < count, "{moved:?} of {count}");
        for page in at..at + count as u64 {
            let there = page < at + moved.pages as u64;
            assert_eq!(window.is_present(to + page).unwrap(), there, "{moved:?} of {count}");
            assert_eq!(window.is_present(from + page).unwrap(), !there, "{moved:?} of {count}");
        }
        done += moved.pages;
    }
}

#[test]
fn what_is_said_to_have_moved_has_moved_also_under_compaction() {
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
    let end = Instant::now() + Duration::from_secs(3);
    std::thread::scope(|scope| {
        let compaction = scope.spawn(|| compact_until(end));
        while !compaction.is_finished() {
            move_all(&window, from, to);
            (from, to) = (to, from);
        }
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

/// Whether the kernel may write to a page, for a system call.
fn takes_writes(window: &Window, page: u64) -> bool {
    let zeroes = std::fs::File::open("/dev/zero").unwrap();
    let address = window.base() + page as usize * PAGE_SIZE;
    let args = [zeroes.as_raw_fd() as usize, address, PAGE_SIZE, 0, 0, 0];
    // SAFETY: the kernel writes to a page of the window, which has no Rust references.
    raw::check(unsafe { raw::syscall(libc::SYS_read, args) }).is_ok()
}

#[test]
fn a_page_that_may_not_be_read_is_taken_out_and_comes_back() {
    let window = Window::reserve(1, true).unwrap();
    let scratch = &mut reserve_pages(1).unwrap()[0];
    assert_eq!(window.install(0, &[0x5a; PAGE_SIZE], Writes::Allowed).pages, 1);
    window.protect(0, 1, 0).unwrap();
    window.take_out_by_copy(0, 0, scratch).unwrap();
    assert!(!window.is_present(0).unwrap());
    window.claim_frame(0).unwrap().give_back(0).unwrap();
    window.protect(0, 1, READ_WRITE).unwrap();
    assert!(takes_writes(&window, 0));
    assert_eq!(scratch.0, [0x5a; PAGE_SIZE]);
}

/// What the kernel notes about the mapping that an address lies in (`VmFlags`).
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
fn pages_are_not_merged_with_others_where_all_of_a_process_is() {
    const PR_SET_MEMORY_MERGE: i32 = 67;
    // SAFETY: the call takes no pointers. The kernel shares equal pages of this process
    // from now on, which shows in no content.
    if unsafe { libc::prctl(PR_SET_MEMORY_MERGE, 1, 0, 0, 0) } != 0 {
        eprintln!("skipped: only root may have memory merged, where the kernel can");
        return;
    }
    let window = Window::reserve(1, false).unwrap();
    window.restore(16, 16).unwrap();
    let flags = [0, 16].map(|page| flags_of_mapping(window.base() + page * PAGE_SIZE));
    // SAFETY: the call takes no pointers. The kernel shares no more pages, which shows in
    // no content.
    unsafe { libc::prctl(PR_SET_MEMORY_MERGE, 0, 0, 0, 0) };
    for flags in flags {
        assert!(!flags.iter().any(|flag| flag == "mg"), "{flags:?}");
    }
}

#[test]
fn just_the_pages_that_are_named_are_discarded() {
    let window = Window::reserve(BATCH, false).unwrap();
    // More runs than one call takes, of one to three pages.
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
        }
        let gone = if by_call { &named[..] } else { &named[..40] };
        for page in 0..600 {
            let is_there = window.is_present(100 + page).unwrap();
            assert_eq!(is_there, !gone.contains(&page), "page {page}");
        }
        window.discard(100, 600).unwrap();
    }
}
