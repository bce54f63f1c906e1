//! What an entry says: where the page is, packed into 64 bits.

const STATE: u64 = 0b111;
pub(super) const BUSY: u64 = 1 << 3;
pub(super) const WAITERS: u64 = 1 << 4;
const PAYLOAD_SHIFT: u32 = 6;
/// Payloads are below this.
pub(crate) const PAYLOAD_LIMIT: u64 = 1 << (64 - PAYLOAD_SHIFT);
pub(super) const HEAT_SHIFT: u32 = PAYLOAD_SHIFT;
/// Heat is at most this.
pub(crate) const MAX_HEAT: u8 = 15;
pub(super) const HEAT: u64 = (MAX_HEAT as u64) << HEAT_SHIFT;
const PROTECTED: u64 = 1 << (HEAT_SHIFT + 4);
const COPY_IN_POOL: u64 = PROTECTED << 1;
pub(super) const PIN_SHIFT: u32 = HEAT_SHIFT + 5;
pub(super) const PIN_ONE: u64 = 1 << PIN_SHIFT;
pub(super) const PINS: u64 = 0xffff << PIN_SHIFT;
const RESIDENT_COPY_SHIFT: u32 = 64 - COPY_BITS;
const COPY_BITS: u32 = SLOT_BITS + 5;
/// The upper bits of a handle of the pool's, so many, say which object it is.
pub(crate) const OBJECT_BITS: u32 = 34;
const OBJECT_SHIFT: u32 = 64 - PAYLOAD_SHIFT - OBJECT_BITS;
const _: () = assert!(OBJECT_BITS <= COPY_BITS);

/// Slot numbers are below this.
pub(crate) const SLOT_LIMIT: u64 = 1 << SLOT_BITS;
const SLOT_BITS: u32 = 40;
/// Parts of packed pages are below this.
pub(crate) const PART_LIMIT: u8 = 15;
/// Instead of a part: the slot holds one page, which does not pack, or was not asked.
const INCOMPRESSIBLE: u8 = PART_LIMIT;
const NOT_TRIED: u8 = PART_LIMIT + 1;

/// A page's number in the window.
pub type PageNo = u64;

/// Where a page is.
///
/// ```
/// use softswap_engine::base::page::{PageTable, Place};
/// use std::sync::atomic::AtomicU64;
/// let words = [AtomicU64::new(0)];
/// let table = PageTable::new(&words);
/// assert_eq!(table.claim(0).before().place(), Place::Vacant);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Nothing is stored: never touched, discarded, or not mapped at all.
    Vacant,
    /// In the program's memory. Heat is what reclaim still grants it.
    Resident {
        /// 0 to [`MAX_HEAT`] rounds of grace.
        heat: u8,
        /// What is stored of it, if anything, while it is unchanged and write-protected.
        copy: Option<StoredCopy>,
    },
    /// Taken out, waiting in a staging frame.
    Staged {
        /// Number of the frame.
        frame: u32,
    },
    /// All words equal.
    Filled {
        /// The word, as [`crate::codec::same_filled`] encodes it.
        code: u64,
    },
    /// Compressed in DRAM.
    Pool {
        /// The pool's handle, as bits.
        handle: u64,
    },
    /// In the swap area.
    Slot {
        /// Slot number.
        slot: u64,
        /// Whether packing it was tried, in vain.
        is_incompressible: bool,
    },
    /// A mapping that is not managed lies here.
    Foreign,
    /// In the swap area, compressed, in a slot that it shares.
    Packed {
        /// Slot number.
        slot: u64,
        /// Which part of the slot's page, below [`PART_LIMIT`].
        part: u8,
    },
}

/// Where a page is stored that is in DRAM as it is, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoredCopy {
    /// In the swap area.
    Slot(SlotCopy),
    /// Compressed in the pool.
    Pool {
        /// Which object: a handle's upper [`OBJECT_BITS`] bits.
        object: u64,
    },
}

/// Where in the swap area a copy lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotCopy {
    slot: u64,
    part: u8,
}

impl SlotCopy {
    /// The one page of a slot.
    fn alone(slot: u64, is_incompressible: bool) -> SlotCopy {
        SlotCopy { slot, part: if is_incompressible { INCOMPRESSIBLE } else { NOT_TRIED } }
    }

    /// The slot.
    #[must_use]
    pub(crate) fn slot(self) -> u64 {
        self.slot
    }

    /// Whether another one lies there too.
    #[must_use]
    pub(crate) fn is_same_place(self, other: SlotCopy) -> bool {
        (self.slot, self.part()) == (other.slot, other.part())
    }

    /// Which part of it, where it is shared.
    #[must_use]
    pub(crate) fn part(self) -> Option<u8> {
        (self.part < PART_LIMIT).then_some(self.part)
    }

    /// Where the page is once it has left DRAM.
    #[must_use]
    pub fn place(self) -> Place {
        let SlotCopy { slot, part } = self;
        match part {
            INCOMPRESSIBLE | NOT_TRIED => {
                Place::Slot { slot, is_incompressible: part == INCOMPRESSIBLE }
            }
            _ => Place::Packed { slot, part },
        }
    }

    fn bits(self) -> u64 {
        self.slot | u64::from(self.part) << SLOT_BITS
    }

    fn from_bits(bits: u64) -> SlotCopy {
        SlotCopy { slot: bits & (SLOT_LIMIT - 1), part: (bits >> SLOT_BITS) as u8 }
    }
}

