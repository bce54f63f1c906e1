//! Layout of a ledger in shared memory: the header, the members, the chunks.

use crate::membership::OWNER_WORDS;

/// Changes with every change of the layout.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"sswledg6");
pub(super) const HEADER_WORDS: usize = 16;
/// Four cache lines, so that publishing members do not share one.
pub(super) const MEMBER_WORDS: usize = 32;
/// Number of tiers by which faults are counted.
pub const TIERS: usize = 6;
pub(super) const COUNTS: usize = TIERS + 3;
pub(super) const SIZES: usize = 5;

/// Dimensions of a ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Largest number of members.
    pub members: usize,
    /// Number of chunks of the largest limit.
    pub chunks: usize,
}

/// Dimensions of a tree's ledger.
pub const SHAPE: Shape = Shape { members: 1024, chunks: 32_768 };

impl Shape {
    /// Returns the number of words of a ledger. Only words in use take DRAM.
    #[must_use]
    pub const fn words(self) -> usize {
        self.first_chunk() + self.chunks
    }

    pub(super) const fn first_chunk(self) -> usize {
        HEADER_WORDS + self.members * MEMBER_WORDS
    }
}

/// Words of the header, after the magic number.
#[derive(Debug, Clone, Copy)]
pub(super) enum Header {
    Limit = 1,
    ChunkBytes,
    /// Largest limit so far.
    Extent,
    Releases,
    TakesTurns,
    /// Owner and end of the turn; 0 without one.
    Turn,
    /// Time at which the present turns began, in ms.
    TurnsSince,
    Turns,
    /// Time until which the tree is parked, in ms; 0 if it is not.
    ParkedUntil,
}

/// Set in [`Word::Demand`] if the member may get more than its floor.
pub(super) const URGENT: u64 = 1 << 63;

/// Words of a member, after its owner.
#[derive(Debug, Clone, Copy)]
pub(super) enum Word {
    /// Low half: chunks to keep, plus one; 0 without a request. High half: number of the request.
    Target = OWNER_WORDS as isize,
    Notifications,
    /// Chunks that another process should request for this member.
    Demand,
    /// Time that one more MiB would save, in ns per second.
    Benefit,
    /// Bytes in use, and their maximum.
    Used,
    Peak,
    /// First of two words with the member's name.
    Name,
    Counts = Word::Name as isize + 2,
    Sizes = Word::Counts as isize + COUNTS as isize,
    /// Chunks that the member's working set needs if it claims a turn; else 0.
    Wants = Word::Sizes as isize + SIZES as isize,
    /// Shares of time in which the member waited for the disk and in which it ran, in thousandths.
    Load,
    /// Times of the member's last sign of life, and of its last progress, in ms.
    Beat,
    Progress,
    /// Time since which the member claims a turn without having one, in ms.
    ClaimsSince,
    Eviction,
    End,
}

const _: () = assert!(Word::End as usize <= MEMBER_WORDS);

/// Returns the word of a chunk that this member holds; never 0.
pub(super) fn tag_of(entry: usize, generation: u32) -> u64 {
    u64::from(generation) << 32 | (entry as u64 + 1)
}

pub(super) fn holder(tag: u64) -> Option<(usize, u32)> {
    let entry = (tag as u32).checked_sub(1)? as usize;
    Some((entry, (tag >> 32) as u32))
}
