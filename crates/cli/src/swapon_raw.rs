//! Raw swap files, whose blocks softswap accesses through the device.

use rustix::rand::{GetRandomFlags, getrandom};
use serde::Serialize;
use softswap_engine::store::swap::Activated;
use softswap_engine::store::swap::raw::{RawFile, RawRefusal, claim};
use softswap_sys::file::{SwapFile, errno};
use softswap_sys::raw_device::{RawError, check_file_system, open_below};
use softswap_sys::raw_mark::RawMark;
use softswap_sys::{PAGE_SIZE, Page};
use softswap_view::units;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

const PAGE_BYTES: u64 = PAGE_SIZE as u64;
/// Number of pages read and written through the file and through the device.
const TRIES: usize = 512;

/// The block map is verified. Must be dropped after the claimed file: the mark may be removed only
/// when no process holds the claim.
#[derive(Debug)]
pub(crate) struct Raw {
    pub(crate) file: RawFile,
    pub(crate) mark: RawMark,
}

impl Raw {
    /// Claims and marks a file, and verifies its block map.
    ///
    /// # Errors
    /// If writing the file's blocks through the device is unsafe or impossible.
    pub(crate) fn prove(path: &Path) -> Result<(Activated, Raw), RawRefusal> {
        let (area, file) = claim(path)?;
        let mark = RawMark::set(area.file.as_fd())
            .map_err(|cause| RawRefusal::Io { path: path.to_owned(), cause })?;
        match file.prove(&area, &mark) {
            Ok(()) => Ok((area, Raw { file, mark })),
            Err(refused) => {
                // A mark that cannot be removed here is removed by the next check.
                let _ = mark.remove();
                Err(refused)
            }
        }
    }

    /// Warns if a defragmenter can move the file's blocks.
    pub(crate) fn warning(&self) -> Option<&'static str> {
        (!self.mark.is_immutable()).then_some(
            "the file cannot be made immutable (by this user, or on this file system), so a \
             defragmenter may move its blocks; softswap then stops using it",
        )
    }
}

/// Times are medians for one page.
#[derive(Debug, Serialize)]
pub(crate) struct RawFacts {
    file_system: &'static str,
    device: String,
    extents: usize,
    smallest_bytes: u64,
    median_bytes: u64,
    largest_bytes: u64,
    /// Number of places where consecutive pages are not adjacent on the device.
    breaks_per_1000_pages: f64,
    immutable: bool,
    file_read_us: f64,
    device_read_us: f64,
    file_write_us: f64,
    device_write_us: f64,
}

impl RawFacts {
    /// The file is verified. Overwrites pages of the area.
    pub(crate) fn of(raw: &Raw, area: &Activated) -> io::Result<RawFacts> {
        let file = &raw.file;
        let mut sizes: Vec<u64> = file.map.iter().map(|extent| extent.pages * PAGE_BYTES).collect();
        sizes.sort_unstable();
        let at = |index: usize| sizes.get(index).copied().unwrap_or(0);
        let places = places(raw, area)?;
        let storages = [&area.file, &file.device];
        let mut page = Box::new(Page([0; PAGE_SIZE]));
        let [file_read_us, device_read_us] = medians_us(&places, |way, number| {
            storages[way].read_at(&mut page.0, number * PAGE_BYTES)
        })?;
        page.0.fill(0x5a);
        let write = |way: usize| {
            let times = places
                .iter()
                .map(|place| time_of(|| storages[way].write_at(&page.0, place[way] * PAGE_BYTES)));
            times.collect::<io::Result<Vec<_>>>().map(median_us)
        };
        let file_write_us = raw.mark.lifted(|| write(0))??;
        // The blocks may have moved while the file was not immutable.
        let checked = file.check_not_open(area).and_then(|()| file.check_unchanged(area));
        checked.map_err(io::Error::other)?;
        let device_write_us = write(1)?;
        let breaks = sizes.len().saturating_sub(1) as f64;
        let (major, minor) = number_of(&area.file);
        Ok(RawFacts {
            file_system: file.file_system,
            device: format!("{major}:{minor}"),
            extents: sizes.len(),
            smallest_bytes: at(0),
            median_bytes: at(sizes.len() / 2),
            largest_bytes: at(sizes.len().saturating_sub(1)),
            breaks_per_1000_pages: breaks * 1000.0 / area.header.pages() as f64,
            immutable: raw.mark.is_immutable(),
            file_read_us,
            device_read_us,
            file_write_us,
            device_write_us,
        })
    }

