//! A slab: 64 KiB divided into slots of one class.
//!
//! A slot begins with a header word: owner, stamp, length and tag of its object, or the next free
//! slot. The stamp counts stored objects, so a stale handle does not match the slot's next object.
//! A checksum of header and content follows, because a flipped bit makes compressed data useless.

use super::class::CLASS;
use super::handle::{
    HEADER_BYTES, Handle, LENGTH_BITS, OWNER_BITS, Object, SLAB_BYTES, STAMP_BITS, TAG_BITS,
};
use crc32fast::Hasher;
use softswap_sys::memory::{populate, release_dram};

const STAMP_MASK: u16 = (1 << STAMP_BITS) - 1;
const NO_SLOT: u16 = u16::MAX;
const WORD_BYTES: usize = size_of::<u64>();
/// Number of groups by fill level into which the slabs of a class are sorted.
pub(super) const GROUPS: usize = 4;

const _: () = assert!(OWNER_BITS + STAMP_BITS + LENGTH_BITS + TAG_BITS <= u64::BITS);

pub(super) struct Slab {
    bytes: &'static mut [u8; SLAB_BYTES],
    class: Option<u8>,
    live: u16,
    /// First of the slots that have not been used since the slab was opened.
    untouched_from: u16,
    first_free: u16,
    stamp: u16,
    /// The slab is being emptied and accepts no objects.
    pub(super) closed: bool,
    /// An object was stored or read since write-back last checked the slab.
    pub(super) referenced: bool,
    /// Group of the list of slabs with a free slot that contains this slab. Changes only with both
    /// the directory's and the slab's lock held, so either is enough to read it.
    pub(super) listed: Option<u8>,
    /// Slot at which the next listing of its objects starts.
    pub(super) listed_to: u16,
}

struct Header {
    owner: u64,
    stamp: u16,
    len: usize,
    tag: u8,
}

impl Header {
    fn unpack(word: u64) -> Header {
        let word_len = word >> TAG_BITS;
        Header {
            owner: word_len >> (STAMP_BITS + LENGTH_BITS),
            stamp: (word_len >> LENGTH_BITS) as u16 & STAMP_MASK,
            len: (word_len & ((1 << LENGTH_BITS) - 1)) as usize,
            tag: (word & ((1 << TAG_BITS) - 1)) as u8,
        }
    }

    fn pack(&self) -> u64 {
        let owner = self.owner << (STAMP_BITS + LENGTH_BITS);
        let word = owner | u64::from(self.stamp) << LENGTH_BITS | self.len as u64;
        word << TAG_BITS | u64::from(self.tag)
    }

    fn free(next: u16) -> u64 {
        u64::from(next) << (LENGTH_BITS + TAG_BITS)
    }

