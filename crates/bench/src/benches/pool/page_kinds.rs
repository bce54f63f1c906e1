//! What the pages hold. All but a Python process's are the same in every run.

use super::stores::Packer;
use crate::measure::noise::{below, fill_with_noise, noise};
use softswap_cli::refusal::plain;
use softswap_sys::PAGE_SIZE;
use softswap_sys::memory::{Page, reserve_pages};
use std::io::{self, Read};
use std::process::{Command, Stdio};

/// A kind of page that the bench makes up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PageKind {
    Pointers,
    Text,
    HalfRandom,
    Counters,
}

pub(super) const KINDS: [PageKind; 4] =
    [PageKind::Pointers, PageKind::Text, PageKind::HalfRandom, PageKind::Counters];

impl PageKind {
    pub(super) fn name(self) -> &'static str {
        match self {
            PageKind::Pointers => "pointers",
            PageKind::Text => "text",
            PageKind::HalfRandom => "half_random",
            PageKind::Counters => "counters",
        }
    }
}

/// `count` pages of a kind, all different.
pub(crate) fn generated(kind: PageKind, count: usize) -> io::Result<&'static mut [Page]> {
    let pages = reserve_pages(count)?;
    for (page, at) in pages.iter_mut().zip(0..) {
        match kind {
            PageKind::Pointers => fill_with_pointers(&mut page.0, at),
            PageKind::Text => fill_with_text(&mut page.0, at),
            PageKind::HalfRandom => fill_with_noise_up_to(&mut page.0, PAGE_SIZE / 2, at),
            PageKind::Counters => fill_with_counters(&mut page.0, at),
        }
    }
    Ok(pages)
}

/// `count` pages whose packed sizes are spread evenly over what the pool takes.
pub(super) fn of_every_size(count: usize) -> io::Result<&'static mut [Page]> {
    /// What a run of zeroes and the ends of a block take beside the noise.
    const MOST_NOISE_BYTES: u64 = 3000;
    let pages = reserve_pages(count)?;
    for ((page, at), number) in pages.iter_mut().zip(0..).zip(noise(7)) {
        fill_with_noise_up_to(&mut page.0, 8 + below(number, MOST_NOISE_BYTES) as usize, at);
    }
    Ok(pages)
}

/// Nodes of 64 bytes: a table of functions, three neighbours within 64 MiB or
/// none, a small number, flags, and two empty fields.
fn fill_with_pointers(page: &mut [u8; PAGE_SIZE], seed: u64) {
    const HEAP: u64 = 0x7f3a_4000_0000;
    const CODE: u64 = 0x55d0_1234_5000;
    let mut numbers = noise(seed);
    let mut next = |count| below(numbers.next().unwrap_or(0), count);
    let (nodes, _) = page.as_chunks_mut::<64>();
    for node in nodes {
        let mut words = [CODE + 64 * next(8), 0, 0, 0, next(1000), next(4), 0, 0];
        for neighbour in &mut words[1..4] {
            *neighbour = if next(4) == 0 { 0 } else { HEAP + 64 * next(1 << 20) };
        }
        let (fields, _) = node.as_chunks_mut::<8>();
        for (field, word) in fields.iter_mut().zip(words) {
            *field = word.to_ne_bytes();
        }
    }
}

/// Words of a vocabulary of 600, the frequent ones short, with blanks, commas
/// and line ends between them.
fn fill_with_text(page: &mut [u8; PAGE_SIZE], seed: u64) {
    const WORDS: u64 = 600;
    const SYLLABLES: [&[u8]; 16] = [
        b"the", b"ing", b"er", b"a", b"o", b"ti", b"re", b"se", b"con", b"ly", b"un", b"pa", b"mi",
        b"de", b"st", b"en",
    ];
    let mut numbers = noise(seed);
    let mut next = |count| below(numbers.next().unwrap_or(0), count);
    let mut text = Vec::with_capacity(PAGE_SIZE + 32);
    while text.len() < PAGE_SIZE {
        // Twice below: small numbers come much more often than large ones.
        let within = 1 + next(WORDS);
        let within = 1 + next(within);
        let word = next(within);
        let syllables = 1 + word.checked_ilog2().unwrap_or(0) as usize / 3;
        for spelling in noise(word).take(syllables) {
            text.extend_from_slice(SYLLABLES[below(spelling, 16) as usize]);
        }
        text.extend_from_slice(match next(16) {
            0 => b", ",
            1 => b".\n",
            _ => b" ",
        });
    }
    page.copy_from_slice(&text[..PAGE_SIZE]);
}

