//! Mappings of an address range, and their present pages, from /proc. Reads this thread's files:
//! once the main thread has exited, only root may read those of the process.

use crate::memory::PAGE_SIZE;
use crate::{raw, uffd};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use std::io;
use std::ops::Range;

/// A mapping, clipped to the requested range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    pub range: Range<usize>,
    /// Protection, as bits of `mprotect`.
    pub protection: i32,
    pub is_private_anonymous: bool,
    /// True if locked into memory. This field and the next ones are set only with details.
    pub is_locked: bool,
    /// True if a forked child does not inherit the mapping (MADV_DONTFORK).
    pub is_withheld: bool,
    /// True if a forked child inherits the mapping without content (MADV_WIPEONFORK).
    pub is_wiped: bool,
}

/// Returns the mappings within `range`, in order. Details require a walk over all pages.
pub fn mappings(range: Range<usize>, with_details: bool) -> io::Result<Vec<Mapping>> {
    let name = if with_details { "/proc/thread-self/smaps" } else { "/proc/thread-self/maps" };
    Ok(parse(&std::fs::read_to_string(name)?, &range))
}

fn parse(text: &str, within: &Range<usize>) -> Vec<Mapping> {
    let mut all: Vec<Mapping> = Vec::new();
    let mut is_inside = false;
    for line in text.lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            let last = all.last_mut().filter(|_| is_inside);
            let Some(last) = last else { continue };
            for flag in flags.split_whitespace() {
                match flag {
                    "lo" => last.is_locked = true,
                    "dc" => last.is_withheld = true,
                    "wf" => last.is_wiped = true,
                    _ => {}
                }
            }
        } else if let Some(mapping) = parse_line(line) {
            let start = mapping.range.start.max(within.start);
            let end = mapping.range.end.min(within.end);
            is_inside = start < end;
            if is_inside {
                all.push(Mapping { range: start..end, ..mapping });
            }
        }
    }
    all
}

/// Parses `7f00-7f01 rw-p 00000000 00:00 0 [anon:name]`. Returns `None` for a line of details.
fn parse_line(line: &str) -> Option<Mapping> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let number = |text| usize::from_str_radix(text, 16).ok();
    let range = number(start)?..number(end)?;
    let [read, write, execute, private] = fields.next()?.as_bytes().first_chunk::<4>().copied()?;
    let inode = fields.nth(2)?;
    let protection = [(read, b'r', libc::PROT_READ), (write, b'w', libc::PROT_WRITE)]
        .into_iter()
        .chain([(execute, b'x', libc::PROT_EXEC)])
        .filter(|(has, letter, _)| has == letter)
        .fold(libc::PROT_NONE, |all, (_, _, bit)| all | bit);
    Some(Mapping {
        range,
        protection,
        is_private_anonymous: private == b'p' && inode == "0",
        is_locked: false,
        is_withheld: false,
        is_wiped: false,
    })
}

/// Returns true if this process has locked memory, or if that is unknown.
pub fn has_locked_memory() -> bool {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let locked = status.lines().find_map(|line| line.strip_prefix("VmLck:"));
    locked.is_none_or(|text| text.split_whitespace().next() != Some("0"))
}

/// PAGEMAP_SCAN of <linux/fs.h> (Linux 6.7): finds runs of pages by their state.
const PAGEMAP_SCAN: usize = 0xc060_6610;
const IS_PRESENT: u64 = 1 << 3;
const IS_SWAPPED: u64 = 1 << 4;
const RUNS: usize = 512;
const SCAN_BYTES: u64 = 12 * 8;
/// Pages per call of `mincore`, which costs a tenth of PAGEMAP_SCAN but reports less.
const PAGES_PER_CALL: usize = 32_768;

/// `struct page_region`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

#[derive(Debug)]
pub struct Pages {
    /// Open if the machine has swap, so that the kernel may have swapped pages out.
    pagemap: Option<OwnedFd>,
}

impl Pages {
    pub fn open() -> Pages {
        let open = || {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            rustix::fs::open("/proc/thread-self/pagemap", flags, Mode::empty()).ok()
        };
        // The kernel reports a process's own swap usage late and inexactly.
        let may_swap = rustix::system::sysinfo().totalswap > 0;
        Pages { pagemap: may_swap.then(open).flatten() }
    }

    /// Passes each run of resident or swapped-out pages to `body`. `range` is whole mapped pages.
    pub fn each_run(
        &self,
        range: Range<usize>,
        body: &mut dyn FnMut(Range<usize>),
    ) -> io::Result<()> {
        if let Some(pagemap) = &self.pagemap {
            match scan(pagemap, range.clone(), body) {
                Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => {
                    return find_by_pagemap(pagemap, range, body);
                }
                result => return result,
            }
        }
        find_by_mincore(range, body)
    }
}

fn scan(
    pagemap: &OwnedFd,
    range: Range<usize>,
    body: &mut dyn FnMut(Range<usize>),
) -> io::Result<()> {
    let mut runs = vec![Region::default(); RUNS];
    let mut at = range.start as u64;
    while at < range.end as u64 {
        // `struct pm_scan_arg`: size, flags, start, end, end of the walk, space for runs and their
        // number, limit of pages, inverted categories, masks of categories (all of, any of),
        // returned.
        let (space, any_of) = (runs.as_mut_ptr() as u64, IS_PRESENT | IS_SWAPPED);
        let mut arg = [
            SCAN_BYTES,
            0,
            at,
            range.end as u64,
            0,
            space,
            RUNS as u64,
            0,
            0,
            0,
            any_of,
            IS_PRESENT,
        ];
        debug_assert_eq!(raw::ioctl_bytes(PAGEMAP_SCAN), size_of_val(&arg));
        let args = [pagemap.as_raw_fd() as usize, PAGEMAP_SCAN, arg.as_mut_ptr() as usize, 0, 0, 0];
        // SAFETY: the kernel reads and writes `arg`, and writes at most `RUNS` runs to `runs`.
        // Without flags it changes no page.
        let count = raw::check(unsafe { raw::syscall(libc::SYS_ioctl, args) })?;
        for run in &runs[..count] {
            body(run.start as usize..run.end as usize);
        }
        let walk_end = arg[4];
        if walk_end <= at {
            return Err(io::ErrorKind::InvalidData.into());
        }
        at = walk_end;
    }
    Ok(())
}

