//! What `softswap bench samefill` can be told.

use clap::Args;
use std::path::PathBuf;

/// Measure telling same-filled pages, over the memory of real programs.
///
/// Starts programs, reads their memory while they run, ends them, and has every
/// check go over all of it: forward, backward, the last word first, and
/// softswap's own.
#[derive(Args)]
#[command(after_long_help = "\
Dumps: python is a Python program with records, lists, text, arrays and buffers; compiler is gcc's
cc1 with -O2 at a large source; database SQLite in memory, a table and an index; mix is made by a
rule: 20 % zeroes, 3 % another word, 10 % equal up to the last word, 34 % text, 33 % noise. A
program that is missing is left out, and a note says so. Each dump has an equal part of --pages; a
program grows to at most 256 MiB, and its pages are repeated to make up the rest.

Checks and iterations are those of `softswap analyze pages`. All checks go over the same pages in
every round, in changing order, twice: over a whole dump, which is larger than the processor's own
caches and so is met cold by each, as reclaim meets pages; and over 128 pages at a time that have just
been brought into the cache (in_cache), where memory holds nobody up.

With --json: {\"schema\": 2, \"bench\": \"samefill\", \"pages\", \"rounds\", \"machine\": {...}, ratios,
\"dumps\": [{\"dump\", \"pages\", \"collected_pages\", \"same_filled_share\", \"zero_share\", \"other_share\",
\"checks\": [{\"variant\", \"iterations\", \"mbps\", \"cov\", \"in_cache_mbps\", \"in_cache_cov\"}]}],
\"together\": the same of all dumps,
\"notes\"}. Ratios: iterations_last_first_vs_forward is the words that last_first compares over those
that forward does; throughput_last_first_vs_forward and throughput_softswap_vs_last_first are of
throughputs, with _in_cache in the cache; with _DUMP of one dump, with _programs of all dumps but mix. Figures are medians over
the rounds, of ratios, too; softswap's own check counts no iterations (null).")]
pub(crate) struct SamefillArgs {
    /// Pages of all dumps together
    #[arg(long, value_name = "N", default_value_t = 819_200,
          value_parser = clap::value_parser!(u32).range(1024..=16_777_216))]
    pub(super) pages: u32,

    /// Rounds
    #[arg(long, value_name = "N", default_value_t = 21,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(super) rounds: u32,

    /// Also write one JSON object to FILE; - prints it instead of the table
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
}
