//! Pages are written to the swap area: slots for them, their seals, one write for a run,
//! and what is done where it fails.

use crate::context::{BATCH_PAGES, Context};
use crate::io::IoError;
use crate::packed;
use crate::page::PART_LIMIT;
use crate::parts::Parts;
use crate::stats::Counter;
use crate::swap::{AreaFull, Run};
use softswap_sys::PAGE_SIZE;
use softswap_sys::raw::current_cpu;
use std::sync::atomic::Ordering;

/// Why a page cannot be written out.
#[derive(Debug, thiserror::Error)]
pub enum NoSlot {
    /// The swap areas are full.
    #[error(transparent)]
    Area(#[from] AreaFull),
    /// The area belongs to the parent.
    #[error(
        "a forked child cannot write to the swap area of its parent; give the child its own \
         by exec, or raise --memory"
    )]
    ForkedChild,
}

/// Which pages of a run were written.
#[derive(Clone, Copy, Default)]
pub(crate) struct Written {
    pages: u32,
    /// It is not single places that are bad.
    pub(crate) is_refused: bool,
}

impl Written {
    fn all(count: usize) -> Written {
        Written { pages: u32::MAX >> (BATCH_PAGES - count), is_refused: false }
    }

    pub(crate) fn has(self, at: usize) -> bool {
        self.pages >> at & 1 == 1
    }
}

const _: () = assert!(BATCH_PAGES == u32::BITS as usize);
const _: () = assert!(packed::MAX_PARTS <= PART_LIMIT as usize);

/// A run of up to `want` slots.
///
/// # Errors
/// When there is none, or the area is not this process's to write to.
pub fn allocate(parts: &Parts, want: usize) -> Result<Run, NoSlot> {
    if !parts.may_write.load(Ordering::Relaxed) {
        return Err(NoSlot::ForkedChild);
    }
    Ok(parts.areas.alloc_run(current_cpu(), want)?)
}

/// Seals copies in place and writes them to the slots of `run`. Where that fails
/// they are written one by one, as they were sealed, unless the whole area has
/// failed; slots that still refuse are not used again.
pub(crate) fn write_sealed(
    parts: &Parts,
    context: &mut Context,
    run: Run,
    copies: &mut [u8],
) -> Written {
    for (slot, copy) in (run.first..).zip(copies.chunks_exact_mut(PAGE_SIZE)) {
        parts.seal(slot, copy);
    }
    let mut written = Written::default();
    match write(parts, context, run, copies) {
        Ok(()) => return Written::all(run.len),
        Err(error) => written.is_refused = is_refusal(parts, run, &error),
    }
    for (at, copy) in copies.chunks_exact(PAGE_SIZE).enumerate() {
        let alone = Run { first: run.first + at as u64, len: 1 };
        if !written.is_refused && run.len > 1 {
            match write(parts, context, alone, copy) {
                Ok(()) => {
                    written.pages |= 1 << at;
                    continue;
                }
                Err(error) => written.is_refused = is_refusal(parts, run, &error),
            }
        }
        if written.is_refused {
            parts.areas.give_back(alone.first, 1);
        } else {
            parts.areas.retire(alone.first, 1);
        }
    }
    parts.note_areas();
    written
}

/// Whether an error says that the area as a whole takes nothing now.
fn is_refusal(parts: &Parts, run: Run, error: &IoError) -> bool {
    error.is_no_space() || parts.areas.has_failed(run.first)
}

/// One write; a failure is counted.
fn write(parts: &Parts, context: &mut Context, run: Run, copies: &[u8]) -> Result<(), IoError> {
    let result = parts.areas.write(&mut context.lanes, run, copies);
    match result {
        Ok(()) => {
            parts.stats.add(Counter::PagesWritten, run.len as u64);
            parts.stats.add(Counter::BytesWritten, copies.len() as u64);
        }
        Err(_) => parts.stats.add(Counter::WriteErrors, 1),
    }
    result
}
