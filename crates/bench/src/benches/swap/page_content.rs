//! Content of the task's pages.

use super::plan::Data;
use crate::measure::noise::noise;
use crate::measure::region::{Content, Noise, WORDS};
use softswap_cli::refusal::{OrRefuse, plain};
use softswap_engine::codec::same_filled::same_filled_word;
use softswap_engine::codec::{Compressor, MAX_COMPRESSED_BYTES, Scratch, compress};
use softswap_sys::PAGE_SIZE;
use softswap_sys::memory::{Page, reserve_pages};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

/// Number of real pages from which content is derived. It is small, because the task stores them in
/// unmanaged memory.
const SAMPLE_PAGES: usize = 256;

/// Generates the content of each page from its number.
pub(super) struct Contents {
    data: Data,
    sample: &'static [Page],
}

impl Contents {
    /// Reads the pages of `sample` into unmanaged memory.
    pub(super) fn load(data: Data, sample: Option<&Path>) -> Result<Contents, String> {
        let Some(sample) = sample else { return Ok(Contents { data, sample: &[] }) };
        let read = || {
            let (pages, mut file) = (reserve_pages(SAMPLE_PAGES)?, File::open(sample)?);
            pages.iter_mut().try_for_each(|page| file.read_exact(&mut page.0))?;
            Ok(&*pages)
        };
        Ok(Contents { data, sample: read().or_text(sample.display())? })
    }

    fn is_real(&self, page: usize) -> bool {
        match self.data {
            Data::Compressible => true,
            Data::Incompressible => false,
            Data::Mixed => number_of(page) >> 63 == 0,
        }
    }
}

impl Content for Contents {
    fn fill(&self, page: usize, words: &mut [u64; WORDS]) {
        if !self.is_real(page) {
            return Noise.fill(page, words);
        }
        let (from, _) = self.sample[page % self.sample.len()].0.as_chunks::<8>();
        words.iter_mut().zip(from).for_each(|(word, bytes)| *word = u64::from_ne_bytes(*bytes));
        // Make each page differ from all others and from the sample.
        words[page % WORDS] = number_of(page);
    }
}

/// Python program that creates records and then writes its own memory to standard output.
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
/// Records per sampled page; at least six records fill a page.
const RECORDS_PER_PAGE: usize = 8;
/// Number of pages from which the sample is drawn, distributed over the whole process.
const SAMPLE_OF_PAGES: usize = 4096;

/// Returns pages of a Python process that LZ4 compresses. If Python cannot be run, this
/// executable's pages are used, and a note is added.
pub(super) fn sample(notes: &mut Vec<String>) -> Result<Vec<[u8; PAGE_SIZE]>, String> {
    of_python().or_else(|why| {
        notes.push(format!(
            "the compressible pages are those of this executable, because Python cannot be run: \
             {why}"
        ));
        let program = File::open("/proc/self/exe").map_err(|error| plain(&error))?;
        pages_that_pack(program, SAMPLE_PAGES)
    })
}

fn of_python() -> Result<Vec<[u8; PAGE_SIZE]>, String> {
    let mut child = Command::new("python3")
        // Isolated from the user's settings and modules.
        .args(["-I", "-S", "-c", PYTHON])
        .arg((SAMPLE_OF_PAGES * RECORDS_PER_PAGE).to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .or_text("python3")?;
    let memory = child.stdout.take().ok_or("python3 has no output")?;
    let found = pages_that_pack(memory, SAMPLE_OF_PAGES);
    // The process may still be writing.
    let _ = child.kill();
    let _ = child.wait();
    found
}

/// Reads `count` compressible pages and returns [`SAMPLE_PAGES`] of them, evenly spaced.
fn pages_that_pack(mut memory: impl Read, count: usize) -> Result<Vec<[u8; PAGE_SIZE]>, String> {
    let mut scratch = Scratch::new(Default::default()).map_err(|error| plain(&error))?;
    let (mut room, mut page) = (vec![0; MAX_COMPRESSED_BYTES], [0; PAGE_SIZE]);
    let (mut packed, mut sample) = (0, Vec::new());
    while packed < count {
        if memory.read_exact(&mut page).is_err() {
            return Err(format!("it has only {packed} compressible pages, but {count} are needed"));
        }
        let is_same = same_filled_word(&page).is_some();
        if is_same || compress(Compressor::Lz4, &page, &mut room, &mut scratch).is_none() {
            continue;
        }
        if packed % (count / SAMPLE_PAGES) == 0 {
            sample.push(page);
        }
        packed += 1;
    }
    Ok(sample)
}

fn number_of(page: usize) -> u64 {
    noise(page as u64 | 1 << 62).next().unwrap_or(0)
}
