//! Where what lies in the shared words.

/// What a ledger begins with: another layout has another one.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"sswledg1");
pub(super) const HEADER_WORDS: usize = 8;
/// Two cache lines, so that processes that publish do not disturb each other.
pub(super) const SEAT_WORDS: usize = 16;

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

/// Words of a seat.
#[derive(Debug, Clone, Copy)]
pub(super) enum Word {
    /// Generation above, process below; no process: the seat is free.
    Owner,
    /// When the process began, and the generation for which that holds.
    Start,
    /// The name space of its number.
    Namespace,
    /// Steps that it is to keep and one; 0: nothing is asked.
    Asked,
    /// Rises when something is asked.
    Bell,
    /// What one MiB more would save it, in ns in each second.
    Worth,
    /// Bytes that it uses of what it holds, and the most that it has used.
    Used,
    Peak,
    /// What it is called, for reports.
    Name,
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

pub(super) fn owner(generation: u32, pid: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(pid)
}

/// The generation and the process of an owner's word.
pub(super) fn tenant(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}

/// Bits of a start time, in ticks; the generation's lower ones lie above.
const START_BITS: u32 = 40;

pub(super) fn started(generation: u32, start: u64) -> u64 {
    u64::from(generation) << START_BITS | start & ((1 << START_BITS) - 1)
}
