//! The comparisons: sides, access patterns, contents, and shares of memory that fit.

use super::programs::Program;
use crate::measure::options::Named;
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use softswap_cli::units::parse_size;

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
    pub(super) const USUAL: [Side; 4] =
        [Side::Softswap, Side::KernelFile, Side::KernelZram, Side::KernelZswap];
    pub(super) const RIVALS: [Side; 4] =
        [Side::Protection, Side::KernelFile, Side::KernelZram, Side::KernelZswap];
    pub(super) const KERNEL: [Side; 3] = [Side::KernelFile, Side::KernelZram, Side::KernelZswap];

    pub(super) fn is_softswap(self) -> bool {
        matches!(self, Side::Softswap | Side::Protection)
    }

    /// True for compressed pages in DRAM outside the cgroup. `counts_zswap`: zswap's are charged.
    pub(super) fn keeps_outside(self, counts_zswap: bool) -> bool {
        match self {
            Side::Softswap | Side::Protection | Side::KernelFile => false,
            Side::KernelZram => true,
            Side::KernelZswap => !counts_zswap,
        }
    }

    /// Returns the content that suits a side, for the comparison with softswap.
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

pub(super) const PATTERN_SHARES: [u32; 2] = [25, 50];
pub(super) const PROGRAM_SHARES: [u32; 3] = [75, 50, 25];
pub(super) const QUICK_PROGRAM_SHARES: [u32; 1] = [50];
/// Omitted in names of ratios.
const USUAL_SHARE: u32 = 25;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RunKind {
    /// `None` without a limit and without softswap.
    pub(super) side: Option<Side>,
    /// `None` without a limit; softswap's budget then fits everything.
    pub(super) limit_percent: Option<u32>,
    /// softswap gets all DRAM that this kernel side used in the same round, also outside the limit.
    pub(super) same_dram_as: Option<Side>,
}

impl RunKind {
    pub(super) const PLAIN: RunKind =
        RunKind { side: None, limit_percent: None, same_dram_as: None };
    pub(super) const UNLIMITED: RunKind = RunKind { side: Some(Side::Softswap), ..RunKind::PLAIN };

    pub(super) fn limited(side: Side, percent: u32, same_dram_as: Option<Side>) -> RunKind {
        RunKind { side: Some(side), limit_percent: Some(percent), same_dram_as }
    }

    pub(super) fn name(self) -> String {
        match (self.side, self.same_dram_as) {
            (None, _) => "in_memory".into(),
            (Some(_), Some(_)) => "softswap_same_dram".into(),
            (Some(side), None) => side.name(),
        }
    }

    pub(super) fn is_softswap(self) -> bool {
        self.side.is_some_and(Side::is_softswap)
    }

    pub(super) fn share_percent(self) -> u32 {
        self.limit_percent.unwrap_or(100)
    }

    pub(super) fn described(self) -> String {
        let same_dram_as =
            self.same_dram_as.map_or(String::new(), |side| format!(" as {}", side.name()));
        format!("{}{same_dram_as}, {} %", self.name(), self.share_percent())
    }
}

pub(super) fn suffix(share_percent: u32, threads: u32) -> String {
    let share = (share_percent != USUAL_SHARE).then(|| format!("_{share_percent}"));
    let threads = (threads != 1).then(|| format!("_t{threads}"));
    share.unwrap_or_default() + &threads.unwrap_or_default()
}

/// Compares softswap with another side. Adds softswap with the same total DRAM if the kernel stores
/// compressed pages outside the limit.
pub(super) fn compared(
    has_ours: bool,
    rival: Option<Side>,
    share_percent: u32,
    counts_zswap: bool,
) -> Vec<RunKind> {
    let limited = |side, same_dram_as| RunKind::limited(side, share_percent, same_dram_as);
    let ours = has_ours.then(|| limited(Side::Softswap, None));
    let outside = rival.filter(|side| has_ours && side.keeps_outside(counts_zswap));
    let theirs = rival.map(|side| limited(side, None));
    let same = outside.map(|side| limited(Side::Softswap, Some(side)));
    ours.into_iter().chain(theirs).chain(same).collect()
}

#[derive(Args)]
pub(crate) struct WorkOptions {
    /// How memory is accessed
    #[arg(long, value_name = "PATTERN,...", value_delimiter = ',', value_enum,
          default_values_t = Pattern::all())]
    patterns: Vec<Pattern>,

    /// Omit the patterns
    #[arg(long, conflicts_with = "patterns")]
    no_patterns: bool,

    /// Working set of the pattern program [default: 128M]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(super) working_set: Option<u64>,

    /// Whole programs
    #[arg(long, value_name = "PROGRAM,...", value_delimiter = ',', value_enum,
          default_values_t = Program::all())]
    programs: Vec<Program>,

    /// Omit the programs
    #[arg(long, conflicts_with_all = ["programs", "no_patterns"])]
    no_programs: bool,

    /// Approximate size of the programs [default: 512M; of `bench ablation` 96M]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(super) program_size: Option<u64>,
}

impl WorkOptions {
    pub(super) fn patterns(&self) -> &[Pattern] {
        if self.no_patterns { &[] } else { &self.patterns }
    }

    pub(super) fn programs(&self) -> &[Program] {
        if self.no_programs { &[] } else { &self.programs }
    }
}
