//! Parsers of foreign bytes for the fuzz targets, and values for completions.

use crate::run::{areas, program, settle};
use crate::{control_client, memory_limits};
use softswap_engine::door::settings::{AreaSpec, PoolLimit};
use softswap_view::units::{self, Amount};
use std::path::PathBuf;

/// The values of `--children`.
pub const CHILDREN: [&str; 2] = settle::CHILDREN;

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
    settle::parse_pool(text).ok()
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
    settle::understand(text)
}

/// The mount point and the own group of each hierarchy of control groups, by
/// the texts of `mountinfo` and `cgroup`.
pub fn control_groups(mountinfo: &str, membership: &str) -> Vec<(PathBuf, Vec<PathBuf>)> {
    let found = memory_limits::hierarchies_of(mountinfo, membership);
    found
        .into_iter()
        .map(|found| (found.top.clone(), found.chain().map(Into::into).collect()))
        .collect()
}

/// Number, and name as it is shown, of the process with this `status`.
pub fn process_status(status: &str) -> Option<(u32, String)> {
    control_client::Process::of_status(status).map(|process| (process.pid, process.name))
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