/// Numbers without pattern, then zeroes.
fn fill_with_noise_up_to(page: &mut [u8; PAGE_SIZE], bytes: usize, seed: u64) {
    fill_with_noise(page, seed);
    page[bytes..].fill(0);
}

/// Numbers of eight bytes that go up by small steps.
fn fill_with_counters(page: &mut [u8; PAGE_SIZE], seed: u64) {
    let (words, _) = page.as_chunks_mut::<8>();
    let mut value = seed << 16;
    for (word, number) in words.iter_mut().zip(noise(seed)) {
        value += 1 + below(number, 3);
        *word = value.to_ne_bytes();
    }
}

/// A Python process that makes records and then writes out its own memory.
const PYTHON: &str = r#"
import sys
records = [{"id": i, "name": "record %d" % i, "tags": ["t%d" % (i % 50), "x" * (i % 30)],
            "price": i * 0.25, "next": (i, i + 1)} for i in range(int(sys.argv[1]))]
with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
    for line in maps.readlines():
        span, rights, _, _, inode = line.split()[:5]
        if rights == "rw-p" and inode == "0" and "[stack" not in line:
            first, end = (int(part, 16) for part in span.split("-"))
            for at in range(first, end, 4096):
                memory.seek(at)
                sys.stdout.buffer.write(memory.read(4096))
"#;
/// Six of these and more fill a page.
const RECORDS_PER_PAGE: usize = 8;

/// Pages of a Python process that belong into the pool, and how many of those
/// looked at did not.
pub(crate) fn of_python(count: usize) -> Result<(&'static mut [Page], usize), String> {
    let pages = reserve_pages(count).map_err(|error| plain(&error))?;
    let mut child = Command::new("python3")
        // No settings or modules of the user's.
        .args(["-I", "-S", "-c", PYTHON])
        .arg((count * RECORDS_PER_PAGE).to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("python3: {}", plain(&error)))?;
    let (mut found, mut others) = (0, 0);
    let mut packer = Packer::new();
    if let Some(mut memory) = child.stdout.take() {
        while found < count && memory.read_exact(&mut pages[found].0).is_ok() {
            match packer.pack(&pages[found]) {
                Some(_) => found += 1,
                None => others += 1,
            }
        }
    }
    // It may still be writing, to nobody.
    let _ = child.kill();
    let _ = child.wait();
    if found < count {
        return Err(format!("python3 gave {found} pages of {count} that pack"));
    }
    Ok((pages, others))
}

/// Mean packed size; nothing where a page is not one for the pool.
pub(super) fn mean_packed_bytes(pages: &[Page]) -> Option<f64> {
    let mut packer = Packer::new();
    let mut sum = 0;
    for page in pages {
        sum += packer.pack(page)?.len();
    }
    Some(sum as f64 / pages.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_packs_and_no_two_pages_are_equal() {
        for kind in KINDS {
            let pages = generated(kind, 300).unwrap();
            let mean = mean_packed_bytes(pages).unwrap_or_else(|| panic!("{kind:?} does not pack"));
            assert!((256.0..2800.0).contains(&mean), "{kind:?}: {mean}");
            let mut contents: Vec<_> = pages.iter().map(|page| page.0).collect();
            contents.sort_unstable();
            contents.dedup();
            assert_eq!(contents.len(), 300, "{kind:?}");
        }
    }

    #[test]
    fn the_same_pages_are_made_every_time() {
        for kind in KINDS {
            let (one, other) = (generated(kind, 20).unwrap(), generated(kind, 20).unwrap());
            assert!(one.iter().zip(other.iter()).all(|(one, other)| one.0 == other.0), "{kind:?}");
        }
    }

    #[test]
    fn sizes_are_spread_over_all_that_the_pool_takes() {
        let pages = of_every_size(3000).unwrap();
        let mut packer = Packer::new();
        let mut by_size = [0; 4];
        for page in pages.iter() {
            by_size[packer.pack(page).unwrap().len() / 769] += 1;
        }
        assert!(by_size.iter().all(|count| *count > 500), "{by_size:?}");
    }
}
