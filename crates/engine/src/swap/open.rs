//! From what was asked for to storage: opens directories and named areas.

use super::areas::Storage;
use crate::config::AreaSpec;
use crate::io::FileDevice;
use softswap_sys::file::{FileError, SwapFile};

/// Why an area cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No file can be made in the directory.
    #[error(transparent)]
    Directory(#[from] FileError),
}

/// Opens every area. Those without a priority come after all others, in the
/// order in which they were given, as with `swapon`.
///
/// # Errors
/// Those of the first area that cannot be used.
pub fn open(
    specs: &[AreaSpec],
    reserve_bytes: u64,
    avoid_io_uring: bool,
) -> Result<Vec<Storage>, OpenError> {
    let number = |(spec, order): (&AreaSpec, i32)| {
        let file = SwapFile::open(&spec.path)?;
        let device = Box::new(FileDevice::new(file, avoid_io_uring));
        Ok(Storage {
            priority: spec.priority.map_or(-1 - order, i32::from),
            discard: spec.discard,
            poll: spec.poll,
            ..Storage::growing(device, spec.limit_bytes, reserve_bytes)
        })
    };
    specs.iter().zip(0..).map(number).collect()
}
