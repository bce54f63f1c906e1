//! Layout of a ledger in shared memory: the header, the members, the chunks.

use crate::membership::OWNER_WORDS;

/// Changes with the layout.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"sswledg4");
pub(super) const HEADER_WORDS: usize = 8;
/// Three cache lines, so that members that publish do not share one.
pub(super) const MEMBER_WORDS: usize = 24;
/// Tiers by which faults are counted.
pub const TIERS: usize = 6;
/// Words of [`super::Counts`] and [`super::Sizes`].
pub(super) const COUNTS: usize = TIERS + 3;
pub(super) const SIZES: usize = 3;

/// Size of a ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Largest number of members.
    pub members: usize,
    /// Chunks of the largest limit.
    pub chunks: usize,
}

/// Size of a tree's ledger.
pub const SHAPE: Shape = Shape { members: 1024, chunks: 32_768 };

impl Shape {
    /// Words of a ledger of this size. Only those in use take DRAM.
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
    /// Chunks that members may hold together.
    Limit = 1,
    ChunkBytes,
    /// Largest limit so far.
    Extent,
    /// Rises when chunks are released.
    Releases,
}

/// Set in [`Word::Demand`] if the member may get more than its floor.
pub(super) const URGENT: u64 = 1 << 63;

/// Words of a member, after its owner.
#[derive(Debug, Clone, Copy)]
pub(super) enum Word {
    /// Chunks to keep and one, below the number of the request; 0: no request.
    Target = OWNER_WORDS as isize,
    /// Rises with each notification.
    Notifications,
    /// Chunks that another process is to request for it.
    Demand,
    /// Time that one MiB more would save, in ns a second.
    Benefit,
    /// Bytes in use, and the most so far.
    Used,
    Peak,
    /// The first of two with its name.
    Name,
    /// The first of [`super::Counts`].
    Counts = Word::Name as isize + 2,
    /// The first of [`super::Sizes`].
    Sizes = Word::Counts as isize + COUNTS as isize,
    /// One after the last word.
    End = Word::Sizes as isize + SIZES as isize,
}

const _: () = assert!(Word::End as usize <= MEMBER_WORDS);

/// Returns the value of a chunk's word if a member of this generation in this slot holds it.
pub(super) fn tag_of(slot: usize, generation: u32) -> u64 {
    u64::from(generation) << 32 | (slot as u64 + 1)
}

/// Returns the slot and the generation in a chunk's word.
pub(super) fn holder(tag: u64) -> Option<(usize, u32)> {
    let slot = (tag as u32).checked_sub(1)? as usize;
    Some((slot, (tag >> 32) as u32))
}
