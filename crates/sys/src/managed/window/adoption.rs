//! Creates a window around existing mappings, which keep their addresses and content.

use super::reservation::{Part, READ_WRITE, frame_states, place_gate_for_window};
use super::{Mechanism, Window, WindowError};
use crate::memory::{PAGE_SIZE, RESERVE, map, protect};
use crate::proc_maps::Pages;
use std::io;
use std::ops::Range;

/// The address range of a window and the mappings in it.
///
/// ```
/// use softswap_sys::window::{Occupied, Part, READ_WRITE};
///
/// let base = 1 << 44;
/// let part = Part { range: base + 4096..base + 8192, managed_as: Some(READ_WRITE) };
/// let occupied = Occupied { base, len: 1 << 40, parts: vec![part] };
/// assert_eq!(occupied.gaps().map(|gap| gap.len()).sum::<usize>(), (1 << 40) - 4096);
/// ```
#[derive(Debug, Clone)]
pub struct Occupied {
    /// First address, a multiple of the length.
    pub base: usize,
    /// Length in bytes, a power of two.
    pub len: usize,
    pub parts: Vec<Part>,
}

impl Occupied {
    pub fn gaps(&self) -> impl Iterator<Item = Range<usize>> {
        self.all_but(|_| true)
    }

    /// Returns all ranges except mappings that cannot be managed, in as few ranges as possible.
    fn manageable(&self) -> impl Iterator<Item = Range<usize>> {
        self.all_but(|part| part.managed_as.is_none())
    }

    fn all_but(&self, is_excluded: fn(&Part) -> bool) -> impl Iterator<Item = Range<usize>> {
        let parts = self.parts.iter().filter(move |part| is_excluded(part));
        let starts = std::iter::once(self.base).chain(parts.clone().map(|part| part.range.end));
        let ends = parts.map(|part| part.range.start);
        let ends = ends.chain(std::iter::once(self.base + self.len));
        starts.zip(ends).map(|(start, end)| start..end).filter(|range| !range.is_empty())
    }
}

impl Window {
    /// Creates a window around the mappings in a range. A touch of an absent page is then a fault.
    /// No other thread may map or unmap memory in the range meanwhile.
    pub fn adopt(
        staging_frames: usize,
        avoid_move: bool,
        occupied: &Occupied,
    ) -> Result<Window, WindowError> {
        let mechanism = Mechanism::open(occupied.base, occupied.len)?;
        let protection = mechanism.protection_of_absent();
        place_gate_for_window();
        let staging_len = staging_frames * PAGE_SIZE;
        let fail = |error| WindowError::Reserve { bytes: staging_len, error };
        for gap in occupied.gaps() {
            // SAFETY: MAP_FIXED_NOREPLACE never displaces a mapping.
            unsafe { map(gap.start, gap.len(), protection, RESERVE | libc::MAP_FIXED_NOREPLACE) }
                .and_then(|there| match there == gap.start {
                    true => Ok(()),
                    false => Err(io::Error::from_raw_os_error(libc::EEXIST)),
                })
                .map_err(|error| WindowError::Reserve { bytes: gap.len(), error })?;
        }
        // SAFETY: without MAP_FIXED the mapping overlaps nothing.
        let staging = unsafe { map(0, staging_len, READ_WRITE, RESERVE) }.map_err(fail)?;
        let window = Window {
            base: occupied.base,
            len: occupied.len,
            use_move: mechanism.has_move() && !avoid_move,
            mechanism,
            staging,
            frames: frame_states(staging_frames).map_err(fail)?,
            adopted: Some(occupied.parts.clone()),
        };
        let prepare = |range: Range<usize>| window.prepare_range(range.start, range.len());
        occupied
            .manageable()
            .chain(std::iter::once(staging..staging + staging_len))
            .try_for_each(prepare)
            .and_then(|()| window.close_absent(&occupied.parts))
            .map_err(|error| window.refused(error))?;
        Ok(window)
    }

    fn close_absent(&self, parts: &[Part]) -> io::Result<()> {
        let Some(access) = self.page_access() else { return Ok(()) };
        let found = Pages::open();
        for part in parts {
            let Some(wanted) = part.managed_as else { continue };
            let whole = self.numbers_in(&part.range);
            let mut absent = whole.start;
            let mut runs = Vec::new();
            access.set_wanted(&whole, wanted);
            found.each_run(part.range.clone(), &mut |run| {
                let present = self.numbers_in(&run);
                access.note_present(&present);
                runs.push(absent..present.start);
                absent = present.end;
            })?;
            runs.push(absent..whole.end);
            for run in runs.into_iter().filter(|run| !run.is_empty()) {
                access.close_unless_touched(&run, |run, body| {
                    let range = self.base + run.start * PAGE_SIZE..self.base + run.end * PAGE_SIZE;
                    found.each_run(range, &mut |run| body(self.numbers_in(&run)))
                })?;
            }
        }
        Ok(())
    }

    fn numbers_in(&self, range: &Range<usize>) -> Range<usize> {
        (range.start - self.base) / PAGE_SIZE..(range.end - self.base) / PAGE_SIZE
    }

    pub(super) fn hand_back(&self, parts: &[Part]) {
        for part in parts {
            let Some(wanted) = part.managed_as else { continue };
            // SAFETY: the range is the program's memory, to which the program gave this protection.
            let _ = unsafe { protect(part.range.start, part.range.len(), wanted) };
        }
    }
}
