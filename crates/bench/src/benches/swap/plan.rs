//! The comparisons: sides, access patterns, contents, and shares of memory that fit.

use crate::measure::options::Named;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// A swap implementation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Side {
    Softswap,
    /// softswap that takes faults by page protection.
    Protection,
    KernelFile,
    KernelZram,
    #[value(alias = "zswap")]
    KernelZswap,
}

impl Side {
    /// The sides of `bench swap` by default.
    pub(super) const USUAL: [Side; 4] =
        [Side::Softswap, Side::KernelFile, Side::KernelZram, Side::KernelZswap];
    pub(super) const RIVALS: [Side; 4] =
        [Side::Protection, Side::KernelFile, Side::KernelZram, Side::KernelZswap];
    pub(super) const KERNEL: [Side; 3] = [Side::KernelFile, Side::KernelZram, Side::KernelZswap];

    pub(super) fn is_softswap(self) -> bool {
        matches!(self, Side::Softswap | Side::Protection)
    }

    /// Returns true if the side stores compressed pages in DRAM that is not charged to the cgroup.
    /// If `counts_zswap`, zswap's pages are charged.
    pub(super) fn keeps_outside(self, counts_zswap: bool) -> bool {
        match self {
            Side::Softswap | Side::Protection | Side::KernelFile => false,
            Side::KernelZram => true,
            Side::KernelZswap => !counts_zswap,
        }
    }

    /// Returns the content on which softswap is compared with a side: the one that suits the side.
    pub(super) fn data(self) -> Option<Data> {
        match self {
            Side::Softswap => None,
            Side::KernelFile => Some(Data::Incompressible),
            Side::KernelZram => Some(Data::Compressible),
            Side::Protection | Side::KernelZswap => Some(Data::Mixed),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Pattern {
    RandomRead,
    RandomWrite,
    SequentialRead,
    SequentialWrite,
    HotSet,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub(crate) enum Data {
    /// Pages of a running program, each changed so that all differ.
    Compressible,
    Incompressible,
    /// Half compressible, half incompressible pages.
    Mixed,
}

/// Shares of memory that fit in the limit, in percent.
pub(super) const PATTERN_SHARES: [u32; 2] = [25, 50];
pub(super) const PROGRAM_SHARES: [u32; 3] = [75, 50, 25];
pub(super) const QUICK_PROGRAM_SHARES: [u32; 1] = [50];
/// Share that is omitted in names of ratios.
const USUAL_SHARE: u32 = 25;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RunKind {
    /// Without a limit.
    Plain,
    /// Under softswap, with a budget that everything fits in.
    Unlimited,
    Limited {
        side: Side,
        share_percent: u32,
        /// softswap gets the total DRAM that this kernel side used in the same round: the side's
        /// limit and its pages outside the limit.
        same_dram_as: Option<Side>,
    },
}

impl RunKind {
    pub(super) fn name(self) -> String {
        match self {
            RunKind::Plain => "in_memory".into(),
            RunKind::Unlimited => Side::Softswap.name(),
            RunKind::Limited { same_dram_as: Some(_), .. } => "softswap_same_dram".into(),
            RunKind::Limited { side, .. } => side.name(),
        }
    }

    pub(super) fn is_softswap(self) -> bool {
        match self {
            RunKind::Plain => false,
            RunKind::Unlimited => true,
            RunKind::Limited { side, .. } => side.is_softswap(),
        }
    }

    pub(super) fn same_dram_as(self) -> Option<Side> {
        match self {
            RunKind::Limited { same_dram_as, .. } => same_dram_as,
            RunKind::Plain | RunKind::Unlimited => None,
        }
    }

    pub(super) fn share_percent(self) -> u32 {
        match self {
            RunKind::Limited { share_percent, .. } => share_percent,
            RunKind::Plain | RunKind::Unlimited => 100,
        }
    }

    pub(super) fn described(self) -> String {
        let same_dram_as =
            self.same_dram_as().map_or(String::new(), |side| format!(" as {}", side.name()));
        format!("{}{same_dram_as}, {} %", self.name(), self.share_percent())
    }
}

/// Returns the suffix of a ratio's name: share of memory and number of threads.
pub(super) fn suffix(share_percent: u32, threads: u32) -> String {
    let share = (share_percent != USUAL_SHARE).then(|| format!("_{share_percent}"));
    let threads = (threads != 1).then(|| format!("_t{threads}"));
    share.unwrap_or_default() + &threads.unwrap_or_default()
}

/// Returns softswap and one other side at a share of memory. Adds softswap with the same total DRAM
/// if the kernel stores compressed pages outside the limit.
pub(super) fn compared(
    has_ours: bool,
    rival: Option<Side>,
    share_percent: u32,
    counts_zswap: bool,
) -> Vec<RunKind> {
    let limited = |side, same_dram_as| RunKind::Limited { side, share_percent, same_dram_as };
    let ours = has_ours.then(|| limited(Side::Softswap, None));
    let outside = rival.filter(|side| has_ours && side.keeps_outside(counts_zswap));
    let theirs = rival.map(|side| limited(side, None));
    let same = outside.map(|side| limited(Side::Softswap, Some(side)));
    ours.into_iter().chain(theirs).chain(same).collect()
}
