//! Installation of pages in the program's memory.

use crate::base::access::Access;
use crate::base::page::{Claim, PageNo, Place, StoredCopy};
use crate::core::Memory;
use crate::core::errors::FaultError;
use softswap_sys::PAGE_SIZE;
use softswap_sys::uffd::Partial;
use softswap_sys::window::Writes;

/// Limit of fault-around. At 64 pages the fault costs little compared with installing them.
pub(crate) const MAX_FRESH_PAGES: usize = 64;
static ZEROES: [u8; MAX_FRESH_PAGES * PAGE_SIZE] = [0; MAX_FRESH_PAGES * PAGE_SIZE];

pub(crate) fn zeroes(pages: usize) -> &'static [u8] {
    &ZEROES[..pages * PAGE_SIZE]
}

pub(crate) fn install_zeroes(
    memory: &Memory,
    page: PageNo,
    access: Access,
) -> Result<(), FaultError> {
    // A write to the shared zero page would cause a second fault.
    let done = match access {
        Access::Read => memory.window.install_zero(page, 1),
        Access::Write => memory.window.install(page, zeroes(1), Writes::Allowed),
    };
    done.error.map_or(Ok(()), |error| Err(FaultError::Install(error)))
}

pub(crate) fn install(
    memory: &Memory,
    page: PageNo,
    bytes: &[u8],
    writes: Writes,
) -> Result<(), FaultError> {
    let done = memory.window.install(page, bytes, writes);
    done.error.map_or(Ok(()), |error| Err(FaultError::Install(error)))
}

/// Installs pages in one call. If that fails, because protections differ, installs only the first.
pub(crate) fn install_run(memory: &Memory, page: PageNo, bytes: &[u8], writes: Writes) -> Partial {
    let done = memory.window.install(page, bytes, writes);
    if done.pages == 0 && bytes.len() > PAGE_SIZE {
        return memory.window.install(page, &bytes[..PAGE_SIZE], writes);
    }
    done
}

pub(crate) fn finish(
    memory: &Memory,
    page: PageNo,
    claim: Claim<'_>,
    age: u8,
    copy: Option<StoredCopy>,
) {
    memory.space.add_resident(page, 1);
    claim.publish(Place::Resident { age, copy });
}
