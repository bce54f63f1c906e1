//! What `softswap bench swap` can be told, and what follows from that.

use super::plan::{self, Pattern, Side};
use super::programs::Program;
use clap::Args;
use softswap_cli::refusal::Refusal;
use softswap_cli::units::parse_size;
use softswap_engine::door::settings::Config;
use std::path::PathBuf;

/// What can be asked of softswap's side: the rest is the bench's own.
const SETTINGS: [&str; 6] = ["codec", "pool", "poll", "encrypt", "avoid_move", "without"];
/// More would only take turns.
const MOST_THREADS: u32 = 64;
/// The kernel's areas are so many times as large as what is to go there, at most.
const AREA_TIMES: u64 = 4;

/// Measure softswap beside the kernel's swap under the same memory limit.
///
/// The sides are softswap, and the kernel's swap on a file, on zram (lz4), and
/// on a file with zswap in front. For each pattern a program fills its working
/// set, walks over it, and compares every page at the end; then whole programs
/// run. Each run is held by a memory control group of the same
/// limit. Without root softswap runs alone, without a group unless one may be
/// made. What is changed on the machine (swap areas, a zram device, zswap's
/// settings, control groups) is put back however the bench ends.
#[derive(Args)]
#[command(after_long_help = "\
The limit is 25 % or 50 % of the working set. Inside it softswap has a budget (--memory) that leaves
room for what it does not manage: 3 MiB and 1/64 of the limit in the first round, later what was seen
in the rounds before, and 1 MiB. Its group may not swap. For the
kernel's sides swappiness and page-cluster are as they are on the machine, but for zswap, whose
page-cluster is 0; the swap file has all its storage ahead and lies beside softswap's. Their areas are
four times as large as what goes there: one that is half full is slower.

The kernel counts zram's packed pages in no group, and zswap's in none of version 1: outside says how
much DRAM these had beyond the limit. softswap_same_dram is softswap with that much more: right after
such a side, its limit is the side's and what was outside at most, pattern by pattern. In groups of
version 2 (settings: cgroup_version) zswap's packed pages are within the limit from Linux 5.19 on, so
softswap_same_dram does not run beside it; outside is then by how much they passed the limit, because
the kernel counts them while it makes room.

A touch reads or writes one word of a page. random_* go anywhere; sequential_* from page to page,
each thread from a place of its own; of hot_set's accesses 90 % go to 10 % of the pages (15 % where half of
them fit), and one in four writes. Each pattern has a process of its own, and a phase there for each
number of threads. A phase lasts a fixed time; before it as many pages are touched as
fit, for four times as long at most. softswap meets kernel_zram on compressible data (pages of a
Python process), kernel_file on incompressible, kernel_zswap on half of each.

