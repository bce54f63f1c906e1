//! Parsers of /proc. The kernel's format is reliable, but the texts contain names of files and
//! processes, which users choose.

use crate::text;
use softswap_bench::parsers as bench;
use softswap_cli::parsers;
use softswap_sys::{PAGE_SIZE, holders, load, pinners};
use std::io;

const PAGE_BYTES: u64 = PAGE_SIZE as u64;

pub(crate) fn texts(input: &[u8]) {
    let text = text(input);
    let ranges = bench::private_writable(&text);
    assert!(ranges.len() <= text.lines().count());
    let (mounts, membership) = text.split_once("\n\n").unwrap_or((&text, "0::/\n"));
    for (top, chain) in parsers::control_groups(mounts, membership) {
        assert!(chain.iter().all(|group| group.starts_with(&top)));
    }
    for minor in 0..4 {
        let device = rustix::fs::makedev(254, minor);
        let found = holders::mount_point_of(device, input);
        assert!(found.is_none_or(|point| !point.as_os_str().is_empty()));
    }
    if let Some((_, name)) = parsers::process_status(&text) {
        assert!(!name.contains(char::is_control));
    }
    let _running: Option<u32> = load::parse(input);
    let lines = input.split(|byte| *byte == b'\n');
    let pinners = lines.filter(|line| pinners::is_pinner(line)).count();
    assert!(pinners <= input.len() / "a b c d e /dev/".len());
}

/// An empty line ends the `maps` file. The rest is the page map: reads return its bytes in order.
pub(crate) fn page_map(input: &[u8]) {
    let end = input.windows(2).position(|two| two == b"\n\n").unwrap_or(input.len());
    let ranges = bench::private_writable(&text(&input[..end]));
    let mut map = input.get(end + 2..).unwrap_or_default();
    let read_at = |into: &mut [u8], position: u64| {
        assert!(position.is_multiple_of(8));
        let got = map.len().min(into.len());
        let (now, later) = map.split_at(got);
        into[..got].copy_from_slice(now);
        map = later;
        Ok::<_, io::Error>(got)
    };
    let entries = (input.len() / 8) as u64;
    let runs = bench::resident(read_at, &ranges).unwrap();
    let pages: u64 = runs.iter().map(|(_, pages)| pages).sum();
    assert!(pages <= entries, "more pages than the page map has entries");
    for (address, pages) in runs {
        let last = address + (pages - 1) * PAGE_BYTES;
        let is_within = |range: &std::ops::Range<u64>| range.contains(&last);
        assert!(ranges.iter().any(is_within), "{address:x} is in no mapping");
    }
}
