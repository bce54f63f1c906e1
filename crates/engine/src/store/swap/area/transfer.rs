//! Transfers between buffers and slots, divided where extents end.

use super::SwapArea;
use crate::store::io::{IoError, IoErrorKind, Lane, MAX_PIECES, Operation, Piece};
use crate::store::swap::cluster::PAGE_BYTES;
use softswap_sys::PAGE_SIZE;
use softswap_sys::raw::now_ns;

/// Maximum number of pages of a transfer that takes hardly longer than one of a single page.
const FEW_PAGES: usize = 15;

impl SwapArea {
    /// Writes one page to each of `slots`. After a failure their content is unknown.
    pub(crate) fn write_each(
        &self,
        lane: &mut Lane,
        slots: impl Fn(usize) -> u64,
        buf: &[u8],
    ) -> Result<(), IoError> {
        let result = self.write_pieces(lane, slots, buf);
        self.health.note_write(result, now_ns());
        result
    }

    fn write_pieces(
        &self,
        lane: &mut Lane,
        slots: impl Fn(usize) -> u64,
        buf: &[u8],
    ) -> Result<(), IoError> {
        debug_assert!(buf.len().is_multiple_of(PAGE_SIZE));
        let start = now_ns();
        let next = run_at(slots, buf.len());
        let mut rest = buf;
        while !rest.is_empty() {
            let mut pieces: [Piece<&[u8]>; MAX_PIECES] =
                [const { Piece { offset: 0, buf: &[] } }; MAX_PIECES];
            let mut count = 0;
            while count < MAX_PIECES && !rest.is_empty() {
                let (slot, left) = next(buf.len() - rest.len());
                let (offset, len) = self.locate(Operation::Write, slot, left)?;
                let (piece, after) = rest.split_at(len);
                pieces[count] = Piece { offset, buf: piece };
                (rest, count) = (after, count + 1);
            }
            self.device.write_pieces(lane, &pieces[..count])?;
        }
        self.polling.note(true, buf.len(), start);
        Ok(())
    }

    /// Reads pages from `first` on. After a failure the content of the buffer is undefined.
    pub(crate) fn read(&self, lane: &mut Lane, first: u64, buf: &mut [u8]) -> Result<(), IoError> {
        let bytes = buf.len();
        self.read_pieces(lane, buf, false, |done| (first + (done / PAGE_SIZE) as u64, bytes - done))
    }

    /// Reads one page from each of `slots`. If the calling thread `waits`, a read of at most
    /// [`FEW_PAGES`] pages may be polled.
    pub(crate) fn read_each(
        &self,
        lane: &mut Lane,
        slots: impl Fn(usize) -> u64,
        buf: &mut [u8],
        waits: bool,
    ) -> Result<(), IoError> {
        let bytes = buf.len();
        self.read_pieces(lane, buf, waits && bytes <= FEW_PAGES * PAGE_SIZE, run_at(slots, bytes))
    }

    /// Fills a buffer. `next` maps an offset to its slot, and to the bytes contiguous from there.
    fn read_pieces(
        &self,
        lane: &mut Lane,
        buf: &mut [u8],
        waits: bool,
        next: impl Fn(usize) -> (u64, usize),
    ) -> Result<(), IoError> {
        debug_assert!(buf.len().is_multiple_of(PAGE_SIZE));
        let start = now_ns();
        let bytes = buf.len();
        let mut rest = buf;
        while !rest.is_empty() {
            let mut pieces: [Piece<&mut [u8]>; MAX_PIECES] =
                std::array::from_fn(|_| Piece { offset: 0, buf: Default::default() });
            let mut count = 0;
            while count < MAX_PIECES && !rest.is_empty() {
                let (slot, left) = next(bytes - rest.len());
                let (offset, len) = self.locate(Operation::Read, slot, left)?;
                let (piece, after) = rest.split_at_mut(len);
                pieces[count] = Piece { offset, buf: piece };
                (rest, count) = (after, count + 1);
            }
            let pieces = &mut pieces[..count];
            if waits {
                // At most `FEW_PAGES` pages, so one round reads all.
                let read = || self.device.read_pieces(lane, pieces, Some(&self.polling));
                return self.polling.waited(bytes, read);
            }
            self.device.read_pieces(lane, pieces, None)?;
        }
        self.polling.note(false, bytes, start);
        Ok(())
    }

    pub(crate) fn read_page(
        &self,
        lane: &mut Lane,
        slot: u64,
        page: &mut [u8],
    ) -> Result<(), IoError> {
        debug_assert!(page.len() == PAGE_SIZE);
        let (offset, _) = self.locate(Operation::Read, slot, PAGE_SIZE)?;
        self.polling.waited(PAGE_SIZE, || self.device.read_page(lane, offset, page, &self.polling))
    }

    /// Fails if the device knows why the content of a slot is wrong.
    pub(crate) fn check_place(&self, slot: u64) -> Result<(), IoError> {
        let (offset, _) = self.locate(Operation::Read, slot, PAGE_SIZE)?;
        self.device.check_place(offset)
    }

    /// Returns the device offset of a slot, and how many of `left` bytes are contiguous there.
    fn locate(
        &self,
        operation: Operation,
        slot: u64,
        left: usize,
    ) -> Result<(u64, usize), IoError> {
        let unmapped = |_| IoError {
            kind: IoErrorKind::Unmapped,
            operation,
            offset: slot.saturating_mul(PAGE_BYTES),
            length: left as u64,
            transferred: 0,
        };
        let mapping = self.extents.lookup(slot).map_err(unmapped)?;
        let piece = mapping.pages_left.saturating_mul(PAGE_BYTES).min(left as u64);
        Ok((mapping.block * PAGE_BYTES, piece as usize))
    }

    /// Iterates over contiguous pieces: offset and length in bytes. Ends at the end of the area.
    pub(super) fn pieces(&self, first: u64, count: usize) -> impl Iterator<Item = (u64, u64)> {
        let pieces = self.extents.pieces(first, count as u64).map_while(Result::ok);
        pieces.map(|piece| (piece.block * PAGE_BYTES, piece.nr_pages * PAGE_BYTES))
    }
}

/// Returns `next` of [`SwapArea::read_pieces`] for a buffer of one page for each of `slots`.
fn run_at(slots: impl Fn(usize) -> u64, bytes: usize) -> impl Fn(usize) -> (u64, usize) {
    move |done| {
        let at = done / PAGE_SIZE;
        let follows = |next: &usize| slots(*next) == slots(at) + (*next - at) as u64;
        (slots(at), (at..bytes / PAGE_SIZE).take_while(follows).count() * PAGE_SIZE)
    }
}
