//! Measures softswap's own reads of single pages, with the bookkeeping of a swap-in
//! (`Area::read_page`): announced waits, sampled CPU time, recorded durations. The latency includes
//! it.

use crate::measure::machine::{Machine, block_device};
use crate::measure::noise::{below, fill_with_noise, noise};
use crate::measure::sample::Round;
use crate::measure::task_pipe::process_cpu_seconds;
use softswap_cli::refusal::{OrRefuse, Refusal, plain};
use softswap_cli::{swapdir, units};
use softswap_engine::base::stats::{STATS_WORDS, Stats};
use softswap_engine::store::io::poll::Polling;
use softswap_engine::store::io::poll::mode::Mode;
use softswap_engine::store::io::poll::pressure::Pressure;
use softswap_engine::store::io::{Device, FileDevice, IoError, Lane, MAX_PIECES, Piece};
use softswap_sys::PAGE_SIZE;
use softswap_sys::file::SwapFile;
use softswap_sys::load::Load;
use softswap_sys::memory::{Page, reserve_bytes, reserve_pages, reserve_u64};
use softswap_sys::raw::now_ns;
use softswap_sys::ring::timer_overshoot_ns;
use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

const PAGE_BYTES: u64 = PAGE_SIZE as u64;

#[derive(Debug, Clone, Copy)]
pub(super) struct Slice {
    pub(super) round: Round,
    pub(super) mb_per_s: f64,
    pub(super) cpu_us: f64,
}

pub(super) struct WaitMode {
    pub(super) mode: Mode,
    pub(super) polling: Polling,
    pub(super) stats: Stats,
}

pub(super) struct Meter<'t> {
    pub(super) target: &'t Target,
    lane: Lane,
    pub(super) wait_modes: Vec<WaitMode>,
    pages: &'static mut [Page],
}

