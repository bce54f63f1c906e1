//! Where what lies in the shared words.

use softswap_sys::birth::NAMESPACE_BITS;

/// What a ledger begins with: another layout has another one.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"sswledg3");
pub(super) const HEADER_WORDS: usize = 8;
/// Three cache lines, so that processes that publish do not disturb each other.
pub(super) const SEAT_WORDS: usize = 24;

/// How many seats and steps there are.
///
/// ```
/// use softswap_engine::ledger::SHAPE;
/// assert!(SHAPE.words() * 8 < 1 << 20);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Processes at the same time, at most.
    pub seats: usize,
    /// Steps of the largest limit.
    pub steps: usize,
}

/// The shape of a tree's ledger.
pub const SHAPE: Shape = Shape { seats: 1024, steps: 32_768 };

impl Shape {
    /// Words that a ledger of this shape takes. DRAM is taken by what is used of them.
    #[must_use]
    pub const fn words(self) -> usize {
        HEADER_WORDS + self.seats * SEAT_WORDS + self.steps
    }
}

/// Words of the header.
#[derive(Debug, Clone, Copy)]
pub(super) enum Header {
    Magic,
    /// Steps that may be held.
    Limit,
    StepBytes,
    /// The largest limit so far.
    Extent,
    /// Rises when steps become free.
    Freed,
}

/// Set in [`Word::Wanted`] where the seat's floor is no limit.
pub(super) const URGENT: u64 = 1 << 63;

/// Words of a seat.
#[derive(Debug, Clone, Copy)]
pub(super) enum Word {
    /// Who has it ([`Owner`]); no process: the seat is free.
    Owner,
    /// When the process began, and the generation for which that holds: told last of all, so
    /// that a seat of another generation is one that is just being taken.
    Start,
    /// Steps that it is to keep and one, below the number of the question; 0: nothing is asked.
    Asked,
    /// Rises when something is asked.
    Bell,
    /// Steps that it wants and does not ask for itself.
    Wanted,
    /// What one MiB more would save it, in ns in each second.
    Worth,
    /// Bytes that it uses of what it holds, and the most that it has used.
    Used,
    Peak,
    /// Faults by tier, and what threads waited for, in ns.
    ZeroFaults,
    StagedFaults,
    StandbyFaults,
    FilledFaults,
    PoolFaults,
    DiskFaults,
    StalledNs,
    /// Bytes from and to the swap areas.
    Read,
    Written,
    /// Bytes that it has in each place.
    Resident,
    Pool,
    Disk,
    /// What it is called: so many bytes, and as many more.
    Name,
    NameRest,
}

/// Rises with each tenant of a seat. As many bits as an owner's word has for it.
pub(super) const GENERATION_BITS: u32 = 64 - NAMESPACE_BITS - PID_BITS;
/// The kernel's largest number of a process has as many.
const PID_BITS: u32 = 22;

/// Of so many bits the lower ones.
const fn mask(bits: u32) -> u64 {
    (1 << bits) - 1
}

impl Word {
    /// What is counted of a tenant.
    pub(super) const COUNTS: [Word; 9] = [
        Word::ZeroFaults,
        Word::StagedFaults,
        Word::StandbyFaults,
        Word::FilledFaults,
        Word::PoolFaults,
        Word::DiskFaults,
        Word::StalledNs,
        Word::Read,
        Word::Written,
    ];

    /// What a tenant has.
    pub(super) const SIZES: [Word; 3] = [Word::Resident, Word::Pool, Word::Disk];

    /// What else is a tenant's own, and nothing at its beginning.
    pub(super) const OF_TENANT: [Word; 7] = [
        Word::Asked,
        Word::Wanted,
        Word::Worth,
        Word::Used,
        Word::Peak,
        Word::Name,
        Word::NameRest,
    ];
}

/// Who has a seat: all that is needed to tell whether it lives, in one word, so that a seat
/// never has a tenant who is only half known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) generation: u32,
    pub(super) namespace: u32,
    /// 0: nobody.
    pub(super) pid: u32,
}

impl Owner {
    pub(super) fn of(word: u64) -> Owner {
        Owner {
            generation: (word >> (NAMESPACE_BITS + PID_BITS)) as u32,
            namespace: (word >> PID_BITS & mask(NAMESPACE_BITS)) as u32,
            pid: (word & mask(PID_BITS)) as u32,
        }
    }

    pub(super) fn word(self) -> u64 {
        let Owner { generation, namespace, pid } = self;
        let above =
            u64::from(generation) << NAMESPACE_BITS | u64::from(namespace) & mask(NAMESPACE_BITS);
        above << PID_BITS | u64::from(pid) & mask(PID_BITS)
    }

    /// What the seat's word is when this tenant has left.
    pub(super) fn gone(self) -> Owner {
        Owner { namespace: 0, pid: 0, ..self }
    }

    /// The generation after this one.
    pub(super) fn next_generation(self) -> u32 {
        ((u64::from(self.generation) + 1) & mask(GENERATION_BITS)) as u32
    }
}

/// What a step's word says of a seat's tenant.
pub(super) fn held_by(seat: usize, generation: u32) -> u64 {
    u64::from(generation) << 32 | (seat as u64 + 1)
}

/// The seat and generation that hold a step, by its word.
pub(super) fn holder(word: u64) -> Option<(usize, u32)> {
    let seat = (word as u32).checked_sub(1)? as usize;
    Some((seat, (word >> 32) as u32))
}

/// Bits of a start time, in ticks: those that the generation leaves.
const START_BITS: u32 = 64 - GENERATION_BITS;

pub(super) fn started(generation: u32, start: u64) -> u64 {
    u64::from(generation) << START_BITS | start & mask(START_BITS)
}

/// When a seat's tenant began, if its word is of that generation: else it has not said so.
pub(super) fn start_of(generation: u32, word: u64) -> Option<u64> {
    (word >> START_BITS == u64::from(generation)).then_some(word & mask(START_BITS))
}
