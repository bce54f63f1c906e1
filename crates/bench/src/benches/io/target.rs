//! The target of reads: an existing file or device, or a file created by the benchmark.
//!
//! Existing files and devices are never written.

use crate::measure::machine::{Machine, block_device};
use crate::measure::noise::fill_with_noise;
use softswap_cli::refusal::{OrRefuse, Refusal, plain};
use softswap_cli::{swapdir, units};
use softswap_engine::store::io::{Device, FileDevice, Lane};
use softswap_sys::PAGE_SIZE;
use softswap_sys::file::SwapFile;
use softswap_sys::memory::reserve_bytes;
use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

const OWN_FILE_BYTES: u64 = 1 << 30;
/// Minimum size. With less, reads would repeat few offsets.
const MIN_BYTES: u64 = 1 << 20;
/// Size of a write when the file is filled.
const FILL_BYTES: usize = 1 << 20;
const SECTOR_BYTES: u64 = 512;

pub(super) struct Target {
    pub(super) device: FileDevice,
    /// Number of bytes that are read, from the start.
    pub(super) bytes: u64,
    pub(super) name: String,
    pub(super) machine: Machine,
    /// Path through which another process of this user can open the unnamed file.
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

/// Opens `path`, or creates a file in `swap`.
pub(super) fn open(path: Option<&Path>, size: Option<u64>, swap: &Path) -> Result<Target, Refusal> {
    path.map_or_else(|| own_file(size, swap), |path| existing(path, size))
}

fn own_file(size: Option<u64>, swap: &Path) -> Result<Target, Refusal> {
    let bytes = whole_pages(size.unwrap_or(OWN_FILE_BYTES), "--size")?;
    let dir = swapdir::check("--swap", swap, bytes)?;
    let file = SwapFile::open(&dir.path).map_err(|error| Refusal::usage(error.to_string()))?;
    let name = format!("an unnamed file of {} in {}", units::bytes(bytes), dir.path.display());
    let target = Target::new(file, bytes, name, Machine::with_dir(&dir));
    // Write the whole file: reads of unwritten preallocated storage do not access the device.
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