impl<'t> Meter<'t> {
    pub(super) fn new(target: &'t Target) -> Result<Meter<'t>, Refusal> {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let overshoot_ns = timer_overshoot_ns();
        let way = |mode| -> Result<WaitMode, Refusal> {
            let stats =
                Stats::new(reserve_u64(STATS_WORDS).or_own("the counters cannot be allocated")?);
            let pressure = Pressure::new(cpus, Load::open()).into();
            let polling = Polling::new(mode, cpus, pressure, overshoot_ns, stats);
            Ok(WaitMode { mode, polling, stats })
        };
        Ok(Meter {
            target,
            lane: target.device.open_lane(),
            wait_modes: Mode::ALL.into_iter().map(way).collect::<Result<_, _>>()?,
            pages: reserve_pages(MAX_PIECES).or_own("the read buffers cannot be allocated")?,
        })
    }

    pub(super) fn read(&mut self, mode: Mode, time: Duration, seed: u64) -> Result<Slice, Refusal> {
        let Meter { target, lane, wait_modes, pages } = self;
        let polling = &wait_modes[mode as usize].polling;
        let mut offsets = offsets(target.bytes, seed);
        let page = &mut pages[0].0;
        timed(time, 1, || {
            let offset = offsets();
            let start = now_ns();
            polling.waited(PAGE_SIZE, || target.device.read_page(lane, offset, page, polling))?;
            Ok(now_ns() - start)
        })
    }

    /// Reads without bookkeeping: the lower bound of interrupt-driven reads in this process.
    pub(super) fn pread(&mut self, time: Duration, seed: u64) -> Result<Slice, Refusal> {
        let Meter { target, pages, .. } = self;
        let mut offsets = offsets(target.bytes, seed);
        let page = &mut pages[0].0;
        timed(time, 1, || {
            let offset = offsets();
            let start = now_ns();
            target.device.read(&mut Lane::Plain, offset, page)?;
            Ok(now_ns() - start)
        })
    }

    /// Reads `depth` pages concurrently, like swap-in of scattered slots, by interrupt.
    pub(super) fn read_many(
        &mut self,
        depth: usize,
        time: Duration,
        seed: u64,
    ) -> Result<Slice, Refusal> {
        let Meter { target, lane, pages, .. } = self;
        let mut offsets = offsets(target.bytes, seed);
        timed(time, depth, || {
            let mut pieces: Vec<_> = pages[..depth]
                .iter_mut()
                .map(|page| Piece { offset: offsets(), buf: &mut page.0[..] })
                .collect();
            let start = now_ns();
            target.device.read_pieces(lane, &mut pieces, None)?;
            Ok(now_ns() - start)
        })
    }
}

fn offsets(bytes: u64, seed: u64) -> impl FnMut() -> u64 {
    let mut numbers = noise(seed);
    let pages = bytes / PAGE_BYTES;
    move || below(numbers.next().unwrap_or(0), pages) * PAGE_BYTES
}

/// `call` performs `depth` I/Os and returns their duration in ns.
fn timed(
    time: Duration,
    depth: usize,
    mut call: impl FnMut() -> Result<u64, IoError>,
) -> Result<Slice, Refusal> {
    let time_ns = time.as_nanos() as u64;
    let mut latencies_ns = Vec::with_capacity(1 << 16);
    let (start, cpu_start) = (now_ns(), process_cpu_seconds());
    let elapsed_ns = loop {
        latencies_ns.push(call().map_err(Refusal::own)?);
        let elapsed = now_ns() - start;
        if elapsed >= time_ns {
            break elapsed;
        }
    };
    let cpu_seconds = process_cpu_seconds() - cpu_start;
    let mut round = Round::of(&mut latencies_ns);
    round.count *= depth;
    let count = round.count as f64;
    Ok(Slice {
        round,
        mb_per_s: count * PAGE_SIZE as f64 / elapsed_ns as f64 * 1000.0,
        cpu_us: cpu_seconds * 1e6 / count,
    })
}

const OWN_FILE_BYTES: u64 = 1 << 30;
/// With less, reads would repeat few offsets.
const MIN_BYTES: u64 = 1 << 20;
const FILL_BYTES: usize = 1 << 20;
const SECTOR_BYTES: u64 = 512;

pub(super) struct Target {
    pub(super) device: FileDevice,
    pub(super) bytes: u64,
    pub(super) name: String,
    pub(super) machine: Machine,
    /// Another process of this user can open the unnamed file through it.
    pub(super) path_for_other_processes: PathBuf,
    pub(super) notes: Vec<String>,
}

impl Target {
    fn new(file: SwapFile, bytes: u64, name: String, machine: Machine) -> Target {
        let descriptor = file.as_fd().as_raw_fd();
        let path_for_other_processes =
            format!("/proc/{}/fd/{descriptor}", std::process::id()).into();
        let device = FileDevice::new(file, false);
        Target { device, bytes, name, machine, path_for_other_processes, notes: Vec::new() }
    }
}

pub(super) fn open(path: Option<&Path>, size: Option<u64>, swap: &Path) -> Result<Target, Refusal> {
    path.map_or_else(|| own_file(size, swap), |path| existing(path, size))
}

fn own_file(size: Option<u64>, swap: &Path) -> Result<Target, Refusal> {
    let bytes = whole_pages(size.unwrap_or(OWN_FILE_BYTES), "--size")?;
    let dir = swapdir::check("--swap", swap, bytes)?;
    let file = SwapFile::open(&dir.path).map_err(|error| Refusal::usage(error.to_string()))?;
    let name = format!("an unnamed file of {} in {}", units::bytes(bytes), dir.path.display());
    let target = Target::new(file, bytes, name, Machine::with_dir(&dir));
    // Reads of unwritten preallocated storage would not access the device.
    let buffer =
        reserve_bytes(FILL_BYTES).or_own("the buffer for filling the file cannot be allocated")?;
    for offset in (0..bytes).step_by(FILL_BYTES) {
        let (pages, _) = buffer.as_chunks_mut::<PAGE_SIZE>();
        for (page, at) in pages.iter_mut().zip(offset / PAGE_SIZE as u64..) {
            fill_with_noise(page, at);
        }
        let len = (bytes - offset).min(FILL_BYTES as u64) as usize;
        target.device.write(&mut Lane::Plain, offset, &buffer[..len]).map_err(Refusal::own)?;
    }
    // Deferred writes of the file system would disturb the reads.
    let synced = File::open(&target.path_for_other_processes).and_then(|file| file.sync_all());
    synced.or_own("the file could not be filled")?;
    Ok(target)
}

/// Opens an existing file or device, which is never written.
fn existing(path: &Path, size: Option<u64>) -> Result<Target, Refusal> {
    let shown = path.display();
    let refuse = |why: String| Refusal::usage(format!("{shown}: {why}"));
    let meta = fs::metadata(path).map_err(|error| {
        let remedy = "choose a file or a block device, or leave the path out for a temporary file";
        refuse(format!("cannot be measured: {}; {remedy}", plain(&error)))
    })?;
    let is_device = meta.file_type().is_block_device();
    if meta.is_dir() {
        let remedy = format!("use `--swap {shown}` to measure a temporary file in it");
        return Err(refuse(format!("is a directory; {remedy}")));
    }
    if !is_device && !meta.is_file() {
        return Err(refuse("is neither a file nor a block device; choose one of these".into()));
    }
    let file = SwapFile::open_existing(path)
        .map_err(|error| refuse(format!("cannot be opened: {error}")))?;
    let len = file.len_bytes().or_usage(&shown)?;
    let bytes = whole_pages(size.map_or(len, |size| size.min(len)), &shown.to_string())?;
    let machine = match block_device(path).filter(|_| is_device) {
        Some(name) => Machine::with(name),
        None => Machine::with_file_system(path, swapdir::file_system_of(path)),
    };
    let name = format!("{} of {shown}", units::bytes(bytes));
    let mut target = Target::new(file, bytes, name, machine);
    let stored = meta.blocks() * SECTOR_BYTES;
    if !is_device && stored < len / 10 * 9 {
        target.notes.push(format!(
            "only {} of the file are stored; reads of its holes do not access the device",
            units::bytes(stored)
        ));
    }
    Ok(target)
}

fn whole_pages(bytes: u64, of: &str) -> Result<u64, Refusal> {
    let bytes = bytes / PAGE_SIZE as u64 * PAGE_SIZE as u64;
    match bytes < MIN_BYTES {
        true => Err(Refusal::usage(format!(
            "{of} ({}): too small to be measured; at least {} are needed",
            units::bytes(bytes),
            units::bytes(MIN_BYTES)
        ))),
        false => Ok(bytes),
    }
}
