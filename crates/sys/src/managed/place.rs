//! Where the managed window and the gate lie: chosen by chance, once for a
//! tree of processes.
//!
//! The guard's filter outlives exec and names both, so all programs of the tree
//! have them at the same place, and the filter is installed once. Each puts its
//! memory at a page of the window that it chooses anew, so no address of a heap
//! is known from another run, nor from another program of the tree.
//!
//! The places are where the kernel puts nothing by itself: not in the layout of
//! old, which grows upwards from a third of the address space, and not where
//! position-independent programs lie; and above what sanitizers keep for
//! themselves. Chance has some 48 places for the window, 2^33 for the gate, and
//! the pages of half the window for the heap.
//!
//! A program without an engine inherits the filter, too, and must not feel it.
//! Where the library is loaded, it keeps the window's range empty ([`hold`]):
//! then no hint puts anything there. A program that it is not loaded into, a
//! static one, has nothing there unless it asks for that very address: a hint
//! that meets the window is heeded, and the program ended by SIGSYS when it
//! hands such memory to the kernel. Hints at random meet it once in a hundred
//! times; nothing else does.

use crate::raw;
use rustix::rand::{GetRandomFlags, getrandom};
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

const TIB: usize = 1 << 40;
/// Where windows and gates lie.
const PLACES: [Range<usize>; 2] = [17 * TIB..42 * TIB, 49 * TIB..80 * TIB];
/// Beside a window there may be others, of the same process.
pub(crate) const WINDOWS: usize = 4;
/// Every window lies in here.
pub(crate) const RESERVABLE: Range<usize> = PLACES[0].start..PLACES[1].end;
/// Where ZGC puts views of its heap.
const UNWANTED: [usize; 2] = [32 * TIB, 64 * TIB];

/// Where the window and the gate lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
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
    let fits = |range: &Range<usize>| range.start <= at && at + WINDOWS * TIB <= range.end;
    at.is_multiple_of(TIB) && PLACES.iter().any(fits) && !UNWANTED.contains(&at)
}

impl Place {
    /// A place by chance.
    #[must_use]
    pub fn choose() -> Place {
        let places: Vec<_> =
            (0..RESERVABLE.end).step_by(TIB).filter(|at| is_place_of_window(*at)).collect();
        let window = places[below(places.len())];
        let beside = PLACES.iter().flat_map(|range| range.clone().step_by(TIB));
        let beside: Vec<_> = beside.filter(|at| !Place::near(window).contains(at)).collect();
        let page = below(TIB / crate::PAGE_SIZE) * crate::PAGE_SIZE;
        Place { window, gate: beside[below(beside.len())] + page }
    }

    fn near(window: usize) -> Range<usize> {
        window..window + WINDOWS * TIB
    }

    /// The first address of the window, unless something else lies there.
    #[must_use]
    pub fn window(&self) -> usize {
        self.window
    }

    pub(crate) fn gate(&self) -> usize {
        self.gate
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:x}:{:x}", self.window, self.gate)
    }
}

impl std::str::FromStr for Place {
    type Err = ();

    /// What is written by [`Place`], if it can be one.
    fn from_str(text: &str) -> Result<Place, ()> {
        let (window, gate) = text.split_once(':').ok_or(())?;
        let number = |text| usize::from_str_radix(text, 16).map_err(|_| ());
        let (window, gate) = (number(window)?, number(gate)?);
        let gate_fits = gate.is_multiple_of(crate::PAGE_SIZE)
            && PLACES.iter().any(|range| range.contains(&gate))
            && !Place::near(window).contains(&gate);
        (is_place_of_window(window) && gate_fits).then_some(Place { window, gate }).ok_or(())
    }
}

static INHERITED: OnceLock<Place> = OnceLock::new();

/// Says which place those before in the tree have.
pub fn inherit(place: Place) {
    INHERITED.get_or_init(|| place);
}

/// That place, or one by chance.
pub(crate) fn wanted() -> Place {
    INHERITED.get().copied().unwrap_or_else(Place::choose)
}

/// Makes calls from that place's gate from now on, unless something lies there.
pub fn settle(place: Place) {
    raw::settle_gate(place.gate);
}

/// Where [`hold`] holds the window's range; 0 for nowhere.
static HELD: AtomicUsize = AtomicUsize::new(0);

/// Keeps the range of the window empty in a program that has none. Not where
/// address space is limited: the program may need all of it.
pub fn hold(place: Place) {
    let limit = rustix::process::getrlimit(rustix::process::Resource::As);
    // Without the gate the filter would take this for a call of the program's.
    if limit.current.is_some() || !raw::settle_gate(place.gate) {
        return;
    }
    let flags =
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    let args = [place.window, TIB, libc::PROT_NONE as usize, flags as usize, usize::MAX, 0];
    // SAFETY: MAP_FIXED_NOREPLACE never displaces a mapping.
    let held = unsafe { raw::syscall(libc::SYS_mmap, args) };
    if held == place.window as isize {
        HELD.store(place.window, Ordering::Relaxed);
    }
}

/// Gives up what [`hold`] holds: the kernel is about to count all that is mapped.
pub fn let_go() {
    let held = HELD.swap(0, Ordering::Relaxed);
    if held != 0 {
        // SAFETY: `hold` has mapped the range without access, so nothing is in it.
        unsafe { raw::syscall(libc::SYS_munmap, [held, TIB, 0, 0, 0, 0]) };
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
            let place = Place::choose();
            assert_eq!(place.to_string().parse(), Ok(place));
            assert!(RESERVABLE.contains(&(place.window + WINDOWS * TIB - 1)));
            windows.insert(place.window);
            gates.insert(place.gate);
        }
        assert!(windows.len() > 40, "{}", windows.len());
        assert!(gates.len() > 490, "{}", gates.len());
    }

    #[test]
    fn what_is_no_place_is_refused() {
        for bad in [
            "",
            "110000000000",
            "110000000000:",
            "110000000001:150000000000",
            "110000000000:150000000001",
            "110000000000:110000001000",
            "200000000000:180000000000",
            "2a0000000000:180000000000",
            "0:180000000000",
            "110000000000:7f0000000000",
            "x:y",
        ] {
            assert_eq!(bad.parse::<Place>(), Err(()), "{bad}");
        }
        assert!("110000000000:150000000000".parse::<Place>().is_ok());
    }
}
