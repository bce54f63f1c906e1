//! Pages of real memory: sources, same-filled checks, and compression.

pub(crate) mod file;
pub(crate) mod process;
pub(crate) mod checks;
pub(crate) mod packing;

use clap::ValueEnum;
use rustix::io::{Errno, preadv};
use softswap_cli::refusal::{FAILED, Refusal, plain};
use softswap_sys::PAGE_SIZE;
use std::fs::File;
use std::io::IoSliceMut;

/// Aligned as in the engine, so that checks read the same cache lines.
#[derive(Debug, Clone)]
#[repr(C, align(4096))]
pub(crate) struct Page(pub(crate) [u8; PAGE_SIZE]);

impl Page {
    pub(crate) const ZERO: Page = Page([0; PAGE_SIZE]);
}

/// 64 MiB, larger than most caches.
pub(crate) const CHUNK_PAGES: usize = 16_384;
/// Below the kernel's limit of 1024 buffers per call.
const READ_PAGES: usize = 512;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) position: u64,
    pub(crate) pages: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SourceKind {
    Process,
    Core,
    Dump,
}

pub(crate) struct Source {
    pub(crate) kind: SourceKind,
    pub(crate) name: String,
    pub(super) file: File,
    pub(super) runs: Vec<Run>,
    pub(crate) notes: Vec<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) read: u64,
    /// Freed since the runs were listed.
    pub(crate) lost: u64,
}

impl Source {
    pub(crate) fn pages(&self) -> u64 {
        self.runs.iter().map(|run| run.pages).sum()
    }

    /// Reads evenly spaced pages, or all if there are fewer, in chunks of at most [`CHUNK_PAGES`].
    pub(crate) fn read(
        &self,
        wanted: u64,
        mut each: impl FnMut(&[Page]) -> Result<(), Refusal>,
    ) -> Result<Count, Refusal> {
        let wanted = wanted.min(self.pages());
        let mut buffer = vec![Page::ZERO; wanted.min(CHUNK_PAGES as u64) as usize];
        let mut count = Count::default();
        let mut filled = 0;
        for mut run in picks(&self.runs, wanted) {
            while run.pages > 0 {
                let room = (buffer.len() - filled).min(READ_PAGES).min(run.pages as usize);
                let got =
                    self.read_some(run.position, &mut buffer[filled..filled + room], count)?;
                let passed = got.max(1) as u64;
                count.read += got as u64;
                count.lost += passed - got as u64;
                filled += got;
                run.position += passed * PAGE_SIZE as u64;
                run.pages -= passed;
                if filled == buffer.len() {
                    each(&buffer)?;
                    filled = 0;
                }
            }
        }
        if filled > 0 {
            each(&buffer[..filled])?;
        }
        match count.read {
            0 => Err(self.refuse("none of its pages could be read; try again")),
            _ => Ok(count),
        }
    }

    /// Reads whole pages. Returns 0 if the first one has been freed.
    fn read_some(
        &self,
        position: u64,
        pages: &mut [Page],
        so_far: Count,
    ) -> Result<usize, Refusal> {
        let mut slices: Vec<_> =
            pages.iter_mut().map(|page| IoSliceMut::new(&mut page.0)).collect();
        let got = loop {
            match preadv(&self.file, &mut slices, position) {
                Err(Errno::INTR) => {}
                result => break result,
            }
        };
        let is_process = self.kind == SourceKind::Process;
        match got {
            // The memory file of an exited process is empty.
            Ok(0) if is_process => Err(self.refuse(&format!(
                "exited, or became another program, after {} of its pages were read; choose one \
                 that runs longer, or save a core file first (`gcore`)",
                so_far.read
            ))),
            Ok(bytes) if bytes < PAGE_SIZE && !is_process => {
                Err(self.refuse("became shorter while it was read; try again when it is complete"))
            }
            Ok(bytes) => Ok(bytes / PAGE_SIZE),
            // Unmapped since, or not readable (device memory, guard page).
            Err(Errno::IO | Errno::FAULT) if is_process => Ok(0),
            Err(error) => Err(self.refuse(&format!("cannot be read: {}", plain(&error)))),
        }
    }

    pub(super) fn refuse(&self, why: &str) -> Refusal {
        Refusal::new(FAILED, format!("{}: {why}", self.name))
    }
}

fn picks(runs: &[Run], wanted: u64) -> Box<dyn Iterator<Item = Run> + '_> {
    let all: u64 = runs.iter().map(|run| run.pages).sum();
    if wanted >= all {
        return Box::new(runs.iter().copied());
    }
    let mut runs = runs.iter();
    let mut current = Run { position: 0, pages: 0 };
    let mut before = 0;
    Box::new((0..wanted).filter_map(move |number| {
        let index = (u128::from(number) * u128::from(all) / u128::from(wanted)) as u64;
        while index >= before + current.pages {
            before += current.pages;
            current = *runs.next()?;
        }
        Some(Run { position: current.position + (index - before) * PAGE_SIZE as u64, pages: 1 })
    }))
}
