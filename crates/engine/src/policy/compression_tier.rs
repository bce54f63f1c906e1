//! Which codec packs a page, where none was asked for: LZ4 on entry, zstd for what LZ4 cannot
//! pack and for what grows old.
//!
//! Two generations: a page enters the pool by LZ4, which takes little time. What is oldest
//! there, and would go on to the disk, is packed anew by zstd first, once, where the room
//! that this makes is worth more than the time that it takes: as much less goes on, and a part
//! of that would have been read again. Where nearly all that LZ4 packs comes to that, zstd
//! packs at once. What LZ4 cannot pack, such as text of few kinds of letters in no order,
//! Huffman's code may: it is tried as long as that succeeds now and then, and alone where LZ4
//! never does.
//!
//! (Fast on entry and dense with age, as zram's recompression does it in Linux; by cost, as
//! in GreedyDual, N. E. Young, 1994.)

use crate::base::average::follow;
use crate::base::likelihood::{self, CERTAIN, is_probe, likelihood};
use crate::codec::{Codec, Packer};
use softswap_sys::zstd::LITERALS_ONLY;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// The dense codec.
pub(crate) const DENSE: Packer = Packer::Zstd { level: 1 };
/// What packs a page that LZ4 cannot: there nothing repeats, and zstd would look for that in
/// vain.
pub(crate) const SECOND: Packer = Packer::Zstd { level: LITERALS_ONLY };
/// What zstd takes, at this level, in each context that packs and unpacks with it.
const CONTEXT_BYTES: usize = 176 << 10;
/// All contexts together may take one in so many bytes of the budget for that.
const BUDGET_SHARE: usize = 8;
/// Below this likelihood zstd is tried on one page in [`PROBE_EVERY`] that LZ4 cannot pack.
const WORTH_TRYING: u32 = CERTAIN / 8;
const PROBE_EVERY: u32 = 32;
/// From this on, what LZ4 packs is mostly packed anew: it pays to save that.
const MOSTLY: u32 = CERTAIN * 3 / 4;
/// What packing an object anew is taken to need, and to leave of a KiB, until some were.
const REPACK_NS: u64 = 12_000;
const LEFT_OF_KIB: u64 = 700;
/// How much one such object tells.
const TELLS: u64 = 16;

/// How dense pages are packed, and when.
#[derive(Debug)]
pub(crate) struct CompressionTier {
    may_be_dense: bool,
    /// How likely LZ4 packs a page, and how likely the other one what LZ4 cannot.
    by_lz4: AtomicU32,
    rescued: AtomicU32,
    /// How likely what LZ4 has packed is packed anew before it is touched.
    grows_old: AtomicU32,
    /// Old objects that it was not worth to pack anew: one in a while is, all the same.
    not_worth: AtomicU32,
    /// What packing an old object anew takes, and what is left of it.
    repack_ns: AtomicU64,
    left_of_kib: AtomicU64,
}

impl CompressionTier {
    /// For a budget of so many bytes, and so many contexts. LZ4 alone packs where it is not
    /// to be `on`.
    #[must_use]
    pub(crate) fn new(budget_bytes: usize, contexts: usize, on: bool) -> CompressionTier {
        CompressionTier {
            may_be_dense: on && contexts * CONTEXT_BYTES <= budget_bytes / BUDGET_SHARE,
            by_lz4: AtomicU32::new(CERTAIN),
            rescued: AtomicU32::new(CERTAIN),
            grows_old: AtomicU32::new(0),
            not_worth: AtomicU32::new(0),
            repack_ns: AtomicU64::new(REPACK_NS),
            left_of_kib: AtomicU64::new(LEFT_OF_KIB),
        }
    }

    /// What is to pack a page.
    #[must_use]
    pub(crate) fn first_try(&self) -> Packer {
        let (lz4, rescued) = (likelihood(&self.by_lz4), likelihood(&self.rescued));
        if !self.may_be_dense {
            Packer::Lz4
        } else if lz4 < WORTH_TRYING && rescued >= WORTH_TRYING {
            if is_probe(&self.by_lz4, PROBE_EVERY) { Packer::Lz4 } else { SECOND }
        } else if likelihood(&self.grows_old) >= MOSTLY {
            if is_probe(&self.grows_old, PROBE_EVERY) { Packer::Lz4 } else { DENSE }
        } else {
            Packer::Lz4
        }
    }

    /// What is to pack a page that LZ4 could not pack, if anything is.
    #[must_use]
    pub(crate) fn second_try(&self) -> Option<Packer> {
        let is_worth =
            || likelihood(&self.rescued) >= WORTH_TRYING || is_probe(&self.rescued, PROBE_EVERY);
        (self.may_be_dense && is_worth()).then_some(SECOND)
    }

