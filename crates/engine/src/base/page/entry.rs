//! The page entry: a page's place and state, packed into 64 bits.

const STATE: u64 = 0b111;
pub(super) const BUSY: u64 = 1 << 3;
pub(super) const WAITERS: u64 = 1 << 4;
const PAYLOAD_SHIFT: u32 = 6;
pub(crate) const PAYLOAD_LIMIT: u64 = 1 << (64 - PAYLOAD_SHIFT);
pub(super) const AGE_SHIFT: u32 = PAYLOAD_SHIFT;
pub(crate) const MAX_AGE: u8 = 15;
pub(super) const AGE_MASK: u64 = (MAX_AGE as u64) << AGE_SHIFT;
const PROTECTED: u64 = 1 << (AGE_SHIFT + 4);
const COPY_IN_POOL: u64 = PROTECTED << 1;
pub(super) const PIN_SHIFT: u32 = AGE_SHIFT + 5;
pub(super) const PIN_ONE: u64 = 1 << PIN_SHIFT;
pub(super) const PINS: u64 = 0xffff << PIN_SHIFT;
const RESIDENT_COPY_SHIFT: u32 = 64 - COPY_BITS;
const COPY_BITS: u32 = SLOT_BITS + 5;
/// Number of upper bits of a pool handle that identify the object.
pub(crate) const OBJECT_BITS: u32 = 34;
const OBJECT_SHIFT: u32 = 64 - PAYLOAD_SHIFT - OBJECT_BITS;
const _: () = assert!(OBJECT_BITS <= COPY_BITS);

pub(crate) const SLOT_LIMIT: u64 = 1 << SLOT_BITS;
const SLOT_BITS: u32 = 40;
pub(crate) const PART_LIMIT: u8 = 15;
/// Values in place of a part number if the slot holds one page.
const INCOMPRESSIBLE: u8 = PART_LIMIT;
const NOT_TRIED: u8 = PART_LIMIT + 1;

/// Page number within the window.
pub type PageNo = u64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// No content: never touched, discarded, or unmapped.
    Vacant,
    Resident {
        /// Clock rounds that the page survives, 0 to [`MAX_AGE`].
        age: u8,
        /// The stored copy, if any. It is valid while the page is write-protected.
        copy: Option<StoredCopy>,
    },
    /// Unmapped, in a staging frame.
    Staged { frame: u32 },
    SameFilled {
        /// The word, encoded by [`crate::codec::same_filled`].
        code: u64,
    },
    /// Compressed, in the pool.
    Pool { handle: u64 },
    Slot {
        slot: u64,
        /// True if compression was tried and failed.
        is_incompressible: bool,
    },
    /// Covered by an unmanaged mapping.
    Unmanaged,
    /// Compressed, in a swap slot that holds several pages.
    CompressedSlot { slot: u64, part: u8 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoredCopy {
    Slot(SlotCopy),
    Pool {
        /// Object number: the upper [`OBJECT_BITS`] bits of the handle.
        object: u64,
    },
}

/// Position of a copy in the swap area: a slot, or a part of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotCopy {
    slot: u64,
    part: u8,
}

impl SlotCopy {
    fn whole_slot(slot: u64, is_incompressible: bool) -> SlotCopy {
        SlotCopy { slot, part: if is_incompressible { INCOMPRESSIBLE } else { NOT_TRIED } }
    }

    pub(crate) fn slot(self) -> u64 {
        self.slot
    }

    pub(crate) fn is_same_place(self, other: SlotCopy) -> bool {
        (self.slot, self.part()) == (other.slot, other.part())
    }

    pub(crate) fn part(self) -> Option<u8> {
        (self.part < PART_LIMIT).then_some(self.part)
    }

    pub fn place(self) -> Place {
        let SlotCopy { slot, part } = self;
        match part {
            INCOMPRESSIBLE | NOT_TRIED => {
                Place::Slot { slot, is_incompressible: part == INCOMPRESSIBLE }
            }
            _ => Place::CompressedSlot { slot, part },
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
    pub fn pooled(handle: u64) -> StoredCopy {
        StoredCopy::Pool { object: handle >> OBJECT_SHIFT }
    }

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
    pub const fn resident(age: u8) -> Place {
        Place::Resident { age, copy: None }
    }

    pub fn copy(self) -> Option<StoredCopy> {
        match self {
            Place::Resident { copy, .. } => copy,
            _ => None,
        }
    }

    pub(crate) fn marked_incompressible(self) -> Place {
        match self {
            Place::Slot { slot, .. } => Place::Slot { slot, is_incompressible: true },
            other => other,
        }
    }

    pub fn is_incompressible(self) -> bool {
        matches!(self, Place::Slot { is_incompressible: true, .. })
    }

    pub fn in_slot(self) -> Option<SlotCopy> {
        match self {
            Place::Slot { slot, is_incompressible } => {
                Some(SlotCopy::whole_slot(slot, is_incompressible))
            }
            Place::CompressedSlot { slot, part } => Some(SlotCopy { slot, part }),
            _ => None,
        }
    }

    /// Returns the copy that remains at this place if the page is swapped in.
    pub(crate) fn to_copy(self) -> Option<StoredCopy> {
        match self {
            Place::Pool { handle } => Some(StoredCopy::pooled(handle)),
            _ => self.in_slot().map(StoredCopy::Slot),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry(pub(super) u64);

impl Entry {
    pub(crate) fn new(place: Place) -> Entry {
        let (state, payload) = match place {
            Place::Vacant => (0, 0),
            Place::Resident { age, copy } => return Entry::resident(age, copy),
            Place::Staged { frame } => (2, u64::from(frame)),
            Place::SameFilled { code } => (3, code),
            Place::Pool { handle } => (4, handle),
            Place::Slot { slot, is_incompressible } => {
                (5, SlotCopy::whole_slot(slot, is_incompressible).bits())
            }
            Place::Unmanaged => (6, 0),
            Place::CompressedSlot { slot, part } => {
                debug_assert!(part < PART_LIMIT);
                (7, SlotCopy { slot, part }.bits())
            }
        };
        debug_assert!(payload < PAYLOAD_LIMIT);
        Entry(state | payload << PAYLOAD_SHIFT)
    }

    fn resident(age: u8, copy: Option<StoredCopy>) -> Entry {
        debug_assert!(age <= MAX_AGE);
        Entry(1 | u64::from(age) << AGE_SHIFT | copy.map_or(0, StoredCopy::bits))
    }

    pub fn place(self) -> Place {
        let payload = self.0 >> PAYLOAD_SHIFT;
        match self.0 & STATE {
            0 => Place::Vacant,
            1 => Place::Resident {
                age: ((self.0 & AGE_MASK) >> AGE_SHIFT) as u8,
                copy: StoredCopy::from_bits(self.0),
            },
            2 => Place::Staged { frame: payload as u32 },
            3 => Place::SameFilled { code: payload },
            4 => Place::Pool { handle: payload },
            6 => Place::Unmanaged,
            _ => SlotCopy::from_bits(payload).place(),
        }
    }

    pub(crate) fn is_busy(self) -> bool {
        self.0 & BUSY != 0
    }

    pub fn is_resident(self) -> bool {
        self.0 & STATE == 1
    }

    pub(crate) fn pins(self) -> u64 {
        let may_be = self.is_resident() && !self.is_protected();
        if may_be { (self.0 & PINS) >> PIN_SHIFT } else { 0 }
    }

    /// Returns true if the page is resident and write-protected, hence unchanged.
    pub fn is_protected(self) -> bool {
        self.is_resident() && self.0 & PROTECTED != 0
    }
}
