//! What reads other people's bytes, open to the fuzz targets and to nobody else.

use crate::analyze::outcome::Summary;
use crate::bench::policy::lackey;
use crate::extents::layout::Layout;
use crate::pages::{file, process};
use crate::run::{areas, program, settings};
use crate::units::{self, Amount};
use crate::{control, machine};
use softswap_engine::door::config::{AreaSpec, PoolLimit};
use softswap_sys::fiemap::FileExtent;
use std::io::{self, Cursor};
use std::ops::Range;
use std::path::PathBuf;

/// A size, in bytes.
pub fn size(text: &str) -> Option<u64> {
    units::parse_size(text).ok()
}

/// A size in bytes, or a share in percent.
pub fn amount(text: &str) -> Option<Result<u64, f64>> {
    match units::parse_amount(text).ok()? {
        Amount::Bytes(bytes) => Some(Ok(bytes)),
        Amount::Percent(percent) => Some(Err(percent)),
    }
}

/// How a size is shown.
pub fn shown_size(bytes: u64) -> String {
    units::bytes(bytes)
}

/// The limit of the pool.
pub fn pool(text: &str) -> Option<PoolLimit> {
    settings::parse_pool(text).ok()
}

/// One swap area with its options.
pub fn area(text: &str) -> Result<AreaSpec, String> {
    areas::parse(text)
}

/// The swap areas in the value of a variable.
pub fn each_area(text: &str) -> impl Iterator<Item = &str> {
    areas::each(text)
}

/// A configuration file: names and values.
///
/// # Errors
/// What is wrong with it.
pub fn settings_file(text: &str) -> Result<Vec<(String, String)>, String> {
    settings::understand(text)
}

/// The mount point and the own group of each hierarchy of control groups, by
/// the texts of `mountinfo` and `cgroup`.
pub fn control_groups(mountinfo: &str, membership: &str) -> Vec<(PathBuf, Vec<PathBuf>)> {
    let found = machine::hierarchies_of(mountinfo, membership);
    found
        .into_iter()
        .map(|found| (found.top.clone(), found.chain().map(Into::into).collect()))
        .collect()
}

/// Number, and name as it is shown, of the process with this `status`.
pub fn process_status(status: &str) -> Option<(u32, String)> {
    control::Process::of_status(status).map(|process| (process.pid, process.name))
}

/// Private writable memory by the text of `maps`.
pub fn private_writable(maps: &str) -> Vec<Range<u64>> {
    process::private_writable(maps).collect()
}

/// Address and pages of each run in DRAM, by a page map whose reader is given.
///
/// # Errors
/// The reader's.
pub fn resident(
    read_at: impl FnMut(&mut [u8], u64) -> io::Result<usize>,
    ranges: &[Range<u64>],
) -> io::Result<Vec<(u64, u64)>> {
    let found = process::resident(read_at, ranges.iter().cloned())?;
    Ok(found.runs.iter().map(|run| (run.position, run.pages)).collect())
}

/// Position and pages of the writable memory in a core file; `None` where it
/// is none at all.
pub fn core(bytes: &[u8]) -> Option<Result<Vec<(u64, u64)>, String>> {
    let core = file::core(Cursor::new(bytes), bytes.len() as u64)?;
    Some(core.map(|core| core.runs.iter().map(|run| (run.position, run.pages)).collect()))
}

/// The dynamic loader that a program asks for.
///
/// # Errors
/// Why it cannot be run.
pub fn loader(bytes: &[u8]) -> Result<PathBuf, String> {
    let read_at = |into: &mut [u8], position: u64| {
        let from = usize::try_from(position).ok().and_then(|at| bytes.get(at..));
        let from = from.unwrap_or_default();
        let got = from.len().min(into.len());
        into[..got].copy_from_slice(&from[..got]);
        Ok(got)
    };
    program::loader_of(read_at, &bytes[..bytes.len().min(4096)])
}

/// Pages of a trace of memory, as valgrind's lackey prints it.
pub fn trace(text: &[u8]) -> Option<Vec<u32>> {
    lackey::touches(text).ok()
}

/// Whole pages in a file's extents, and its bytes in holes and out of them.
pub fn extents(file_bytes: u64, extents: &[FileExtent]) -> (u64, u64, u64) {
    let summary = Summary::of(file_bytes, extents);
    (Layout::of_file(extents).pages, summary.mapped_bytes, summary.hole_bytes)
}
