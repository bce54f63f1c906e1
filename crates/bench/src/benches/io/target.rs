//! What is read: a file or device that exists, or a file of the bench's own.
//!
//! Nothing that exists is ever written to.

use crate::measure::machine::Machine;
use crate::measure::noise::fill_with_noise;
use rustix::fs::{Access, access};
use softswap_cli::refusal::{Refusal, plain};
use softswap_cli::{swapdir, units};
use softswap_engine::store::io::{Device, FileDevice, Lane};
use softswap_sys::PAGE_SIZE;
use softswap_sys::file::SwapFile;
use softswap_sys::memory::reserve_bytes;
use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The bench's own file, when no size is asked for.
const OWN_FILE_BYTES: u64 = 1 << 30;
/// Below this, reads would hit the same few places again and again.
pub(super) const LEAST_BYTES: u64 = 1 << 20;
/// What is written at once while the file is filled.
const FILL_BYTES: usize = 1 << 20;
const SECTOR_BYTES: u64 = 512;

/// Something to measure.
pub(super) struct Target {
    pub(super) device: FileDevice,
    /// Bytes from the start on that are read.
    pub(super) bytes: u64,
    /// For people.
    pub(super) name: String,
    pub(super) machine: Machine,
    /// By which another process of this user can open the same file, although
    /// it may have no name.
    pub(super) path_for_others: PathBuf,
    pub(super) notes: Vec<String>,
}

/// Opens `path`, or a file of the bench's own in `swap`.
pub(super) fn open(path: Option<&Path>, size: Option<u64>, swap: &Path) -> Result<Target, Refusal> {
    path.map_or_else(|| own_file(size, swap), |path| existing(path, size))
}

fn own_file(size: Option<u64>, swap: &Path) -> Result<Target, Refusal> {
    let bytes = whole_pages(size.unwrap_or(OWN_FILE_BYTES));
    if bytes < LEAST_BYTES {
        return Err(too_small(&format!("--size {}", units::bytes(bytes))));
    }
    let dir = swapdir::check("--swap", swap, bytes)?;
    let file = SwapFile::open(&dir.path).map_err(|error| Refusal::usage(error.to_string()))?;
    let target = Target {
        bytes,
        name: format!("an unnamed file of {} in {}", units::bytes(bytes), dir.path.display()),
        machine: Machine::with_device(&dir.path, dir.file_system),
        path_for_others: path_for_others(&file),
        device: FileDevice::new(file, false),
        notes: Vec::new(),
    };
    let failed = |error: String| Refusal::own(format!("the file could not be filled: {error}"));
    fill(&target).map_err(failed)?;
    // What the file system still has to write would be measured, too.
    let synced = File::open(&target.path_for_others).and_then(|file| file.sync_all());
    synced.map_err(|error| failed(plain(&error)))?;
    Ok(target)
}

/// Writes all of the file: storage that was only claimed reads as zeroes
/// without the device being asked.
fn fill(target: &Target) -> Result<(), String> {
    let buffer = reserve_bytes(FILL_BYTES).map_err(|error| plain(&error))?;
    let lane = &mut Lane::Plain;
    let mut offset = 0;
    while offset < target.bytes {
        let (pages, _) = buffer.as_chunks_mut::<PAGE_SIZE>();
        for (page, at) in pages.iter_mut().zip(offset / PAGE_SIZE as u64..) {
            fill_with_noise(page, at);
        }
        let len = (target.bytes - offset).min(FILL_BYTES as u64);
        target.device.write(lane, offset, &buffer[..len as usize]).map_err(|e| e.to_string())?;
        offset += len;
    }
    Ok(())
}

/// Whether it can be measured at all, as far as can be told without opening it.
fn check(path: &Path) -> Result<fs::Metadata, Refusal> {
    let shown = path.display();
    let refuse = |why: String| Refusal::usage(format!("{shown}: {why}"));
    let meta = fs::metadata(path).map_err(|error| {
        refuse(format!(
            "cannot be measured: {}; name a file or a block device, or none for a file of the \
             bench's own",
            plain(&error)
        ))
    })?;
    if !meta.file_type().is_block_device() && !meta.is_file() {
        return Err(refuse(if meta.is_dir() {
            format!("is a directory; for a file of the bench's own in it give --swap {shown}")
        } else {
            "is neither a file nor a block device; name one of these".into()
        }));
    }
    access(path, Access::READ_OK).map_err(|error| {
        refuse(format!(
            "is not readable for this user ({}); change its permissions, or name another",
            plain(&error.into())
        ))
    })?;
    Ok(meta)
}

fn existing(path: &Path, size: Option<u64>) -> Result<Target, Refusal> {
    let shown = path.display();
    let refuse = |why: String| Refusal::usage(format!("{shown}: {why}"));
    let meta = check(path)?;
    let is_device = meta.file_type().is_block_device();
    let file = SwapFile::open_existing(path)
        .map_err(|error| refuse(format!("cannot be opened: {error}")))?;
    let len = file.len_bytes().map_err(|error| refuse(plain(&error)))?;
    let bytes = whole_pages(size.map_or(len, |size| size.min(len)));
    if bytes < LEAST_BYTES {
        return Err(too_small(&format!("{shown} ({})", units::bytes(bytes))));
    }
    let mut notes = Vec::new();
    if !is_device && meta.blocks() * SECTOR_BYTES < len / 10 * 9 {
        notes.push(format!(
            "only {} of the file are stored; its holes are read without the device",
            units::bytes(meta.blocks() * SECTOR_BYTES)
        ));
    }
    Ok(Target {
        bytes,
        name: format!("{} of {shown}", units::bytes(bytes)),
        machine: if is_device {
            Machine::with_bare_device(path)
        } else {
            Machine::with_device(path, swapdir::file_system_of(path))
        },
        path_for_others: path_for_others(&file),
        device: FileDevice::new(file, false),
        notes,
    })
}

fn path_for_others(file: &SwapFile) -> PathBuf {
    format!("/proc/{}/fd/{}", std::process::id(), file.as_fd().as_raw_fd()).into()
}

fn whole_pages(bytes: u64) -> u64 {
    bytes / PAGE_SIZE as u64 * PAGE_SIZE as u64
}

fn too_small(what: &str) -> Refusal {
    Refusal::usage(format!(
        "{what}: too small to be measured; at least {} are needed",
        units::bytes(LEAST_BYTES)
    ))
}
