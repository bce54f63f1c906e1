//! What `softswap bench io` can be told.

use clap::Args;
use softswap_cli::units::parse_size;
use std::path::PathBuf;
use std::time::Duration;

/// Measure reads of a file or device by how they are waited for.
///
/// 4 KiB at random places, past the page cache: one at a time, waited for by
/// interrupt, poll, hybrid and auto, then 2 to 32 at once. Without FILE, a file
/// of its own is filled and read; it has no name and is gone when the command
/// ends. What exists is opened for reading only, unless --write.
#[derive(Args)]
#[command(after_long_help = "\
fio is run in the same rounds on the same file where it is installed (Debian: apt-get install fio;
tried with 3.33). For waiting by interrupt: io_uring and psync. For polling: io_uring with hipri
(only on queues that poll), io_uring with sqthread_poll, pvsync2 with hipri. The ratios are to the
one of each kind that was fastest here.

CPU is the user and system time per I/O of the whole process, by fio's own account of its thread
for fio, without the kernel thread that its sqthread_poll keeps busy.

pread is the bare system call in this process: fio is a process of its own, which a machine that
idles between reads may treat better or worse.

Latency at depth 1 is that of the read. softswap waits for N reads together, so depth_N has the
latency of all N; fio keeps N under way and gives each one's own. MB/s and CPU compare as they are.

With --json: {\"schema\": 2, \"bench\": \"io\", \"machine\": {...}, \"ratios\": {...}, \"rows\": [{\"variant\", \"by\",
\"depth\", \"mean_us\", \"p50_us\", \"p99_us\", \"mb_per_s\", \"cpu_us\", \"cov\", \"count\"}], \"modes\":
{\"poll\": {\"considered\", \"polled\", \"hit\", \"slept\", \"overslept\"}, ...}}. A ratio a_vs_b is a over b
by p50, the median over the rounds; *_mean by the mean latency. extra_cpu_hybrid_vs_poll is the CPU
that hybrid adds to interrupt over what poll adds. What could not be measured is null.")]
pub(crate) struct IoArgs {
    /// A file or block device to read; a file of its own without
    #[arg(value_name = "FILE")]
    pub(super) target: Option<PathBuf>,

    /// How much of it, from its start on [default: all; 1G for a file of its own]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(super) size: Option<u64>,

    /// The directory for a file of its own
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub(super) swap: PathBuf,

    /// Measure writes too, over a file of its own or a device that holds nothing
    ///
    /// Everything on the device is lost. A file that exists, a device with a
    /// file system or a partition table, and one that is mounted or otherwise
    /// in use are refused.
    #[arg(long)]
    pub(super) write: bool,

    /// Rounds that count, after one that does not
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(super) rounds: u32,

    /// How long each variant runs in a round, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "0.5", value_parser = parse_seconds)]
    pub(super) seconds: Duration,

    /// Leave fio out
    #[arg(long)]
    pub(super) no_fio: bool,

    /// Measure these variants only (names as in the table), by comma
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(super) only: Vec<String>,

    /// Also write one JSON object to FILE; - prints it instead of the table
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.01..=60.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("give seconds from 0.01 to 60".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_bounded() {
        assert_eq!(parse_seconds("0.5"), Ok(Duration::from_millis(500)));
        for text in ["", "0", "-1", "61", "NaN", "x"] {
            assert!(parse_seconds(text).is_err(), "{text}");
        }
    }
}