    pub(crate) fn lines(&self) -> [(&'static str, String); 5] {
        let gain = |file: f64, device: f64| {
            let times = if device > 0.0 { file / device } else { 1.0 };
            format!("{file:.1} us through the file, {device:.1} us raw ({times:.2} times as fast)")
        };
        let sizes = format!(
            "{}, {} to {}, median {}",
            extents(self.extents),
            units::bytes(self.smallest_bytes),
            units::bytes(self.largest_bytes),
            units::bytes(self.median_bytes)
        );
        let verified = format!("every extent, on device {} ({})", self.device, self.file_system);
        [
            ("verified", verified),
            ("raw extents", sizes),
            ("fragments", format!("{:.2} breaks in 1000 pages", self.breaks_per_1000_pages)),
            ("page read", gain(self.file_read_us, self.device_read_us)),
            ("page write", gain(self.file_write_us, self.device_write_us)),
        ]
    }
}

pub(crate) fn extents(number: usize) -> String {
    format!("{} {}", units::count(number as u64), if number == 1 { "extent" } else { "extents" })
}

fn number_of(file: &SwapFile) -> (u32, u32) {
    let (device, _) = file.identity();
    (rustix::fs::major(device), rustix::fs::minor(device))
}

/// Returns random pages that may be written, each with its block.
fn places(raw: &Raw, area: &Activated) -> io::Result<Vec<[u64; 2]>> {
    let mut bytes = [0_u8; 8 * TRIES];
    // getrandom fills requests of up to 256 bytes completely.
    for part in bytes.chunks_mut(256) {
        getrandom(part, GetRandomFlags::empty())?;
    }
    let (words, _) = bytes.as_chunks();
    let place = |word: &[u8; 8]| {
        let page = 1 + u64::from_le_bytes(*word) % (area.header.pages() - 1);
        let is_bad = area.header.bad_pages.iter().any(|bad| u64::from(*bad) == page);
        let at = raw.file.map.partition_point(|extent| extent.page + extent.pages <= page);
        let extent = raw.file.map.get(at).filter(|_| !is_bad)?;
        Some([page, extent.block + (page - extent.page)])
    };
    Ok(words.iter().filter_map(place).collect())
}

/// Alternates between the file (way 0) and the device (way 1). Returns each way's median.
fn medians_us(
    places: &[[u64; 2]],
    mut transfer: impl FnMut(usize, u64) -> io::Result<usize>,
) -> io::Result<[f64; 2]> {
    let mut times = [const { Vec::new() }; 2];
    for (turn, place) in places.iter().enumerate() {
        for way in [turn % 2, 1 - turn % 2] {
            times[way].push(time_of(|| transfer(way, place[way]))?);
        }
    }
    Ok(times.map(median_us))
}

fn time_of(transfer: impl FnOnce() -> io::Result<usize>) -> io::Result<Duration> {
    let start = Instant::now();
    match transfer()? {
        PAGE_SIZE => Ok(start.elapsed()),
        _ => Err(io::Error::from_raw_os_error(errno::EIO)),
    }
}

fn median_us(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times.get(times.len() / 2).map_or(0.0, |time| time.as_nanos() as f64 / 1000.0)
}

/// Checks that a file can be a raw area once formatted.
///
/// # Errors
/// If the file system or device does not support raw access.
pub(crate) fn check_below(file: &SwapFile) -> Result<(), RawError> {
    check_file_system(file)?;
    open_below(file).map(drop)
}

/// Calls `act` with zeroes, aligned for direct I/O, and the offset of each part of a file. `act`
/// returns the number of bytes that it has transferred; 0 is an error.
fn each_part(
    bytes: u64,
    mut act: impl FnMut(&mut [u8], u64) -> io::Result<usize>,
) -> io::Result<()> {
    const CHUNK_BYTES: usize = 1 << 20;
    let mut zeroes = vec![0_u8; CHUNK_BYTES + PAGE_SIZE];
    let start = zeroes.as_ptr().align_offset(PAGE_SIZE);
    let chunk = &mut zeroes[start..][..CHUNK_BYTES];
    let mut done = 0;
    while done < bytes {
        let part = usize::try_from(bytes - done).unwrap_or(usize::MAX).min(chunk.len());
        match act(&mut chunk[..part], done)? {
            0 => return Err(io::Error::from_raw_os_error(errno::EIO)),
            count => done += count as u64,
        }
    }
    Ok(())
}

/// After this the file has no unwritten extents.
pub(crate) fn fill(file: &SwapFile, bytes: u64) -> io::Result<()> {
    each_part(bytes, |part, at| file.write_at(part, at))?;
    file.sync()
}

pub(crate) fn has_data(file: &SwapFile, bytes: u64) -> io::Result<bool> {
    let mut is_zero = true;
    each_part(bytes, |part, at| match is_zero {
        true => {
            let count = file.read_at(part, at)?;
            is_zero = part.iter().all(|byte| *byte == 0);
            Ok(count)
        }
        false => Ok(part.len()),
    })?;
    Ok(!is_zero)
}
