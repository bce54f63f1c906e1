//! Reads slots from the swap areas and opens their seals.

use crate::base::stats::Counter;
use crate::core::Stores;
use crate::core::errors::FaultError;
use crate::memory::context::Context;
use softswap_sys::PAGE_SIZE;

/// Reads the page of one slot synchronously; may poll.
pub(crate) fn read_slot(
    stores: &Stores,
    context: &mut Context,
    slot: u64,
    page: &mut [u8],
) -> Result<(), FaultError> {
    if let Err(error) = stores.areas.read_page(&mut context.lanes, slot, page) {
        stores.stats.add(Counter::ReadErrors, 1);
        return Err(FaultError::Read(error));
    }
    count_read(stores, PAGE_SIZE);
    if stores.open_sealed(slot, page) {
        return Ok(());
    }
    stores.stats.add(Counter::ChecksumErrors, 1);
    let (area, local) = stores.areas.of(slot);
    area.check_place(local)?;
    Err(FaultError::Corrupt { slot })
}

/// Reads one page from each of `slots`, which are in one area. If the thread `waits`, a few are
/// polled. A failure is not counted: a thread that needs the page retries and reports it.
pub(crate) fn read_each(
    stores: &Stores,
    context: &mut Context,
    slots: &[u64],
    buffer: &mut [u8],
    waits: bool,
) -> bool {
    let result = stores.areas.read_each(&mut context.lanes, slots, buffer, waits);
    if result.is_ok() {
        count_read(stores, buffer.len());
    }
    result.is_ok()
}

/// Opens seals up to the first mismatch, which the page's own fault counts. Returns their number.
pub(crate) fn open_run(
    stores: &Stores,
    slots: impl Iterator<Item = u64>,
    bytes: &mut [u8],
) -> usize {
    let pages = slots.zip(bytes.chunks_exact_mut(PAGE_SIZE));
    pages
        .map(|(slot, page)| stores.open_sealed(slot, page))
        .take_while(|matches_seal| *matches_seal)
        .count()
}

fn count_read(stores: &Stores, bytes: usize) {
    stores.stats.add(Counter::PagesRead, (bytes / PAGE_SIZE) as u64);
    stores.stats.add(Counter::BytesRead, bytes as u64);
}
