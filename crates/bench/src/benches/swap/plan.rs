//! What is compared: sides, access patterns, contents, and how much of the
//! working set fits.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Who swaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub(super) enum Side {
    Softswap,
    KernelFile,
    KernelZram,
    #[value(alias = "zswap")]
    KernelZswap,
}

impl Side {
    pub(super) const ALL: [Side; 4] =
        [Side::Softswap, Side::KernelFile, Side::KernelZram, Side::KernelZswap];

    pub(super) fn name(self) -> &'static str {
        match self {
            Side::Softswap => "softswap",
            Side::KernelFile => "kernel_file",
            Side::KernelZram => "kernel_zram",
            Side::KernelZswap => "kernel_zswap",
        }
    }

    /// Whether it has DRAM for packed pages that the kernel counts to nobody.
    /// zswap's it may count in the group.
    pub(super) fn keeps_outside(self, counts_zswap: bool) -> bool {
        match self {
            Side::Softswap | Side::KernelFile => false,
            Side::KernelZram => true,
            Side::KernelZswap => !counts_zswap,
        }
    }

    /// The content on which a pattern is compared with this one of the
    /// kernel's: what it is meant for.
    pub(super) fn data(self) -> Option<Data> {
        match self {
            Side::Softswap => None,
            Side::KernelFile => Some(Data::Incompressible),
            Side::KernelZram => Some(Data::Compressible),
            Side::KernelZswap => Some(Data::Mixed),
        }
    }
}

/// How a program goes about its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub(super) enum Pattern {
    RandomRead,
    RandomWrite,
    SequentialRead,
    SequentialWrite,
    HotSet,
}

impl Pattern {
    pub(super) const ALL: [Pattern; 5] = [
        Pattern::RandomRead,
        Pattern::RandomWrite,
        Pattern::SequentialRead,
        Pattern::SequentialWrite,
        Pattern::HotSet,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Pattern::RandomRead => "random_read",
            Pattern::RandomWrite => "random_write",
            Pattern::SequentialRead => "sequential_read",
            Pattern::SequentialWrite => "sequential_write",
            Pattern::HotSet => "hot_set",
        }
    }
}

/// What the pages hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub(super) enum Data {
    /// Pages of a running program, each made unlike the others.
    Compressible,
    Incompressible,
    /// Half of one, half of the other.
    Mixed,
}

impl Data {
    pub(super) fn name(self) -> &'static str {
        match self {
            Data::Compressible => "compressible",
            Data::Incompressible => "incompressible",
            Data::Mixed => "mixed",
        }
    }
}

/// How much of the working set fits in the limit, in percent.
pub(super) const PATTERN_SHARES: [u32; 2] = [25, 50];
pub(super) const PROGRAM_SHARES: [u32; 3] = [75, 50, 25];
pub(super) const QUICK_PROGRAM_SHARES: [u32; 1] = [50];

/// What one run of the task is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Case {
    pub(super) side: Side,
    pub(super) data: Data,
    pub(super) share_percent: u32,
    /// softswap with all the DRAM that this one of the kernel's had in the same
    /// round: its limit, and what was kept outside of it.
    pub(super) beside: Option<Side>,
}

impl Case {
    /// All that `sides` have to be compared in: softswap with each of the
    /// others on that one's content, in sets that run one after the other. In a
    /// set softswap with the same DRAM follows the side that it is equal to.
    pub(super) fn sets(sides: &[Side], counts_zswap: bool) -> Vec<Vec<Case>> {
        let ours = sides.contains(&Side::Softswap).then_some(Side::Softswap);
        let rivals: Vec<(Option<Side>, Data)> = match sides.iter().filter_map(|s| s.data()).count()
        {
            0 => [Data::Compressible, Data::Incompressible, Data::Mixed].map(|d| (None, d)).into(),
            _ => sides.iter().filter_map(|side| Some((Some(*side), side.data()?))).collect(),
        };
        let set = |share_percent: u32, (rival, data): (Option<Side>, Data)| {
            let case = |side, beside| Case { side, data, share_percent, beside };
            let outside = rival.filter(|side| side.keeps_outside(counts_zswap));
            let beside = outside.and(ours).map(|side| (side, rival));
            let plain = ours.into_iter().chain(rival).map(|side| (side, None));
            plain.chain(beside).map(|(side, beside)| case(side, beside)).collect()
        };
        PATTERN_SHARES
            .into_iter()
            .flat_map(|share| rivals.iter().map(move |rival| set(share, *rival)))
            .collect()
    }

    /// The side, as rows and plots name it.
    pub(super) fn who(&self) -> &'static str {
        who(self.side, self.beside)
    }

    pub(super) fn name(&self) -> String {
        let Case { side, data, share_percent, beside } = *self;
        format!("{}, {} data, {share_percent} %", described(side, beside), data.name())
    }
}

/// A side, or softswap with the DRAM of the one it is beside, as rows name it.
pub(super) fn who(side: Side, beside: Option<Side>) -> &'static str {
    if beside.is_some() { "softswap_same_dram" } else { side.name() }
}

/// The same in words.
pub(super) fn described(side: Side, beside: Option<Side>) -> String {
    match beside {
        None => side.name().into(),
        Some(side) => format!("softswap with the DRAM of {}", side.name()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn softswap_is_beside_each_of_the_kernels_sides() {
        let sets = Case::sets(&Side::ALL, false);
        assert_eq!(sets.len(), 2 * 3);
        for set in sets {
            assert_eq!((set[0].side, set[0].beside), (Side::Softswap, None));
            assert_eq!(set[1].side.data(), Some(set[0].data));
            assert!(set.iter().all(|one| one.share_percent == set[0].share_percent));
        }
    }

    #[test]
    fn who_keeps_pages_outside_is_met_with_the_same_dram_next() {
        for counts_zswap in [false, true] {
            for set in Case::sets(&Side::ALL, counts_zswap) {
                let rival = set[1].side;
                let same: Vec<_> = set[2..].iter().map(|one| (one.side, one.beside)).collect();
                match rival {
                    Side::KernelFile => assert!(same.is_empty()),
                    Side::KernelZswap if counts_zswap => assert!(same.is_empty()),
                    _ => assert_eq!(same, [(Side::Softswap, Some(rival))]),
                }
            }
        }
    }

    #[test]
    fn alone_softswap_gets_every_content() {
        assert_eq!(Case::sets(&[Side::Softswap], false).concat().len(), 2 * 3);
        assert_eq!(Case::sets(&[Side::KernelZswap], false).concat().len(), 2);
    }
}
