//! What `softswap bench swap-in` can be told.

use clap::Args;
use softswap_cli::units::parse_size;
use std::path::PathBuf;

/// Threads that one fault context each could not serve.
const MOST_THREADS: u32 = 64;

/// Measure a program that swaps, by how its swap-ins are waited for.
///
/// The program writes one word at a time to random pages of a region that
/// cannot be compressed, and compares every page at the end. Only the touching
/// is timed. Faults are those of pages that were on disk, by the engine's own
/// account; they include what else a fault does.
#[derive(Args)]
#[command(after_long_help = "\
With --json: {\"schema\": 2, \"bench\": \"swap-in\", \"machine\": {...}, \"ratios\": {...}, \"rows\": [{\"variant\",
\"mode\", \"threads\", \"seconds\", \"cpu_seconds\", \"fault_p50_us\", \"fault_p99_us\", \"faults\",
\"considered\", \"polled\", \"hit\", \"slept\", \"overslept\", \"polled_share\", \"hit_share\",
\"direct_reclaims\", \"pages_written\", \"cov\", \"count\"}]}. Times are medians over the rounds, the
other counts are of all rounds together. swapin_interrupt_vs_MODE_tN is the time by interrupt over
the time by MODE with N threads, the median over the rounds; swapin_cpu_MODE_vs_interrupt_tN the CPU
seconds of MODE over those by interrupt. Faults'
latencies come from a histogram of four steps to the octave.")]
pub(crate) struct SwapInArgs {
    /// The DRAM budget
    #[arg(long, value_name = "SIZE", default_value = "128M", value_parser = parse_size)]
    pub(super) memory: u64,

    /// How much the program touches [default: four times the budget]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(super) region: Option<u64>,

    /// Touches in a run, all threads together
    #[arg(long, value_name = "N", default_value_t = 40_000,
          value_parser = clap::value_parser!(u32).range(100..))]
    pub(super) touches: u32,

    /// Numbers of threads to try
    #[arg(long, value_name = "N,...", default_value = "1,8", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_THREADS)))]
    pub(super) threads: Vec<u32>,

    /// Rounds
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(super) rounds: u32,

    /// The directory for the swap files
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub(super) swap: PathBuf,

    /// Also write one JSON object to FILE; - prints it instead of the table
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,

    /// Damage a page, which must be noticed; for tests
    #[arg(long, hide = true)]
    pub(super) damage: bool,
}