With --json: {\"schema\": 2, \"bench\": \"swap\", \"machine\": {...}, \"settings\", \"ratios\": {...}, \"rows\": [{\"side\",
\"data\", \"share_percent\", \"pattern\", \"threads\", \"touches_per_s\", \"cov\", \"cpu_us\", \"p50_us\",
\"p99_us\", \"count\"}], \"sessions\": [{\"side\", \"data\", \"share_percent\", \"limit_bytes\",
\"memory_bytes\", \"fill_mb_per_s\", \"peak_bytes\", \"oom_kills\", \"outside_bytes\", \"dram_bytes\",
\"swapped_bytes\", \"count\", \"came_through\"}], \"programs\": [{\"program\", \"side\", \"beside\", \"share_percent\",
\"seconds\", \"cpu_seconds\", \"cov\", \"limit_bytes\", \"peak_bytes\",
\"oom_kills\", \"outside_bytes\", \"dram_bytes\", \"count\", \"came_through\"}], \"faults\", \"touches\"}. A side
that the kernel kills five times in a row has not come through and has no other figures. Ratios are medians
over the rounds of what softswap did over what the other did in the same round:
PATTERN_softswap_vs_SIDE of touches a second, with _50 for 50 %, _tN for N threads;
PATTERN_softswap_same_dram_vs_SIDE likewise. PROGRAM_softswap_vs_SIDE and
PROGRAM_softswap_same_dram_vs_SIDE are softswap's time over the other's (_50, _75 likewise), ..._vs_best_kernel over
that of the fastest of the kernel's sides; PROGRAM_SIDE_vs_in_memory and
PROGRAM_cpu_SIDE_vs_in_memory over the program's own as it is, with _100 under softswap with everything
fitting, softswap_same_dram_as_SIDE with the DRAM of that side.

--sweep: every pattern, on all three contents, and every program with 75, 50 and 25 % of its memory. In each
round every cell runs once in every setting, beginning with another one, with the same budget. The best
fixed setting is the one with the lowest median, so luck is on its side. Ratios:
WORK_default_vs_best_fixed are medians over the rounds of what softswap as it comes took over what that
one took (_50, _75, _tN likewise), with PATTERN_CONTENT for WORK in patterns; a cell above 1.05 is lost.
default_vs_best_fixed is the geometric mean of all cells.
Without a codec nothing goes to the pool: that setting runs with one size. GNU sort runs with every number
of threads, other programs with one. JSON: \"cells\", \"lost_cells\", \"rows\": [{\"work\", \"share_percent\",
\"threads\", \"best_fixed\", \"lost\", \"settings\": [{\"setting\", \"seconds\", \"cov\", \"count\"}]}], seconds of a
program or of one touch.")]
pub(crate) struct SwapArgs {
    /// Who swaps; softswap is compared with the others
    #[arg(long, value_name = "SIDE,...", value_delimiter = ',', value_enum,
          default_values_t = Side::ALL)]
    pub(super) sides: Vec<Side>,

    /// How memory is accessed
    #[arg(long, value_name = "PATTERN,...", value_delimiter = ',', value_enum,
          default_values_t = Pattern::ALL)]
    patterns: Vec<Pattern>,

    /// Leave the patterns out
    #[arg(long, conflicts_with = "patterns")]
    no_patterns: bool,

    /// Numbers of threads to try [default: 1,4, with --sweep 1,2]
    #[arg(long, value_name = "N,...", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_THREADS)))]
    threads: Vec<u32>,

    /// What the pattern program works on [default: 128M, with --quick 64M]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(super) working_set: Option<u64>,

    /// How long each pattern is measured [default: 0.5, with --quick 0.04]
    #[arg(long, value_name = "S", value_parser = parse_seconds)]
    pub(super) seconds: Option<f64>,

    /// Whole programs
    #[arg(long, value_name = "PROGRAM,...", value_delimiter = ',', value_enum,
          default_values_t = Program::ALL)]
    programs: Vec<Program>,

    /// Leave the programs out
    #[arg(long, conflicts_with = "programs")]
    no_programs: bool,

    /// What the programs take, about [default: 512M, with --quick 96M]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(super) program_size: Option<u64>,

    /// Rounds [default: 5, with --quick 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(super) rounds: Option<u32>,

    /// Compare softswap as it comes with every fixed setting instead: no codec, lz4 or zstd, and
    /// 10, 25, 50 or 80 % of the budget for the pool
    #[arg(long, conflicts_with_all = ["sides", "softswap", "html", "plots", "damage"])]
    pub(super) sweep: bool,

    /// Less of everything, to see that it works
    #[arg(long)]
    pub(super) quick: bool,

    /// The directory for softswap's swap files and the kernel's
    #[arg(long, visible_alias = "dir", value_name = "DIR", default_value = "/var/tmp")]
    pub(super) swap: PathBuf,

    /// Also write one JSON object to FILE; - prints it instead of the table
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,

    /// Also write a page with tables and plots to FILE
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,

    /// Also write the plots to DIR, each as a file (SVG)
    #[arg(long, value_name = "DIR")]
    pub(super) plots: Option<PathBuf>,

    /// A setting of softswap's side, such as codec=lz4, pool=10% or without=standby; may be
    /// repeated
    #[arg(long, value_name = "NAME=VALUE")]
    pub(super) softswap: Vec<String>,

    /// Damage a page, which must be noticed; for tests
    #[arg(long, hide = true)]
    pub(super) damage: bool,
}

pub(super) fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.01..=60.0).contains(&seconds) => Ok(seconds),
        _ => Err("give between 0.01 and 60 seconds".into()),
    }
}

