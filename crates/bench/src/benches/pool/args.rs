//! What `softswap bench pool` can be told.

use clap::Args;
use std::path::PathBuf;

/// More would only take turns.
const MOST_THREADS: u32 = 64;

/// Measure the compressed pool, beside zram.
///
/// A store is what page-out does with a page that stays in DRAM: look whether
/// it is same-filled, compress it, put it into the pool. A load takes it from
/// there and unpacks it, an invalidation frees it. zram does the same behind a
/// block device of the bench's own, with O_DIRECT: 4 KiB written, read, and
/// discarded. It needs root and the zram module, and is left out with a note
/// where these are missing. Devices that exist are not touched; its own is
/// removed however the bench ends.
#[derive(Args)]
#[command(after_long_help = "\
Kinds of pages, all of them LZ4's to pack and none same-filled:
  pointers     nodes of 64 bytes: a table of functions, three addresses or null, two small numbers
  text         words of a vocabulary of 600, frequent ones short, with punctuation
  half_random  2 KiB of random numbers, then zeroes
  counters     numbers of eight bytes that go up by 1 to 3
  python       memory of a Python process full of records, as far as it packs; not the same in
               every run, and left out where there is no python3
In the table of waste also:
  mixed        all of these kinds
  sizes        random numbers of 8 to 3007 bytes, then zeroes

Pages are stored in sequence, loaded and invalidated in random orders, and dealt out to the threads.
Time is from the first thread's start to the last one's end, so operations a second are those of
all threads together. A system call is part of each of zram's.

Waste is the share of the memory in use that holds no packed bytes: after filling; with half of the
pages invalidated and other pages stored in their place; and after four times as many random
replacements as there are pages. halved is in between, with half of them gone.

With --json: {\"schema\": 2, \"bench\": \"pool\", \"machine\": {...}, \"ratios\": {...}, \"kinds\": [{\"kind\",
\"packed_bytes\"}], \"rows\": [{\"variant\", \"kind\", \"threads\", \"op\", \"ops_per_s\", \"cov\", \"count\"}],
\"waste\": [{\"variant\", \"content\", \"filled_percent\", \"halved_percent\", \"refilled_percent\",
\"churned_percent\"}]}. OP_softswap_vs_zram_tN is how many times as many operations softswap did with
N threads, over all kinds together, the median over the rounds; without _tN it is for one thread.
waste_percent is softswap's largest of filled, refilled and churned, waste_percent_STATE that of one
of them. What could not be measured is null.")]
pub(crate) struct PoolArgs {
    /// Pages of each kind
    #[arg(long, value_name = "N", default_value_t = 8192,
          value_parser = clap::value_parser!(u32).range(64..=1 << 20))]
    pub(super) pages: u32,

    /// Pages in a store whose waste is looked at
    #[arg(long, value_name = "N", default_value_t = 65_536,
          value_parser = clap::value_parser!(u32).range(64..=1 << 22))]
    pub(super) objects: u32,

    /// Numbers of threads to try
    #[arg(long, value_name = "N,...", default_value = "1,2,4", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_THREADS)))]
    pub(super) threads: Vec<u32>,

    /// Rounds that count, after one in which every page is compared
    #[arg(long, value_name = "N", default_value_t = 9,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(super) rounds: u32,

    /// Leave zram out
    #[arg(long)]
    pub(super) no_zram: bool,

    /// Also write one JSON object to FILE; - prints it instead of the table
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,

    /// Damage a page, which must be noticed; for tests
    #[arg(long, hide = true)]
    pub(super) damage: bool,
}
