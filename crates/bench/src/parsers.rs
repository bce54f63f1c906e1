//! Parsers of untrusted bytes, for the fuzz targets.

use crate::analyze::extents::summary;
use crate::benches::policy::recorded::Recorded;
use crate::pages::{file, process};
use softswap_sys::fiemap::FileExtent;
use std::io::{self, Cursor};
use std::ops::Range;

pub fn private_writable(maps: &str) -> Vec<Range<u64>> {
    process::private_writable(maps).collect()
}

/// Returns address and page count of each resident run.
///
/// # Errors
/// Returns the errors of `read_at`.
pub fn resident(
    read_at: impl FnMut(&mut [u8], u64) -> io::Result<usize>,
    ranges: &[Range<u64>],
) -> io::Result<Vec<(u64, u64)>> {
    let found = process::resident(read_at, ranges.iter().cloned())?;
    Ok(found.runs.iter().map(|run| (run.position, run.pages)).collect())
}

/// Returns position and page count of the writable memory; `None` for other files.
pub fn core(bytes: &[u8]) -> Option<Result<Vec<(u64, u64)>, String>> {
    let core = file::core(Cursor::new(bytes), bytes.len() as u64)?;
    Some(core.map(|core| core.runs.iter().map(|run| (run.position, run.pages)).collect()))
}

pub fn trace(bytes: &[u8]) -> Option<(u32, Vec<u32>)> {
    let recorded = Recorded::from_bytes(bytes).ok()?;
    Some((recorded.pages, recorded.touches()))
}

pub fn extents(file_bytes: u64, extents: &[FileExtent]) -> (u64, u64) {
    let found = summary(file_bytes, extents);
    let of = |key: &str| found[key].as_u64().unwrap_or_default();
    (of("mapped_bytes"), of("hole_bytes"))
}