    fn next_free(word: u64) -> u16 {
        (word >> (LENGTH_BITS + TAG_BITS)) as u16
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
            referenced: false,
            listed: None,
            listed_to: 0,
        }
    }

    pub(super) fn open(&mut self, class: usize) {
        debug_assert!(self.class.is_none() && self.live == 0);
        self.class = Some(class as u8);
        self.untouched_from = 0;
        self.first_free = NO_SLOT;
        self.closed = false;
        self.listed_to = 0;
    }

    /// Populates all memory of the slab in one call, because the slab will be filled.
    pub(super) fn populate(&mut self) {
        populate(&mut self.bytes[..]);
    }

    pub(super) fn release(&mut self) {
        debug_assert!(self.live == 0 && self.listed.is_none());
        self.class = None;
        release_dram(&mut self.bytes[..]);
    }

    pub(super) fn class(&self) -> Option<usize> {
        self.class.map(usize::from)
    }

    pub(super) fn live(&self) -> usize {
        usize::from(self.live)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.live == 0
    }

    pub(super) fn has_free_slot(&self) -> bool {
        !self.closed && self.live() < self.slots()
    }

    fn slots(&self) -> usize {
        self.class().map_or(0, |class| CLASS[class].slots)
    }

    /// Returns the slab's group by fill level; 0 is the sparsest.
    pub(super) fn group(&self) -> u8 {
        (self.live() * GROUPS / (self.slots() + 1)) as u8
    }

    pub(super) fn note_use(&mut self) {
        self.referenced = true;
    }

    pub(super) fn put(&mut self, slab: u32, compressed: &[u8], owner: u64, tag: u8) -> Handle {
        debug_assert!(self.has_free_slot());
        let slot = if self.first_free == NO_SLOT {
            self.untouched_from += 1;
            self.untouched_from - 1
        } else {
            let slot = self.first_free;
            self.first_free = Header::next_free(self.header(slot));
            slot
        };
        self.live += 1;
        self.note_use();
        self.stamp = (self.stamp + 1) & STAMP_MASK;
        let header = Header { owner, stamp: self.stamp, len: compressed.len(), tag }.pack();
        self.set_header(slot, header);
        let offset = self.offset(slot);
        let sum = checksum(header, compressed).to_ne_bytes();
        self.bytes[offset + WORD_BYTES..offset + HEADER_BYTES].copy_from_slice(&sum);
        self.bytes[offset + HEADER_BYTES..][..compressed.len()].copy_from_slice(compressed);
        Handle::new(slab, Object { slot, stamp: self.stamp, len: compressed.len(), tag })
    }

    pub(super) fn get(&self, handle: Handle) -> Option<&[u8]> {
        let slot = self.holds(handle)?;
        let offset = self.offset(slot);
        let sum = self.bytes[offset + WORD_BYTES..].first_chunk()?;
        let content = &self.bytes[offset + HEADER_BYTES..][..handle.compressed_bytes()];
        (u32::from_ne_bytes(*sum) == checksum(self.header(slot), content)).then_some(content)
    }

    pub(super) fn remove(&mut self, handle: Handle) -> bool {
        let Some(slot) = self.holds(handle) else {
            return false;
        };
        self.set_header(slot, Header::free(self.first_free));
        self.first_free = slot;
        self.live -= 1;
        true
    }

    pub(super) fn handle(&self, slab: u32, slot: u16) -> Option<Handle> {
        if self.class.is_none() || slot >= self.untouched_from {
            return None;
        }
        let Header { stamp, len, tag, .. } = Header::unpack(self.header(slot));
        (len > 0).then(|| Handle::new(slab, Object { slot, stamp, len, tag }))
    }

    pub(super) fn owner_at_random(&self, random: u32) -> Option<u64> {
        // Does not touch the memory of a free slab.
        self.class?;
        let slot = (u64::from(random) * u64::from(self.untouched_from)) >> 32;
        let Header { owner, len, .. } = Header::unpack(self.header(slot as u16));
        (len > 0).then_some(owner)
    }

    /// Lists live objects from where the last call ended. After the last one it starts over.
    pub(super) fn list_live(&mut self, slab: u32, out: &mut [(u64, Handle)]) -> usize {
        let mut count = 0;
        let mut slot = self.listed_to;
        while slot < self.untouched_from && count < out.len() {
            let Header { owner, stamp, len, tag } = Header::unpack(self.header(slot));
            if len > 0 {
                out[count] = (owner, Handle::new(slab, Object { slot, stamp, len, tag }));
                count += 1;
            }
            slot += 1;
        }
        self.listed_to = if slot < self.untouched_from { slot } else { 0 };
        count
    }

    pub(super) fn list_again_from(&mut self, handle: Handle) -> bool {
        let slot = self.holds(handle);
        self.listed_to = slot.unwrap_or(self.listed_to);
        slot.is_some()
    }

    pub(super) fn flip(&mut self, bit: usize) {
        self.bytes[bit / 8] ^= 1 << (bit % 8);
    }

    pub(super) fn damage(&mut self, handle: Handle, bit: usize) {
        if let Some(slot) = self.holds(handle) {
            self.flip(
                (self.offset(slot) + HEADER_BYTES) * 8 + bit % (handle.compressed_bytes() * 8),
            );
        }
    }

    fn holds(&self, handle: Handle) -> Option<u16> {
        let Object { slot, stamp, len, tag } = handle.object();
        if self.class.is_none() || slot >= self.untouched_from || len == 0 {
            return None;
        }
        let there = Header::unpack(self.header(slot));
        ((there.stamp, there.len, there.tag) == (stamp, len, tag)).then_some(slot)
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
        self.bytes[offset..offset + WORD_BYTES].copy_from_slice(&word.to_ne_bytes());
    }
}

fn checksum(header: u64, compressed: &[u8]) -> u32 {
    let mut sum = Hasher::new_with_initial((header ^ header >> 32) as u32);
    sum.update(compressed);
    sum.finalize()
}
