//! zram's side: a device of the bench's own, one page at a time through the
//! block layer.

use super::stores::{Hand, Store, waste_percent};
use crate::measure::restore::process::Restorer;
use crate::measure::restore::request::Act;
use crate::measure::restore::zram::kept;
use softswap_cli::refusal::plain;
use softswap_sys::PAGE_SIZE;
use softswap_sys::exclusive_file::claim;
use softswap_sys::file::SwapFile;
use softswap_sys::memory::Page;
use std::io;
use std::path::Path;

/// The device. The fields are dropped in this order: it cannot be removed
/// while it is open.
pub(super) struct Zram {
    file: SwapFile,
    name: String,
    _restorer: Restorer,
}

impl Zram {
    /// Adds a device of `pages` pages, or says why there is none.
    pub(super) fn new(pages: usize) -> Result<Zram, String> {
        let mut restorer = Restorer::start()?;
        let name = restorer.ask(&Act::AddZram { bytes: (pages * PAGE_SIZE) as u64 })?;
        let claimed = claim(&Path::new("/dev").join(&name)).map_err(|error| error.to_string())?;
        if !claimed.file.is_direct() {
            return Err(format!("{name} cannot be used past the page cache"));
        }
        Ok(Zram { file: claimed.file, name, _restorer: restorer })
    }
}

impl Store for Zram {
    fn hand(&self, _first: usize, _count: usize) -> Box<dyn Hand + '_> {
        Box::new(ZramHand(&self.file))
    }

    fn waste_percent(&self) -> Result<f64, String> {
        let kept = kept(&self.name)?;
        Ok(waste_percent(kept.packed_bytes, kept.used_bytes))
    }
}

struct ZramHand<'z>(&'z SwapFile);

impl Hand for ZramHand<'_> {
    fn store(&mut self, page: usize, content: &Page) -> Result<(), String> {
        whole(self.0.write_at(&content.0, offset(page)))
    }

    fn load(&mut self, page: usize, to: &mut Page) -> Result<(), String> {
        whole(self.0.read_at(&mut to.0, offset(page)))
    }

    fn invalidate(&mut self, page: usize) -> Result<(), String> {
        self.0.discard(offset(page), PAGE_SIZE as u64).map_err(|error| plain(&error))
    }
}

fn offset(page: usize) -> u64 {
    (page * PAGE_SIZE) as u64
}

fn whole(transferred: io::Result<usize>) -> Result<(), String> {
    match transferred {
        Ok(PAGE_SIZE) => Ok(()),
        Ok(bytes) => Err(format!("{bytes} bytes of a page were transferred")),
        Err(error) => Err(plain(&error)),
    }
}
