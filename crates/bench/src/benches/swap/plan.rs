//! What is compared: sides, access patterns, contents, and how much of the
//! working set fits.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Who swaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Side {
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
pub(crate) enum Pattern {
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Data {
    /// Pages of a running program, each made unlike the others.
    Compressible,
    Incompressible,
    /// Half of one, half of the other.
    Mixed,
}

impl Data {
    pub(super) const ALL: [Data; 3] = [Data::Compressible, Data::Incompressible, Data::Mixed];

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
/// The share that names of ratios leave out.
const USUAL_SHARE: u32 = 25;

/// How work is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    /// Without a limit.
    Plain,
    /// Under softswap, with everything fitting.
    Roomy,
    Limited {
        side: Side,
        share_percent: u32,
        /// softswap with all the DRAM that this side of the kernel had in the same round: its
        /// limit, and what was kept outside of it.
        beside: Option<Side>,
    },
}

impl How {
    /// What rows call it.
    pub(super) fn name(self) -> &'static str {
        match self {
            How::Plain => "in_memory",
            How::Roomy => Side::Softswap.name(),
            How::Limited { beside: Some(_), .. } => "softswap_same_dram",
            How::Limited { side, .. } => side.name(),
        }
    }

    pub(super) fn side(self) -> Option<Side> {
        match self {
            How::Plain => None,
            How::Roomy => Some(Side::Softswap),
            How::Limited { side, .. } => Some(side),
        }
    }

    pub(super) fn beside(self) -> Option<Side> {
        match self {
            How::Limited { beside, .. } => beside,
            How::Plain | How::Roomy => None,
        }
    }

    pub(super) fn share_percent(self) -> u32 {
        match self {
            How::Limited { share_percent, .. } => share_percent,
            How::Plain | How::Roomy => 100,
        }
    }

    /// For people.
    pub(super) fn described(self) -> String {
        let beside = self.beside().map_or(String::new(), |side| format!(" as {}", side.name()));
        format!("{}{beside}, {} %", self.name(), self.share_percent())
    }
}

/// The part of a ratio's name that tells the share.
pub(super) fn of_share(share_percent: u32) -> String {
    if share_percent == USUAL_SHARE { String::new() } else { format!("_{share_percent}") }
}

/// softswap and one of the kernel's sides at a share of memory, and softswap with the same DRAM
/// where the kernel keeps packed pages outside of the limit.
pub(super) fn compared(
    has_ours: bool,
    rival: Option<Side>,
    share_percent: u32,
    counts_zswap: bool,
) -> Vec<How> {
    let limited = |side, beside| How::Limited { side, share_percent, beside };
    let ours = has_ours.then(|| limited(Side::Softswap, None));
    let outside = rival.filter(|side| has_ours && side.keeps_outside(counts_zswap));
    let theirs = rival.map(|side| limited(side, None));
    let same = outside.map(|side| limited(Side::Softswap, Some(side)));
    ours.into_iter().chain(theirs).chain(same).collect()
}
