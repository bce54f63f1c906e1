//! A file in thousands of pieces, as swap files on nearly full disks are.

use crate::measure::noise::{below, noise};
use softswap_cli::refusal::plain;
use softswap_sys::PAGE_SIZE;
use softswap_sys::fiemap::{self, FileExtent};
use softswap_sys::file::SwapFile;
use std::os::fd::AsFd;
use std::path::Path;

const PAGE_BYTES: u64 = PAGE_SIZE as u64;
/// Of one page each, so that the gaps cost little.
const SPACER_BYTES: u64 = PAGE_BYTES;

/// What the file may take in its directory, at most.
pub(super) fn most_bytes(pieces: u32) -> u64 {
    u64::from(pieces) * ((PAGE_BYTES << LARGEST_MAGNITUDE) + SPACER_BYTES) / 3
}

/// Pieces have up to 2 to the power of this many pages, every magnitude
/// equally often: 18 on average.
const LARGEST_MAGNITUDE: u64 = 6;

/// Makes a file grow in turns with another one, which the file system then
/// puts in its way, and asks where it lies. Both have no name, so they are
/// gone with this process, however it ends.
pub(super) fn fragmented(dir: &Path, pieces: u32) -> Result<Vec<FileExtent>, String> {
    let open = || SwapFile::open(dir).map_err(|error| error.to_string());
    let (file, spacer) = (open()?, open()?);
    let mut length_bytes = 0;
    for (piece, number) in (0..u64::from(pieces)).zip(noise(23)) {
        let bytes = PAGE_BYTES << below(number, LARGEST_MAGNITUDE + 1);
        let grown = file
            .allocate(length_bytes, bytes)
            .and_then(|()| spacer.allocate(piece * SPACER_BYTES, SPACER_BYTES));
        grown.map_err(|error| format!("it cannot grow: {}", plain(&error)))?;
        length_bytes += bytes;
    }
    let found = fiemap::extents(file.as_fd())
        .map_err(|error| format!("its extents are not told (FIEMAP): {}", plain(&error)))?;
    match found.iter().all(FileExtent::is_placed) && !found.is_empty() {
        true => Ok(found),
        false => Err("its extents have no place on the device yet".into()),
    }
}
