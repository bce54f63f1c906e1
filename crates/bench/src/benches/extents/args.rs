//! What `softswap bench extents` can be told.

use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

/// More tasks would not fit in most machines.
const MOST_TASKS: i64 = 64;

/// Measure what looking up extents costs, against a list and a red-black tree.
///
/// Tasks swap pages out of and back into their memory, over an area in many
/// extents, with a look-up for each page. The device is RAM, so that the
/// look-ups show. Nothing is written to a disk but the claims of one file.
#[derive(Args)]
#[command(after_long_help = "\
Variants: list is a linked list with one shared cursor that walks forward from the last extent
found, as in Linux before 5.4, which takes no lock either; rbtree a red-black tree
(intrusive-collections), as since 5.4, without a lock; softswap the engine's own map; none makes no
look-ups, as if the area lay in one piece. The rivals' nodes lie side by side, which is kinder to
them than an allocation for each.

Swap-out takes slots one after the other in clusters of 512, each task in clusters of its own;
swap-in any page of the task's clusters. A page is one look-up and one copy. Tasks that share a
processor take turns after every page, as if each had one of its own. The look-up share is
what is missing of the throughput of none in the same round; around 0 it may come out negative.
The table has 20 GiB in extents of 1 MiB, the sweep 80 GiB with 4 tasks.

Look-ups alone: random_ns any page of the area, random_extent_ns any page of any extent,
sequential_ns one page after the other. Lengths: equal; skewed, every magnitude equally often;
bimodal, half of the extents one or two pages each, all at the start.

The file is allocated in turns with another one; its extents are what FIEMAP says. It has no name.

With --json: {\"schema\": 2, \"bench\": \"extents\", \"machine\": {...}, \"ratios\": {...}, \"tasks\": [{\"variant\",
\"tasks\", \"swapout_kbps\", \"swapout_lookup_share\", \"swapout_cov\", \"swapin_...\"}], \"sweep\": [the same
with \"extents\" and \"lengths\"], \"lookups\": [{\"extents\", \"lengths\", \"variant\", \"random_ns\",
\"random_extent_ns\", \"sequential_ns\", \"cov\", \"bytes\", \"bytes_per_extent\"}], \"file\": {\"extents\",
\"bytes\", \"lookups\": [...]} or null}. Ratios: swapout_softswap_vs_list_N is the throughput of
softswap over that of the list with N tasks; lookup_rbtree_vs_softswap_N the time of a random
look-up in the tree over that in softswap's map, with N extents of equal lengths, _skewed and
_bimodal of others, _by_extent by random_extent_ns; swapout_softswap_84656_vs_2 the throughput with
84656 extents over that with 2. Everything is a median over the rounds, of ratios, too.")]
pub(crate) struct ExtentsArgs {
    /// Numbers of tasks for the table
    #[arg(long, value_name = "N,...", default_value = "4,8", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(1..=MOST_TASKS))]
    pub(super) tasks: Vec<u32>,

    /// How long each variant swaps in a round and direction, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "0.03", value_parser = parse_seconds)]
    pub(super) seconds: Duration,

    /// Rounds
    #[arg(long, value_name = "N", default_value_t = 21,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(super) rounds: u32,

    /// Pieces in which the file is made to grow
    #[arg(long, value_name = "N", default_value_t = 10_000,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(super) pieces: u32,

    /// The directory for the file
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub(super) swap: PathBuf,

    /// Also write one JSON object to FILE; - prints it instead of the table
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    match text.trim().parse::<f64>() {
        Ok(seconds) if (0.001..=60.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("give seconds from 0.001 to 60".into()),
    }
}
