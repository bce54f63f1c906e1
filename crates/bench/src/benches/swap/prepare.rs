//! What all runs need, made before the first one.

use super::limits::Limits;
use super::page_content::SAMPLE_PAGES;
use super::pattern_run::RunContext;
use super::plan::Side;
use super::programs::{Program, Ready};
use super::testbed::Testbed;
use crate::benches::pool::page_kinds as real;
use indicatif::{ProgressBar, ProgressStyle};
use softswap_cli::refusal::{Refusal, plain};
use softswap_cli::{memory_limits, units};
use softswap_engine::door::settings::{Config, MIN_MEMORY_BYTES};
use softswap_sys::child::SignalQueue;
use softswap_sys::memory::Page;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Of so many real pages the sample is taken.
const SAMPLE_OF_PAGES: usize = 4096;

/// Refuses a size of which some share is too little for the engine, or that is more than
/// there is.
pub(super) fn check_size(name: &str, bytes: u64, shares: &[u32]) -> Result<(), Refusal> {
    let smallest = shares.iter().copied().min().unwrap_or(100);
    if Limits::first(bytes * u64::from(smallest) / 100).memory_bytes < MIN_MEMORY_BYTES {
        return Err(Refusal::usage(format!(
            "{name} {}: too little: within {smallest} % of it the engine needs at least {}; \
             ask for 64M or more",
            units::bytes(bytes),
            units::bytes(MIN_MEMORY_BYTES)
        )));
    }
    // The kernel's packed pages, and the program as it is, take DRAM too.
    let (available_bytes, needed_bytes) =
        (memory_limits::available().bytes, bytes.saturating_mul(2));
    if available_bytes < needed_bytes {
        return Err(Refusal::usage(format!(
            "{name} {}: needs {}, but only {} are available; ask for less",
            units::bytes(bytes),
            units::bytes(needed_bytes),
            units::bytes(available_bytes)
        )));
    }
    Ok(())
}

pub(super) fn signals() -> Result<SignalQueue, Refusal> {
    SignalQueue::hold(&[])
        .map_err(|error| Refusal::own(format!("cannot hold signals: {}", plain(&error))))
}

/// Where `sides` run, with areas of so many bytes, and what every run is made with.
pub(super) fn prepare<'s>(
    (under, area_bytes): (&Path, u64),
    sides: &mut Vec<Side>,
    library: PathBuf,
    softswap: Config,
    signals: &'s SignalQueue,
    notes: &mut Vec<String>,
) -> Result<(Testbed, RunContext<'s>), Refusal> {
    let testbed = Testbed::prepare(under, area_bytes, sides, notes)?;
    let sample = testbed.dir.join("sample");
    write_sample(&sample, notes)?;
    // So that the first side to load it does not have to account for it.
    fs::read(&library).map_err(|e| Refusal::own(format!("{}: {e}", library.display())))?;
    Ok((testbed, RunContext { signals, library, sample, softswap, damage: false }))
}

pub(super) fn ready(
    programs: &[Program],
    dir: &Path,
    bytes: u64,
    notes: &mut Vec<String>,
) -> Vec<Ready> {
    let mut all = Vec::new();
    for program in programs {
        match program.make_ready(dir, bytes) {
            Ok(ready) => all.push(ready),
            Err(why) => notes.push(format!("{} was left out: {why}", program.name())),
        }
    }
    all
}

pub(super) fn progress(runs: usize) -> ProgressBar {
    let bar = ProgressBar::new(runs as u64);
    let style = ProgressStyle::with_template("{bar:30} {eta} to go  {msg}");
    style.map_or(bar.clone(), |style| bar.with_style(style))
}

/// Real pages for the task, in a file that it reads.
fn write_sample(path: &Path, notes: &mut Vec<String>) -> Result<(), Refusal> {
    let failed =
        |error: std::io::Error| Refusal::own(format!("{}: {}", path.display(), plain(&error)));
    let pages: Vec<&Page> = match real::of_python(SAMPLE_OF_PAGES) {
        // Spread over all of the process.
        Ok((pages, _)) => pages.iter().step_by(SAMPLE_OF_PAGES / SAMPLE_PAGES).collect(),
        Err(why) => {
            notes.push(format!(
                "compressible data is made up, because there are no real pages: {why}"
            ));
            real::generated(real::PageKind::Pointers, SAMPLE_PAGES)
                .map_err(failed)?
                .iter()
                .collect()
        }
    };
    let mut file = fs::File::create_new(path).map_err(failed)?;
    pages.iter().try_for_each(|page| file.write_all(&page.0)).map_err(failed)
}
