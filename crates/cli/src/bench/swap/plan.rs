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

/// What one run of the task is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Matter {
    pub(super) side: Side,
    pub(super) data: Data,
    pub(super) share_percent: u32,
}

impl Matter {
    /// All that `sides` have to be compared in: softswap with each of the
    /// others on that one's content, side by side.
    pub(super) fn of(sides: &[Side]) -> Vec<Matter> {
        let mut all = Vec::new();
        let rivals: Vec<(Option<Side>, Data)> = match sides.iter().filter_map(|s| s.data()).count()
        {
            0 => [Data::Compressible, Data::Incompressible, Data::Mixed].map(|d| (None, d)).into(),
            _ => sides.iter().filter_map(|side| Some((Some(*side), side.data()?))).collect(),
        };
        for share_percent in PATTERN_SHARES {
            for (rival, data) in &rivals {
                let ours = sides.contains(&Side::Softswap).then_some(Side::Softswap);
                all.extend(ours.into_iter().chain(*rival).map(|side| Matter {
                    side,
                    data: *data,
                    share_percent,
                }));
            }
        }
        all
    }

    pub(super) fn name(&self) -> String {
        let Matter { side, data, share_percent } = self;
        format!("{}, {} data, {share_percent} %", side.name(), data.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn softswap_is_beside_each_of_the_kernels_sides() {
        let all = Matter::of(&Side::ALL);
        assert_eq!(all.len(), 2 * 6);
        for pair in all.chunks(2) {
            assert_eq!(pair[0].side, Side::Softswap);
            assert_eq!(pair[1].side.data(), Some(pair[0].data));
            assert_eq!(pair[0].share_percent, pair[1].share_percent);
        }
    }

    #[test]
    fn alone_softswap_gets_every_content() {
        assert_eq!(Matter::of(&[Side::Softswap]).len(), 2 * 3);
        assert_eq!(Matter::of(&[Side::KernelZswap]).len(), 2);
    }
}
