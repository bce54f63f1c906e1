//! Where the managed window and the gate lie: address space layout randomization,
//! once for a tree of processes.
//!
//! The guard's filter outlives exec and names both, so all programs of the tree
//! have them at the same place, and the filter is installed once. Each puts its
//! memory at a page of the window that it chooses anew, so no address of a heap
//! is known from another run, nor from another program of the tree.
//!
//! The places are where the kernel puts nothing by itself: not in the layout of
//! old, which grows upwards from a third of the address space, and not where
//! position-independent programs lie; and above what sanitizers keep for
//! themselves. Chance has 2 places for the window, 2^33 for the gate, and 2^26 for
//! the heap.
//!
//! A program without an engine inherits the filter, too, and must not feel it.
//! Where the library is loaded, it keeps the window's range empty ([`hold`]):
//! then no hint puts anything there. A program that it is not loaded into, a
//! static one, has nothing there unless it asks for that very address: a hint
//! that meets the window is heeded, and the program ended by SIGSYS when it
//! hands such memory to the kernel. Hints at random meet it once in thirty
//! times; nothing else does.

use crate::raw;
use rustix::rand::{GetRandomFlags, getrandom};
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

const TIB: usize = 1 << 40;
/// Where windows and gates lie.
const PLACES: [Range<usize>; 2] = [17 * TIB..42 * TIB, 49 * TIB..80 * TIB];
/// The lowest place of a tree's window. A program built with ThreadSanitizer may inherit the
/// filter. It maps its shadows up to 52 TiB, and the gap that begins there.
const LOWEST_WINDOW: usize = 53 * TIB;
/// The longest window. Its place is a multiple of this.
pub(crate) const LONGEST: usize = 4 * TIB;
/// Windows that follow each other: of the same process, or of a tree.
pub(crate) const WINDOWS: usize = 4;
/// Every window lies in here.
pub const RESERVABLE: Range<usize> = PLACES[0].start..PLACES[1].end;
/// Where ZGC puts views of its heap.
const UNWANTED: [usize; 2] = [32 * TIB, 64 * TIB];

/// The base addresses of the window and of the gate.
///
/// ```
/// use softswap_sys::aslr::Bases;
///
/// let bases = Bases::choose();
/// assert_eq!(bases.to_string().parse(), Ok(bases));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bases {
    window: usize,
    gate: usize,
}

/// Any number; the same one each time where the user wants addresses to be
/// (`setarch -R`).
fn chance() -> usize {
    const NO_RANDOMIZE: isize = 0x0004_0000;
    const ASK: usize = 0xffff_ffff;
    // SAFETY: by this number the call asks, and changes nothing.
    let personality = unsafe { raw::syscall(libc::SYS_personality, [ASK, 0, 0, 0, 0, 0]) };
    let mut bytes = [0; size_of::<usize>()];
    // Before there is any randomness, at boot, addresses are known.
    if personality < 0 || personality & NO_RANDOMIZE == 0 {
        let _ = getrandom(&mut bytes, GetRandomFlags::NONBLOCK);
    }
    usize::from_ne_bytes(bytes)
}

/// A number below `most` by chance.
#[must_use]
pub fn below(most: usize) -> usize {
    chance() % most.max(1)
}

fn is_place_of_window(at: usize) -> bool {
    at >= LOWEST_WINDOW && at.is_multiple_of(LONGEST) && is_place_for(WINDOWS * LONGEST, at)
}

fn is_place_for(len: usize, at: usize) -> bool {
    let fits = |range: &Range<usize>| range.start <= at && at + len <= range.end;
    PLACES.iter().any(fits) && !UNWANTED.contains(&at)
}

impl Bases {
    /// A place by chance.
    #[must_use]
    pub fn choose() -> Bases {
        let places: Vec<_> =
            (0..RESERVABLE.end).step_by(LONGEST).filter(|at| is_place_of_window(*at)).collect();
        let window = places[below(places.len())];
        let beside = PLACES.iter().flat_map(|range| range.clone().step_by(TIB));
        let beside: Vec<_> = beside.filter(|at| !Bases::near(window).contains(at)).collect();
        let page = below(TIB / crate::PAGE_SIZE) * crate::PAGE_SIZE;
        Bases { window, gate: beside[below(beside.len())] + page }
    }

    fn near(window: usize) -> Range<usize> {
        window..window + WINDOWS * LONGEST
    }

    /// The first address of the window, unless something else lies there.
    #[must_use]
    pub fn window(&self) -> usize {
        self.window
    }

