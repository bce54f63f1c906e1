//! One slab: 64 KiB divided into slots of one class.
//!
//! A slot begins with a header word: owner, stamp and length of the object in
//! it, or the next free slot. The stamp counts what the slab has stored, so a
//! handle to an object long freed does not match its slot's next tenant. The
//! free slots are chained through their own headers, so a slab needs no table,
//! and a slot never yet used needs not even be touched.

use super::class::CLASS;
use super::{HEADER_BYTES, Handle, OWNER_BITS, SLAB_BYTES};
use softswap_sys::memory::give_back;

pub(super) const LENGTH_BITS: u32 = 12;
pub(super) const STAMP_BITS: u32 = 12;
const STAMP_MASK: u16 = (1 << STAMP_BITS) - 1;
const NO_SLOT: u16 = u16::MAX;

const _: () = assert!(OWNER_BITS + STAMP_BITS + LENGTH_BITS <= u64::BITS);

/// A slab in use or at rest.
pub(super) struct Slab {
    bytes: &'static mut [u8; SLAB_BYTES],
    /// What it is divided for; none while it is free.
    class: Option<u8>,
    live: u16,
    /// Slots from here on have not been used since the slab was opened.
    untouched_from: u16,
    first_free: u16,
    stamp: u16,
    /// Being written back: takes no more objects.
    pub(super) closed: bool,
    /// On its class's list of slabs with room. Changes only with both the
    /// directory's and the slab's lock held, so either is enough to read it.
    pub(super) listed: bool,
    /// Where the next round of writeback goes on in this slab.
    pub(super) written_back_to: u16,
}

/// A slot's header word, taken apart.
struct Header {
    owner: u64,
    stamp: u16,
    len: usize,
}

impl Header {
    fn unpack(word: u64) -> Header {
        Header {
            owner: word >> (STAMP_BITS + LENGTH_BITS),
            stamp: (word >> LENGTH_BITS) as u16 & STAMP_MASK,
            len: (word & ((1 << LENGTH_BITS) - 1)) as usize,
        }
    }

    fn pack(&self) -> u64 {
        self.owner << (STAMP_BITS + LENGTH_BITS)
            | u64::from(self.stamp) << LENGTH_BITS
            | self.len as u64
    }

    /// The header of a free slot: length zero, and where the chain goes on.
    fn free(next: u16) -> u64 {
        u64::from(next) << LENGTH_BITS
    }

    fn next_free(word: u64) -> u16 {
        (word >> LENGTH_BITS) as u16
    }
}

impl Slab {
    pub(super) fn new(bytes: &'static mut [u8; SLAB_BYTES]) -> Slab {
        Slab {
            bytes,
            class: None,
            live: 0,
            untouched_from: 0,
            first_free: NO_SLOT,
            stamp: 0,
            closed: false,
            listed: false,
            written_back_to: 0,
        }
    }

    /// Divides a free slab for `class`.
    pub(super) fn open(&mut self, class: usize) {
        debug_assert!(self.class.is_none() && self.live == 0);
        self.class = Some(class as u8);
        self.untouched_from = 0;
        self.first_free = NO_SLOT;
        self.closed = false;
        self.written_back_to = 0;
    }

    /// Ends the slab's use and returns its memory to the system.
    pub(super) fn release(&mut self) {
        debug_assert!(self.live == 0 && !self.listed);
        self.class = None;
        give_back(&mut self.bytes[..]);
    }

    pub(super) fn class(&self) -> Option<usize> {
        self.class.map(usize::from)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.live == 0
    }

    pub(super) fn has_room(&self) -> bool {
        !self.closed
            && self.class().is_some_and(|class| usize::from(self.live) < CLASS[class].slots)
    }

    /// Stores an object; the slab must have room and its slots the size.
    pub(super) fn put(&mut self, slab: u32, packed: &[u8], owner: u64) -> Handle {
        debug_assert!(self.has_room());
        let slot = if self.first_free == NO_SLOT {
            self.untouched_from += 1;
            self.untouched_from - 1
        } else {
            let slot = self.first_free;
            self.first_free = Header::next_free(self.header(slot));
            slot
        };
        self.live += 1;
        self.stamp = (self.stamp + 1) & STAMP_MASK;
        let header = Header { owner, stamp: self.stamp, len: packed.len() };
        self.set_header(slot, header.pack());
        let content = self.offset(slot) + HEADER_BYTES;
        self.bytes[content..content + packed.len()].copy_from_slice(packed);
        Handle::new(slab, slot, self.stamp, packed.len())
    }

    /// The object, if `handle` is still its.
    pub(super) fn get(&self, handle: Handle) -> Option<&[u8]> {
        self.holds(handle).then(|| {
            let content = self.offset(handle.slot()) + HEADER_BYTES;
            &self.bytes[content..content + handle.packed_bytes()]
        })
    }

    /// Frees the object; false, and nothing done, if `handle` is stale.
    pub(super) fn remove(&mut self, handle: Handle) -> bool {
        if !self.holds(handle) {
            return false;
        }
        self.set_header(handle.slot(), Header::free(self.first_free));
        self.first_free = handle.slot();
        self.live -= 1;
        true
    }

    /// Writes owners and handles of live objects to `out`, going on where the
    /// last call ended; returns how many. Fewer than `out` holds means that
    /// the slab has been gone through, and the next call starts over.
    pub(super) fn list_live(&mut self, slab: u32, out: &mut [(u64, Handle)]) -> usize {
        let mut count = 0;
        let mut slot = self.written_back_to;
        while slot < self.untouched_from && count < out.len() {
            let Header { owner, stamp, len } = Header::unpack(self.header(slot));
            if len > 0 {
                out[count] = (owner, Handle::new(slab, slot, stamp, len));
                count += 1;
            }
            slot += 1;
        }
        self.written_back_to = if slot < self.untouched_from { slot } else { 0 };
        count
    }

    fn holds(&self, handle: Handle) -> bool {
        if self.class.is_none() || handle.slot() >= self.untouched_from {
            return false;
        }
        let Header { stamp, len, .. } = Header::unpack(self.header(handle.slot()));
        len > 0 && len == handle.packed_bytes() && stamp == handle.stamp()
    }

    fn offset(&self, slot: u16) -> usize {
        self.class().map_or(0, |class| usize::from(slot) * CLASS[class].slot_bytes)
    }

    fn header(&self, slot: u16) -> u64 {
        let offset = self.offset(slot);
        self.bytes[offset..].first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes))
    }

    fn set_header(&mut self, slot: u16, word: u64) {
        let offset = self.offset(slot);
        self.bytes[offset..offset + HEADER_BYTES].copy_from_slice(&word.to_ne_bytes());
    }
}
