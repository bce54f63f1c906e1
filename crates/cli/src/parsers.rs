//! Parsers of untrusted text and files, for the fuzz targets, and option values for completions.

use crate::control_client;
use crate::run::{areas, program, resolve};
use softswap_engine::api::settings::{AreaSpec, PoolLimit};
use softswap_sys::memory_limits;
use std::path::PathBuf;

pub const CHILDREN: [&str; 2] = resolve::CHILDREN;

pub fn pool(text: &str) -> Option<PoolLimit> {
    resolve::parse_pool(text).ok()
}

pub fn area(text: &str) -> Result<AreaSpec, String> {
    areas::parse(text)
}

pub fn each_area(text: &str) -> impl Iterator<Item = &str> {
    areas::each(text)
}

/// Parses a configuration file into names and values.
///
/// # Errors
/// The first mistake in the file.
pub fn settings_file(text: &str) -> Result<Vec<(String, String)>, String> {
    resolve::parse_settings_file(text)
}

pub fn control_groups(mountinfo: &str, membership: &str) -> Vec<(PathBuf, Vec<PathBuf>)> {
    let found = memory_limits::hierarchies_of(mountinfo, membership);
    found
        .into_iter()
        .map(|found| (found.top.clone(), found.chain().map(Into::into).collect()))
        .collect()
}

pub fn process_status(status: &str) -> Option<(u32, String)> {
    control_client::Process::of_status(status).map(|process| (process.pid, process.name))
}

/// Returns the dynamic loader that a program requests.
///
/// # Errors
/// The reason if the program cannot be run.
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