    /// That one, and those beside it.
    pub fn windows(&self) -> impl Iterator<Item = usize> + use<> {
        let first = self.window;
        (0..WINDOWS).map(move |slot| first + slot * LONGEST)
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

    /// What is written by [`Bases`], if it can be one.
    fn from_str(text: &str) -> Result<Bases, ()> {
        let (window, gate) = text.split_once(':').ok_or(())?;
        let number = |text| usize::from_str_radix(text, 16).map_err(|_| ());
        let (window, gate) = (number(window)?, number(gate)?);
        let gate_fits = gate.is_multiple_of(crate::PAGE_SIZE)
            && PLACES.iter().any(|range| range.contains(&gate))
            && !Bases::near(window).contains(&gate);
        (is_place_of_window(window) && gate_fits).then_some(Bases { window, gate }).ok_or(())
    }
}

static INHERITED: OnceLock<Bases> = OnceLock::new();

/// Says which place those before in the tree have.
pub fn inherit(bases: Bases) {
    INHERITED.get_or_init(|| bases);
}

/// That place, or one by chance.
pub(crate) fn wanted() -> Bases {
    INHERITED.get().copied().unwrap_or_else(Bases::choose)
}

/// Other places for a window, where it need not be at the one of those before in the tree: a
/// process may have several.
pub(crate) fn others() -> impl Iterator<Item = usize> {
    const TRIES: usize = 24;
    let tries = if INHERITED.get().is_none() { TRIES } else { 0 };
    std::iter::repeat_with(|| Bases::choose().window()).take(tries)
}

/// Makes calls from that place's gate from now on, unless something lies there.
pub fn settle(bases: Bases) {
    raw::settle_gate(bases.gate);
}

/// What several windows together may take, from a multiple of it on.
const AREA_LEN: usize = 4 * TIB;

/// Places for several windows together, each once: first the one that [`areas_for_many`] leave
/// free, then others in an order by chance. Their first address is a multiple of their length.
pub(crate) fn areas() -> impl Iterator<Item = Range<usize>> {
    let kept = kept_area();
    let mut others = whole_areas();
    let first = below(others.len());
    others.rotate_left(first);
    std::iter::once(kept.clone()).chain(others.into_iter().filter(move |area| *area != kept))
}

fn whole_areas() -> Vec<Range<usize>> {
    let places = (0..RESERVABLE.end).step_by(AREA_LEN).filter(|at| is_place_for(AREA_LEN, *at));
    places.map(|at| at..at + AREA_LEN).collect()
}

/// The area that is left to windows which lie together, by chance.
fn kept_area() -> Range<usize> {
    static KEPT: OnceLock<Range<usize>> = OnceLock::new();
    let choose = || {
        let mut areas = whole_areas();
        areas.swap_remove(below(areas.len()))
    };
    KEPT.get_or_init(choose).clone()
}

/// Areas in which windows lie of which a process has many, each of up to [`AREA_LEN`].
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

/// Where [`hold`] holds the window's range; 0 for nowhere.
static HELD: AtomicUsize = AtomicUsize::new(0);

/// Keeps the range of the window empty in a program that has none. Not where
/// address space is limited: the program may need all of it.
pub fn hold(bases: Bases) {
    let limit = rustix::process::getrlimit(rustix::process::Resource::As);
    // Without the gate the filter would take this for a call of the program's.
    if limit.current.is_some() || !raw::settle_gate(bases.gate) {
        return;
    }
    let flags =
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    let args = [bases.window, LONGEST, libc::PROT_NONE as usize, flags as usize, usize::MAX, 0];
    // SAFETY: MAP_FIXED_NOREPLACE never displaces a mapping.
    let held = unsafe { raw::syscall(libc::SYS_mmap, args) };
    if held == bases.window as isize {
        HELD.store(bases.window, Ordering::Relaxed);
    }
}

/// Gives up what [`hold`] holds: the kernel is about to count all that is mapped.
pub fn let_go() {
    let held = HELD.swap(0, Ordering::Relaxed);
    if held != 0 {
        // SAFETY: `hold` has mapped the range without access, so nothing is in it.
        unsafe { raw::syscall(libc::SYS_munmap, [held, LONGEST, 0, 0, 0, 0]) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn places_differ_and_can_be_handed_on() {
        let mut windows = BTreeSet::new();
        let mut gates = BTreeSet::new();
        for _ in 0..500 {
            let bases = Bases::choose();
            assert_eq!(bases.to_string().parse(), Ok(bases));
            assert!(RESERVABLE.contains(&(bases.window + WINDOWS * LONGEST - 1)));
            windows.insert(bases.window);
            gates.insert(bases.gate);
        }
        assert_eq!(windows.len(), 2);
        assert!(gates.len() > 490, "{}", gates.len());
    }

    #[test]
    fn there_is_room_for_many_beside_those_that_lie_together() {
        let (kept, many) = (areas().next().unwrap(), areas_for_many());
        assert_eq!(areas().next().unwrap(), kept, "it stays the same one");
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
    fn what_is_no_place_is_refused() {
        for bad in [
            "",
            "380000000000",
            "380000000000:",
            "380000000001:250000000000",
            "380000000000:250000000001",
            "380000000000:380000001000",
            "140000000000:250000000000",
            "400000000000:250000000000",
            "2a0000000000:250000000000",
            "0:250000000000",
            "380000000000:7f0000000000",
            "x:y",
        ] {
            assert_eq!(bad.parse::<Bases>(), Err(()), "{bad}");
        }
        assert!("380000000000:250000000000".parse::<Bases>().is_ok());
    }
}
