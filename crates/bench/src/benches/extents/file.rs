//! A file with thousands of extents, like swap files on nearly full disks.

use crate::measure::failure::OrRefuse;
use crate::measure::noise::{below, noise};
use softswap_sys::PAGE_SIZE;
use softswap_sys::fiemap::{self, FileExtent};
use softswap_sys::file::SwapFile;
use std::os::fd::AsFd;
use std::path::Path;

const PAGE_BYTES: u64 = PAGE_SIZE as u64;
/// Binary logarithm of the maximum extent size in pages. All powers of two up to it are equally
/// likely, so the mean is 18 pages.
const MAX_MAGNITUDE: u64 = 6;

/// Returns an upper estimate of the space of both files, in bytes: 21 pages per piece. The mean is
/// 19.
pub(super) fn most_bytes(pieces: u32) -> u64 {
    u64::from(pieces) * ((PAGE_BYTES << MAX_MAGNITUDE) + PAGE_BYTES) / 3
}

/// Grows a file alternately with a second one, which allocates a page after each piece, and returns
/// the file's extents. Both files are unlinked, so they are removed when this process exits.
pub(super) fn fragmented(dir: &Path, pieces: u32) -> Result<Vec<FileExtent>, String> {
    let open = || SwapFile::open(dir).map_err(|error| error.to_string());
    let (file, spacer) = (open()?, open()?);
    let mut length_bytes = 0;
    for (piece, number) in (0..u64::from(pieces)).zip(noise(23)) {
        let bytes = PAGE_BYTES << below(number, MAX_MAGNITUDE + 1);
        file.allocate(length_bytes, bytes)
            .and_then(|()| spacer.allocate(piece * PAGE_BYTES, PAGE_BYTES))
            .or_text("the file cannot grow")?;
        length_bytes += bytes;
    }
    let found = fiemap::extents(file.as_fd())
        .or_text("the file system does not report the file's extents (FIEMAP)")?;
    match found.iter().all(FileExtent::is_placed) && !found.is_empty() {
        true => Ok(found),
        false => Err("the file's extents have no blocks on the device yet".into()),
    }
}
