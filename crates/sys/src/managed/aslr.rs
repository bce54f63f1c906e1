//! Random addresses of the managed window and the gates, chosen once for a tree of processes.
//!
//! The guard's filter survives exec and contains both addresses, so all programs of the tree use
//! the same ones. Each program places its heap at a new random page of the window.
//!
//! The candidates are addresses that the kernel never chooses itself: outside the legacy layout
//! (upwards from a third of the address space) and the range of position-independent programs.
//! There are 4 choices for the window, 2^33 for the gates, and 2^26 for the heap.
//!
//! A program without an engine inherits the filter, too. With the library it reserves the window's
//! range ([`hold`]). A static program has memory there only by a hint (about 1/10 of random hints).
//! The filter kills it with SIGSYS when it passes such memory to the kernel.

use crate::memory::{RESERVE, map, unmap};
use crate::raw;
use rustix::rand::{GetRandomFlags, getrandom};
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

const TIB: usize = 1 << 40;
/// Ranges for windows and gates.
const PLACES: [Range<usize>; 2] = [17 * TIB..42 * TIB, 49 * TIB..80 * TIB];
pub(crate) const MAX_WINDOW_BYTES: usize = 12 * TIB;
/// Range of a tree's first window. Programs with sanitizers may inherit the filter, but make no
/// call with an address in this range: it is a gap in the layouts of ThreadSanitizer (52 to 85 TiB)
/// and MemorySanitizer (64 to 80 TiB), and below AddressSanitizer's heap (80 TiB).
const FIRST_WINDOW: Range<usize> = 65 * TIB..80 * TIB;
/// Ranges of the other windows of a tree, or of one process.
const OTHER_WINDOWS: [Range<usize>; 3] =
    [53 * TIB..57 * TIB, 57 * TIB..61 * TIB, 61 * TIB..64 * TIB];
pub const RESERVABLE: Range<usize> = PLACES[0].start..PLACES[1].end;
/// Addresses at which ZGC maps views of its heap.
const UNWANTED: [usize; 2] = [32 * TIB, 64 * TIB];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bases {
    window: usize,
    gate: usize,
}

/// Returns 0 if randomization is disabled (`setarch -R`), or no entropy is available yet at boot.
fn random_bits() -> usize {
    const NO_RANDOMIZE: isize = 0x0004_0000;
    const QUERY: usize = 0xffff_ffff;
    // SAFETY: with this argument the call only returns the current value.
    let personality = unsafe { raw::syscall(libc::SYS_personality, [QUERY, 0, 0, 0, 0, 0]) };
    let mut bytes = [0; size_of::<usize>()];
    if personality < 0 || personality & NO_RANDOMIZE == 0 {
        let _ = getrandom(&mut bytes, GetRandomFlags::NONBLOCK);
    }
    usize::from_ne_bytes(bytes)
}

pub fn below(most: usize) -> usize {
    random_bits() % most.max(1)
}

fn places_of_window() -> impl Iterator<Item = usize> {
    (FIRST_WINDOW.start..=FIRST_WINDOW.end - MAX_WINDOW_BYTES).step_by(TIB)
}

pub(crate) fn windows(first: usize) -> impl Iterator<Item = Range<usize>> {
    std::iter::once(first..first + MAX_WINDOW_BYTES).chain(OTHER_WINDOWS)
}

fn is_place_for(len: usize, at: usize) -> bool {
    let fits = |range: &Range<usize>| range.start <= at && at + len <= range.end;
    PLACES.iter().any(fits) && !UNWANTED.contains(&at)
}

fn is_in_window(first: usize, address: usize) -> bool {
    windows(first).any(|range| range.contains(&address))
}

impl Bases {
    pub fn choose() -> Bases {
        let places: Vec<_> = places_of_window().collect();
        let window = places[below(places.len())];
        let outside = PLACES.iter().flat_map(|range| range.clone().step_by(TIB));
        let outside: Vec<_> = outside.filter(|at| !is_in_window(window, *at)).collect();
        let page = below(TIB / crate::PAGE_SIZE) * crate::PAGE_SIZE;
        Bases { window, gate: outside[below(outside.len())] + page }
    }

    pub fn window(&self) -> usize {
        self.window
    }

    pub fn windows(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        windows(self.window)
    }

    pub(crate) fn gate(&self) -> usize {
        self.gate
    }
}

impl std::fmt::Display for Bases {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:x}:{:x}", self.window, self.gate)
    }
}

impl std::str::FromStr for Bases {
    type Err = ();

    fn from_str(text: &str) -> Result<Bases, ()> {
        let (window, gate) = text.split_once(':').ok_or(())?;
        let number = |text| usize::from_str_radix(text, 16).map_err(|_| ());
        let (window, gate) = (number(window)?, number(gate)?);
        let gate_fits = gate.is_multiple_of(crate::PAGE_SIZE)
            && PLACES.iter().any(|range| range.contains(&gate))
            && !is_in_window(window, gate);
        let is_place = places_of_window().any(|place| place == window);
        (is_place && gate_fits).then_some(Bases { window, gate }).ok_or(())
    }
}

static INHERITED: OnceLock<Bases> = OnceLock::new();

