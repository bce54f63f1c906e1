//! From what was asked for to what areas are made of: opens directories and
//! named areas.

use crate::door::settings::AreaSpec;
use crate::store::io::FileDevice;
use crate::store::swap::areas::{Backing, Layout};
use crate::store::swap::named::{ActivateError, Activated, activate_claimed};
use crate::store::swap::{Discard, FixedPages};
use softswap_sys::exclusive_file::{claim, claim_at_once};
use softswap_sys::file::{FileError, SwapFile};

/// Why an area cannot be opened.
///
/// ```
/// use softswap_engine::door::{open_areas::open, settings::AreaSpec};
/// let specs = [AreaSpec::new("/nowhere/swap")];
/// let error = open(&specs, 0, true, false).next().unwrap().err().unwrap();
/// assert!(error.to_string().contains("/nowhere/swap"));
/// ```
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No file can be made in the directory.
    #[error(transparent)]
    Directory(#[from] FileError),
    /// What has a name cannot be used.
    #[error(transparent)]
    Named(#[from] ActivateError),
}

/// Opens the areas, each as it was asked for. Those without a priority come
/// after all others, in the order in which they were given, as with `swapon`.
/// `waits`: for named ones that somebody else has, perhaps only for a moment.
///
/// # Errors
/// In the place of each area that cannot be used.
pub fn open(
    specs: &[AreaSpec],
    reserve_bytes: u64,
    avoid_io_uring: bool,
    waits: bool,
) -> impl Iterator<Item = Result<Backing, OpenError>> {
    specs.iter().zip(0..).map(move |(spec, order): (_, i32)| {
        let backing = if spec.path.is_dir() {
            let file = SwapFile::open(&spec.path)?;
            let device = Box::new(FileDevice::new(file, avoid_io_uring));
            let discard = spec.discard;
            Backing { discard, ..Backing::growing(device, spec.limit_bytes, reserve_bytes) }
        } else {
            let claim = if waits { claim } else { claim_at_once };
            let claimed = claim(&spec.path).map_err(ActivateError::from)?;
            fixed(activate_claimed(&spec.path, claimed)?, spec.discard, avoid_io_uring)
        };
        let priority = spec.priority.map_or(-1 - order, i32::from);
        Ok(Backing { priority, poll: spec.poll, ..backing })
    })
}

fn fixed(area: Activated, discard: Discard, avoid_io_uring: bool) -> Backing {
    let pages = FixedPages {
        pages: area.header.pages(),
        spans: area.spans.iter().map(|span| (span.page, span.pages, span.block)).collect(),
        bad_pages: area.header.bad_pages.iter().map(|page| u64::from(*page)).collect(),
    };
    Backing {
        device: Box::new(FileDevice::new(area.file, avoid_io_uring)),
        layout: Layout::Fixed(pages),
        priority: 0,
        // A file would get holes, and could not be used again.
        discard: if area.is_device { discard } else { Discard::None },
        poll: None,
    }
}