impl StoredCopy {
    /// The copy in the pool that a handle names.
    #[must_use]
    pub fn pooled(handle: u64) -> StoredCopy {
        StoredCopy::Pool { object: handle >> OBJECT_SHIFT }
    }

    /// The copy, if it is in the swap area.
    #[must_use]
    pub fn in_slot(self) -> Option<SlotCopy> {
        match self {
            StoredCopy::Slot(copy) => Some(copy),
            StoredCopy::Pool { .. } => None,
        }
    }

    fn bits(self) -> u64 {
        let (mark, bits) = match self {
            StoredCopy::Slot(copy) => (PROTECTED, copy.bits()),
            StoredCopy::Pool { object } => (PROTECTED | COPY_IN_POOL, object),
        };
        mark | bits << RESIDENT_COPY_SHIFT
    }

    fn from_bits(bits: u64) -> Option<StoredCopy> {
        let copy = bits >> RESIDENT_COPY_SHIFT;
        match bits & (PROTECTED | COPY_IN_POOL) {
            PROTECTED => Some(StoredCopy::Slot(SlotCopy::from_bits(copy))),
            marks if marks & PROTECTED != 0 => Some(StoredCopy::Pool { object: copy }),
            _ => None,
        }
    }
}

impl Place {
    /// A resident page of which nothing is stored.
    #[must_use]
    pub const fn resident(heat: u8) -> Place {
        Place::Resident { heat, copy: None }
    }

    /// What is stored of a resident page.
    #[must_use]
    pub fn copy(self) -> Option<StoredCopy> {
        match self {
            Place::Resident { copy, .. } => copy,
            _ => None,
        }
    }

    /// The place, where a slot's page is now known not to pack.
    #[must_use]
    pub(crate) fn known_not_to_pack(self) -> Place {
        match self {
            Place::Slot { slot, .. } => Place::Slot { slot, is_incompressible: true },
            other => other,
        }
    }

    /// Whether a page that is out is known not to pack.
    #[must_use]
    pub fn is_incompressible(self) -> bool {
        matches!(self, Place::Slot { is_incompressible: true, .. })
    }

    /// Where in the swap area it is.
    #[must_use]
    pub fn in_slot(self) -> Option<SlotCopy> {
        match self {
            Place::Slot { slot, is_incompressible } => {
                Some(SlotCopy::alone(slot, is_incompressible))
            }
            Place::Packed { slot, part } => Some(SlotCopy { slot, part }),
            _ => None,
        }
    }

    /// What a page at this place leaves there when it comes in.
    #[must_use]
    pub(crate) fn to_copy(self) -> Option<StoredCopy> {
        match self {
            Place::Pool { handle } => Some(StoredCopy::pooled(handle)),
            _ => self.in_slot().map(StoredCopy::Slot),
        }
    }
}

/// An entry as it was at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry(pub(super) u64);

impl Entry {
    /// The entry of a page at `place`, not busy.
    #[must_use]
    pub(crate) fn new(place: Place) -> Entry {
        let (state, payload) = match place {
            Place::Vacant => (0, 0),
            Place::Resident { heat, copy } => return Entry::resident(heat, copy),
            Place::Staged { frame } => (2, u64::from(frame)),
            Place::Filled { code } => (3, code),
            Place::Pool { handle } => (4, handle),
            Place::Slot { slot, is_incompressible } => {
                (5, SlotCopy::alone(slot, is_incompressible).bits())
            }
            Place::Foreign => (6, 0),
            Place::Packed { slot, part } => {
                debug_assert!(part < PART_LIMIT);
                (7, SlotCopy { slot, part }.bits())
            }
        };
        debug_assert!(payload < PAYLOAD_LIMIT);
        Entry(state | payload << PAYLOAD_SHIFT)
    }

    fn resident(heat: u8, copy: Option<StoredCopy>) -> Entry {
        debug_assert!(heat <= MAX_HEAT);
        Entry(1 | u64::from(heat) << HEAT_SHIFT | copy.map_or(0, StoredCopy::bits))
    }

    /// Where the page is.
    #[must_use]
    pub fn place(self) -> Place {
        let payload = self.0 >> PAYLOAD_SHIFT;
        match self.0 & STATE {
            0 => Place::Vacant,
            1 => Place::Resident {
                heat: ((self.0 & HEAT) >> HEAT_SHIFT) as u8,
                copy: StoredCopy::from_bits(self.0),
            },
            2 => Place::Staged { frame: payload as u32 },
            3 => Place::Filled { code: payload },
            4 => Place::Pool { handle: payload },
            6 => Place::Foreign,
            _ => SlotCopy::from_bits(payload).place(),
        }
    }

    /// Whether somebody is changing the page's place.
    #[must_use]
    pub(crate) fn is_busy(self) -> bool {
        self.0 & BUSY != 0
    }

    /// Whether the page is in the program's memory.
    #[must_use]
    pub fn is_resident(self) -> bool {
        self.0 & STATE == 1
    }

    /// How many system calls rely on the page staying where it is.
    #[must_use]
    pub(crate) fn pins(self) -> u64 {
        let may_be = self.is_resident() && !self.is_protected();
        if may_be { (self.0 & PINS) >> PIN_SHIFT } else { 0 }
    }

    /// Whether the page is resident, unchanged, and protected from writes.
    #[must_use]
    pub fn is_protected(self) -> bool {
        self.is_resident() && self.0 & PROTECTED != 0
    }
}