    /// Notes whether a page was packed.
    pub(crate) fn note_tried(&self, packer: Packer, has_packed: bool) {
        match packer {
            Packer::Lz4 => likelihood::note(&self.by_lz4, has_packed),
            SECOND => likelihood::note(&self.rescued, has_packed),
            Packer::Zstd { .. } => {}
        }
    }

    /// Notes that a touched page was found in the pool, as this codec packed it.
    pub(crate) fn note_found(&self, codec: u8) {
        if codec == Codec::Lz4.tag() {
            likelihood::note(&self.grows_old, false);
        }
    }

    /// What is to pack an old object of the pool anew, before it would go on to the disk, if
    /// anything is: `spared_ns` is spared with a page of its size that does not go on.
    #[must_use]
    pub(crate) fn repacker(&self, spared_ns: f64) -> Option<Packer> {
        let gained = 1.0 - self.left_of_kib.load(Relaxed) as f64 / 1024.0;
        let is_worth = || self.repack_ns.load(Relaxed) as f64 <= gained * spared_ns;
        (self.may_be_dense && (is_worth() || is_probe(&self.not_worth, PROBE_EVERY)))
            .then_some(DENSE)
    }

    /// An old object was packed anew, and has so many bytes now.
    pub(crate) fn note_repacked(&self, old_bytes: usize, new_bytes: usize, ns: u64) {
        likelihood::note(&self.grows_old, true);
        // A thread that was interrupted tells nothing of the codec.
        let ns = ns.min(4 * self.repack_ns.load(Relaxed));
        follow(&self.repack_ns, ns, TELLS);
        follow(
            &self.left_of_kib,
            (new_bytes.min(old_bytes) << 10).div_ceil(old_bytes.max(1)) as u64,
            TELLS,
        );
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn tier() -> CompressionTier {
        CompressionTier::new(256 << 20, 13, true)
    }

    #[test]
    fn a_small_budget_has_no_room_for_the_dense_codec() {
        let tier = CompressionTier::new(8 << 20, 13, true);
        assert_eq!((tier.second_try(), tier.repacker(1e9)), (None, None));
        let off = CompressionTier::new(256 << 20, 13, false);
        assert_eq!((off.second_try(), off.repacker(1e9)), (None, None));
    }

    #[test]
    fn what_lz4_cannot_pack_is_tried_while_that_succeeds() {
        let tier = tier();
        assert_eq!(tier.second_try(), Some(SECOND));
        (0..200).for_each(|_| tier.note_tried(SECOND, false));
        let tried = (0..320).filter(|_| tier.second_try().is_some()).count();
        assert_eq!(tried, 320 / PROBE_EVERY as usize);
        (0..10).for_each(|_| tier.note_tried(SECOND, true));
        assert_eq!(tier.second_try(), Some(SECOND));
    }

    #[test]
    fn where_lz4_never_packs_the_other_one_is_tried_alone() {
        let tier = tier();
        assert_eq!(tier.first_try(), Packer::Lz4);
        (0..200).for_each(|_| tier.note_tried(Packer::Lz4, false));
        let by_lz4 = (0..320).filter(|_| tier.first_try() == Packer::Lz4).count();
        assert_eq!(by_lz4, 320 / PROBE_EVERY as usize);
        // Neither: then LZ4 finds out sooner.
        (0..200).for_each(|_| tier.note_tried(SECOND, false));
        assert_eq!(tier.first_try(), Packer::Lz4);
    }

    #[test]
    fn what_would_be_packed_anew_is_packed_densely_at_once() {
        let tier = tier();
        (0..200).for_each(|_| tier.note_repacked(2000, 1000, 6_000));
        let by_lz4 = (0..320).filter(|_| tier.first_try() == Packer::Lz4).count();
        assert_eq!(by_lz4, 320 / PROBE_EVERY as usize);
        // Some are touched while they are young.
        (0..20).for_each(|_| tier.note_found(Codec::Zstd.tag()));
        assert_eq!(tier.first_try(), DENSE);
        (0..20).for_each(|_| tier.note_found(Codec::Lz4.tag()));
        assert_eq!(tier.first_try(), Packer::Lz4);
    }

    #[test]
    fn old_objects_are_packed_anew_where_that_spares_more_than_it_takes() {
        let tier = tier();
        // A third of a page less goes on for 12 us.
        assert_eq!(tier.repacker(50_000.0), Some(DENSE));
        let probes = |ns| (0..320).filter(|_| tier.repacker(ns).is_some()).count();
        assert_eq!(probes(30_000.0), 320 / PROBE_EVERY as usize);
        // It takes half as long, and gains half.
        (0..2000).for_each(|_| tier.note_repacked(2000, 1000, 6_000));
        assert_eq!(probes(15_000.0), 320);
        // Nothing is gained, however short it takes.
        (0..2000).for_each(|_| tier.note_repacked(2000, 2000, 6_000));
        assert_eq!(probes(1e6), 320 / PROBE_EVERY as usize);
    }
}
