//! A file with thousands of extents, like swap files on nearly full disks.

use crate::measure::failure::OrRefuse;
use crate::measure::noise::{below, noise};
use softswap_sys::PAGE_SIZE;
use softswap_sys::fiemap::{self, FileExtent};
use softswap_sys::file::SwapFile;
use std::os::fd::AsFd;
use std::path::Path;

const PAGE_BYTES: u64 = PAGE_SIZE as u64;
/// Binary logarithm of the maximum extent size in pages. All magnitudes are equally likely; the mean is 18
/// pages.
const MAX_MAGNITUDE: u64 = 6;

/// Returns the maximum space that the files need.
pub(super) fn most_bytes(pieces: u32) -> u64 {
    u64::from(pieces) * ((PAGE_BYTES << MAX_MAGNITUDE) + PAGE_BYTES) / 3
}

/// Grows a file alternately with a second one, which allocates a page after each piece, and returns the
/// file's extents. Both files are unlinked, so they are removed when this process exits.
pub(super) fn fragmented(dir: &Path, pieces: u32) -> Result<Vec<FileExtent>, String> {
    let open = || SwapFile::open(dir).map_err(|error| error.to_string());
    let (file, spacer) = (open()?, open()?);
    let mut length_bytes = 0;
    for (piece, number) in (0..u64::from(pieces)).zip(noise(23)) {
        let bytes = PAGE_BYTES << below(number, MAX_MAGNITUDE + 1);
        file.allocate(length_bytes, bytes)
            .and_then(|()| spacer.allocate(piece * PAGE_BYTES, PAGE_BYTES))
            .or_text("it cannot grow")?;
        length_bytes += bytes;
    }
    let found = fiemap::extents(file.as_fd()).or_text("its extents are unknown (FIEMAP)")?;
    match found.iter().all(FileExtent::is_placed) && !found.is_empty() {
        true => Ok(found),
        false => Err("its extents have no blocks on the device yet".into()),
    }
}