/// Finds the same runs on kernels without PAGEMAP_SCAN, by reading a word for each page.
fn find_by_pagemap(
    pagemap: &OwnedFd,
    range: Range<usize>,
    body: &mut dyn FnMut(Range<usize>),
) -> io::Result<()> {
    const WORD: usize = size_of::<u64>();
    const PRESENT_OR_SWAPPED: u64 = 3 << 62;
    let mut words = vec![0_u8; PAGES_PER_CALL * WORD];
    for start in range.clone().step_by(PAGES_PER_CALL * PAGE_SIZE) {
        let pages = ((range.end - start) / PAGE_SIZE).min(PAGES_PER_CALL);
        let words = &mut words[..pages * WORD];
        read_exactly(pagemap, words, (start / PAGE_SIZE * WORD) as u64)?;
        let (words, _) = words.as_chunks::<WORD>();
        let is_used = |word: &[u8; WORD]| u64::from_ne_bytes(*word) & PRESENT_OR_SWAPPED != 0;
        let mut at = start;
        for run in words.chunk_by(|one, other| is_used(one) == is_used(other)) {
            let end = at + run.len() * PAGE_SIZE;
            if is_used(&run[0]) {
                body(at..end);
            }
            at = end;
        }
    }
    Ok(())
}

fn read_exactly(file: &OwnedFd, mut to: &mut [u8], mut position: u64) -> io::Result<()> {
    while !to.is_empty() {
        match rustix::io::pread(file, &mut *to, position)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            len => {
                to = &mut to[len..];
                position += len as u64;
            }
        }
    }
    Ok(())
}

/// Finds runs by `mincore`, which misses swapped-out pages, except in the kernel's swap cache.
fn find_by_mincore(range: Range<usize>, body: &mut dyn FnMut(Range<usize>)) -> io::Result<()> {
    let mut present = vec![0; PAGES_PER_CALL];
    for start in range.clone().step_by(PAGES_PER_CALL * PAGE_SIZE) {
        let len = (range.end - start).min(PAGES_PER_CALL * PAGE_SIZE);
        uffd::present(start, len, &mut present)?;
        let mut at = start;
        for run in present[..len / PAGE_SIZE].chunk_by(|one, other| (one ^ other) & 1 == 0) {
            let end = at + run.len() * PAGE_SIZE;
            if run[0] & 1 == 1 {
                body(at..end);
            }
            at = end;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    const TEXT: &str = "\
1000-3000 rw-p 00000000 00:00 0 
Size:                  8 kB
VmFlags: rd wr mr mw me lo wf sd 
3000-4000 ---p 00000000 00:00 0                          [anon:x]
VmFlags: mr mw me dc
8000-9000 r-xp 00001000 fe:00 77                         /usr/lib/a b.so
9000-a000 rw-s 00000000 00:01 5                          /dev/zero (deleted)
";

    #[test]
    fn mappings_are_parsed_and_clipped() {
        let all = parse(TEXT, &(0x2000..0x9000));
        assert_eq!(all.len(), 3);
        assert_eq!((all[0].range.clone(), all[0].protection), (0x2000..0x3000, 3));
        assert!(all[0].is_private_anonymous && all[0].is_locked && all[0].is_wiped);
        assert!(!all[0].is_withheld && all[1].is_withheld && !all[1].is_locked);
        assert_eq!(all[1].protection, libc::PROT_NONE);
        assert!(all[1].is_private_anonymous && !all[2].is_private_anonymous);
        assert_eq!(all[2].protection, libc::PROT_READ | libc::PROT_EXEC);
        assert!(!parse(TEXT, &(0x9000..0xa000))[0].is_private_anonymous);
    }

    #[test]
    fn every_method_finds_present_pages() {
        let bytes = crate::memory::reserve_bytes(64 * PAGE_SIZE).unwrap();
        let start = bytes.as_ptr() as usize;
        for page in [3, 4, 5, 40, 63] {
            bytes[page * PAGE_SIZE] = 1;
        }
        let range = start..start + 64 * PAGE_SIZE;
        let expected: Vec<_> = [3..6, 40..41, 63..64]
            .map(|run| start + run.start * PAGE_SIZE..start + run.end * PAGE_SIZE)
            .into();
        let all = mappings(range.clone(), false).unwrap();
        let access = libc::PROT_READ | libc::PROT_WRITE;
        assert_eq!((all[0].range.clone(), all[0].protection), (range.clone(), access));
        let pagemap = File::open("/proc/thread-self/pagemap").ok().map(OwnedFd::from);
        for pages in [Pages::open(), Pages { pagemap }, Pages { pagemap: None }] {
            let mut found = Vec::new();
            pages.each_run(range.clone(), &mut |run| found.push(run)).unwrap();
            assert_eq!(found, expected, "{pages:?}");
        }
        let pagemap = OwnedFd::from(File::open("/proc/thread-self/pagemap").unwrap());
        let mut found = Vec::new();
        find_by_pagemap(&pagemap, range, &mut |run| found.push(run)).unwrap();
        assert_eq!(found, expected, "without PAGEMAP_SCAN");
    }
}