pub fn inherit(bases: Bases) {
    INHERITED.get_or_init(|| bases);
    raw::place_gate(bases.gate);
}

pub(crate) fn chosen_bases() -> Bases {
    INHERITED.get().copied().unwrap_or_else(Bases::choose)
}

/// Length of an area for several adjacent windows, and its alignment, in bytes.
const AREA_LEN: usize = 4 * TIB;

/// Returns each area once: first the one that [`areas_for_many`] leaves free, then the others in
/// rotated order from a random start.
pub(crate) fn areas() -> impl Iterator<Item = Range<usize>> {
    let kept = kept_area();
    let mut other_addresses = whole_areas();
    let first = below(other_addresses.len());
    other_addresses.rotate_left(first);
    std::iter::once(kept.clone())
        .chain(other_addresses.into_iter().filter(move |area| *area != kept))
}

fn whole_areas() -> Vec<Range<usize>> {
    let places = (0..RESERVABLE.end).step_by(AREA_LEN).filter(|at| is_place_for(AREA_LEN, *at));
    places.map(|at| at..at + AREA_LEN).collect()
}

fn kept_area() -> Range<usize> {
    static KEPT: OnceLock<Range<usize>> = OnceLock::new();
    let choose = || {
        let mut areas = whole_areas();
        areas.swap_remove(below(areas.len()))
    };
    KEPT.get_or_init(choose).clone()
}

/// Returns areas, each of up to [`AREA_LEN`], for a process with many windows.
pub(crate) fn areas_for_many() -> Vec<Range<usize>> {
    let kept = kept_area();
    let mut areas = Vec::new();
    for range in PLACES {
        let mut at = range.start;
        while at < range.end {
            let end = (at / AREA_LEN + 1) * AREA_LEN;
            let start = if UNWANTED.contains(&at) { at + TIB } else { at };
            areas.push(start..end.min(range.end));
            at = end;
        }
    }
    areas.retain(|area| *area != kept);
    areas
}

/// Address of the range that [`hold`] reserves; 0 for none.
static HELD: AtomicUsize = AtomicUsize::new(0);

/// Reserves the window's range in a program without a window, unless its address space is limited.
pub fn hold(bases: Bases) {
    let limit = rustix::process::getrlimit(rustix::process::Resource::As);
    // Without the gate, the filter would treat the call below as one of the program.
    if limit.current.is_some() || !raw::place_gate(bases.gate) {
        return;
    }
    let flags = RESERVE | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: MAP_FIXED_NOREPLACE never displaces a mapping.
    let held = unsafe { map(bases.window, MAX_WINDOW_BYTES, libc::PROT_NONE, flags) };
    if held.is_ok_and(|held| held == bases.window) {
        HELD.store(bases.window, Ordering::Relaxed);
    }
}

/// Releases the range before the kernel counts all mapped memory (`mlockall`).
pub fn release_hold() {
    let held = HELD.swap(0, Ordering::Relaxed);
    if held != 0 {
        // SAFETY: `hold` mapped the range without access, so nothing refers to it.
        unsafe { unmap(held, MAX_WINDOW_BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn bases_are_random_and_inheritable() {
        let mut places = BTreeSet::new();
        let mut gates = BTreeSet::new();
        for _ in 0..500 {
            let bases = Bases::choose();
            assert_eq!(bases.to_string().parse(), Ok(bases));
            assert!(bases.windows().all(|range| is_place_for(range.len(), range.start)));
            places.insert(bases.window);
            gates.insert(bases.gate);
        }
        assert_eq!(places.len(), 4);
        assert!(gates.len() > 490, "{}", gates.len());
    }

    #[test]
    fn many_windows_fit() {
        let (kept, many) = (areas().next().unwrap(), areas_for_many());
        assert_eq!(areas().next().unwrap(), kept, "the kept area does not change");
        let starts: BTreeSet<_> = areas().map(|area| area.start).collect();
        assert_eq!(starts.len(), whole_areas().len());
        let mut last = 0;
        for area in &many {
            assert!(last <= area.start && area.start < area.end, "{area:x?}");
            assert!(PLACES.iter().any(|place| place.start <= area.start && area.end <= place.end));
            assert!(area.end <= kept.start || kept.end <= area.start, "{area:x?} {kept:x?}");
            assert!(UNWANTED.iter().all(|view| !area.contains(view)), "{area:x?}");
            last = area.end;
        }
        assert!(many.iter().map(Range::len).sum::<usize>() >= 48 * TIB);
    }

    #[test]
    fn invalid_bases_are_rejected() {
        for bad in [
            "",
            "410000000000",
            "410000000000:",
            "410000000001:250000000000",
            "410000000000:250000000001",
            "410000000000:410000001000",
            "410000000000:350000001000",
            "140000000000:250000000000",
            "400000000000:250000000000",
            "450000000000:250000000000",
            "0:250000000000",
            "410000000000:7f0000000000",
            "x:y",
        ] {
            assert_eq!(bad.parse::<Bases>(), Err(()), "{bad}");
        }
        assert!("410000000000:250000000000".parse::<Bases>().is_ok());
    }
}