impl SwapArgs {
    /// How softswap is set up.
    pub(super) fn softswap_config(&self) -> Result<Config, Refusal> {
        let mut config = Config::default();
        for given in &self.softswap {
            let refuse = |why: String| Refusal::usage(format!("--softswap {given}: {why}"));
            let (name, value) = given
                .split_once('=')
                .ok_or_else(|| refuse("give a name and a value, such as codec=lz4".into()))?;
            if !SETTINGS.contains(&name) {
                return Err(refuse(format!("there are {}", SETTINGS.join(", "))));
            }
            config.set(name, value).map_err(refuse)?;
        }
        Ok(config)
    }

    fn pick<T>(&self, asked: Option<T>, usual: T, quick: T) -> T {
        asked.unwrap_or(if self.quick { quick } else { usual })
    }

    /// None where they are to be left out.
    pub(super) fn patterns(&self) -> &[Pattern] {
        if self.no_patterns { &[] } else { &self.patterns }
    }

    pub(super) fn programs(&self) -> &[Program] {
        if self.no_programs { &[] } else { &self.programs }
    }

    pub(super) fn threads(&self) -> &[u32] {
        match self.threads.as_slice() {
            [] if self.sweep => &[1, 2],
            [] => &[1, 4],
            asked => asked,
        }
    }

    pub(super) fn rounds(&self) -> u32 {
        self.pick(self.rounds, 5, 1)
    }

    pub(super) fn working_set(&self) -> u64 {
        self.pick(self.working_set, 128 << 20, 64 << 20)
    }

    pub(super) fn program_size(&self) -> u64 {
        // Less would compare how programs start and end.
        self.pick(self.program_size, 512 << 20, 96 << 20)
    }

    pub(super) fn seconds(&self) -> f64 {
        self.pick(self.seconds, 0.5, 0.04)
    }

    /// How much of its memory fits in a program's limit, in percent.
    pub(super) fn program_shares(&self) -> &'static [u32] {
        if self.quick { &plan::QUICK_PROGRAM_SHARES } else { &plan::PROGRAM_SHARES }
    }

    /// What the largest of all takes.
    pub(super) fn most_bytes(&self) -> u64 {
        self.working_set().max(self.program_size())
    }

    /// An area of the kernel's: of one that is more than half full the kernel takes
    /// each page's slot back as soon as it is read, and must write it again.
    pub(super) fn area_bytes(&self) -> u64 {
        self.most_bytes().saturating_mul(AREA_TIMES).next_multiple_of(2 << 20)
    }

    /// What everything may take on the file system: that area if it is a file, softswap's,
    /// what programs read and what they write.
    pub(super) fn disk_bytes(&self) -> u64 {
        let has_file = |side| matches!(side, &Side::KernelFile | &Side::KernelZswap);
        let file_bytes = if self.sides.iter().any(has_file) { self.area_bytes() } else { 0 };
        file_bytes.saturating_add(self.most_bytes().saturating_mul(4))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        swap: SwapArgs,
    }

    fn config(settings: &[&str]) -> Result<Config, Refusal> {
        let line = settings.iter().flat_map(|setting| ["--softswap", setting]);
        Line::parse_from(std::iter::once("swap").chain(line)).swap.softswap_config()
    }

    #[test]
    fn settings_of_softswaps_side_are_taken_or_refused_by_name() {
        assert_eq!(config(&[]).unwrap(), Config::default());
        let asked = config(&["codec=none", "pool=10%", "without=standby,strides"]).unwrap();
        assert_eq!(
            (asked.codec.to_string(), asked.pool.to_string()),
            ("none".into(), "10%".into())
        );
        assert_eq!(asked.without.to_string(), "standby,strides");
        for (bad, part) in [
            ("codec", "give a name and a value"),
            ("memory_bytes=1", "there are codec, pool"),
            ("pool=90%", "from 0% to 80%"),
            ("without=steam", "there are refault_distance"),
        ] {
            let text = config(&[bad]).unwrap_err().to_string();
            assert!(text.contains(bad) && text.contains(part), "{text}");
        }
    }
}
