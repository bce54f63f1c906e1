//! A window around what a process has there already: its mappings keep their places and their
//! content, the gaps between them become the window's.

use super::reservation::{READ_WRITE, RESERVE, frame_states, mmap, settle};
use super::{Window, WindowError};
use crate::memory::PAGE_SIZE;
use crate::uffd::Uffd;
use std::io;
use std::ops::Range;

/// Where a window is to be, and what lies there.
///
/// ```
/// use softswap_sys::window::Occupied;
///
/// let base = 1 << 44;
/// let occupied = Occupied { base, len: 1 << 40, parts: vec![(base + 4096..base + 8192, true)] };
/// assert_eq!(occupied.gaps().map(|gap| gap.len()).sum::<usize>(), (1 << 40) - 4096);
/// ```
#[derive(Debug, Clone)]
pub struct Occupied {
    /// Its first address, a multiple of its length.
    pub base: usize,
    /// Its length, a power of two.
    pub len: usize,
    /// What is mapped there, in order, and whether that can be managed: private, anonymous
    /// memory.
    pub parts: Vec<(Range<usize>, bool)>,
}

impl Occupied {
    /// What lies between the parts.
    pub fn gaps(&self) -> impl Iterator<Item = Range<usize>> {
        self.all_but(|_| true)
    }

    /// All but what cannot be managed, in as few ranges as possible.
    fn manageable(&self) -> impl Iterator<Item = Range<usize>> {
        self.all_but(|is_manageable| !is_manageable)
    }

    /// All but the parts that are `left_out`, by whether they can be managed.
    fn all_but(&self, left_out: fn(bool) -> bool) -> impl Iterator<Item = Range<usize>> {
        let parts = self.parts.iter().filter(move |(_, is_manageable)| left_out(*is_manageable));
        let starts = std::iter::once(self.base).chain(parts.clone().map(|(part, _)| part.end));
        let ends = parts.map(|(part, _)| part.start);
        let ends = ends.chain(std::iter::once(self.base + self.len));
        starts.zip(ends).map(|(start, end)| start..end).filter(|range| !range.is_empty())
    }
}

impl Window {
    /// As [`Window::reserve`], around what lies there. From then on a touch of a page that is
    /// absent raises SIGBUS; those that are present stay as they are. Nobody else maps or unmaps
    /// anything there meanwhile.
    pub fn adopt(
        staging_frames: usize,
        avoid_move: bool,
        occupied: &Occupied,
    ) -> Result<Window, WindowError> {
        let uffd = Uffd::open_sigbus().map_err(WindowError::Userfaultfd)?;
        settle();
        let staging_len = staging_frames * PAGE_SIZE;
        let fail = |error| WindowError::Reserve { bytes: staging_len, error };
        for gap in occupied.gaps() {
            // SAFETY: MAP_FIXED_NOREPLACE never displaces a mapping.
            unsafe { mmap(gap.start, gap.len(), READ_WRITE, RESERVE | libc::MAP_FIXED_NOREPLACE) }
                .and_then(|there| expect(there, gap.start))
                .map_err(|error| WindowError::Reserve { bytes: gap.len(), error })?;
        }
        // SAFETY: without MAP_FIXED the mapping overlaps nothing.
        let staging = unsafe { mmap(0, staging_len, READ_WRITE, RESERVE) }.map_err(fail)?;
        let window = Window {
            base: occupied.base,
            len: occupied.len,
            use_move: uffd.has_move() && !avoid_move,
            uffd,
            staging,
            frames: frame_states(staging_frames).map_err(fail)?,
            is_adopted: true,
        };
        let prepare = |range: Range<usize>| window.prepare_range(range.start, range.len());
        occupied
            .manageable()
            .chain(std::iter::once(staging..staging + staging_len))
            .try_for_each(prepare)
            .map_err(WindowError::Userfaultfd)?;
        Ok(window)
    }
}

fn expect(there: usize, wanted: usize) -> io::Result<()> {
    if there == wanted { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EEXIST)) }
}
