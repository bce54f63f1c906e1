//! Event simulation of a cluster, with the placement that runs use: lost pages, and latencies.

mod shards;
mod model;

pub use model::simulate;

use clap::Args;
use serde::Serialize;

/// Options of the simulation.
#[derive(Args, Clone, Debug)]
pub struct Settings {
    /// Primaries, each with a replica
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u16).range(2..=500))]
    pub servers: u16,

    /// Programs that swap to the cluster
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub clients: u16,

    /// Extents of 31 pages of each client
    #[arg(long, value_name = "N", default_value_t = 8192, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub extents: u32,

    /// Copies of each page
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=2))]
    pub copies: u8,

    /// Pages that each client reads per second
    #[arg(long, value_name = "N", default_value_t = 5000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub reads: u32,

    /// Extents that each client writes per second
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub writes: u32,

    /// Primaries that fail, at random times
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub deaths: u32,

    /// Primaries that fail together with their replica
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub pair_deaths: u32,

    /// Delay of the replicas
    #[arg(long, value_name = "MS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=60_000))]
    pub replica_lag_ms: u32,

    /// Time until a replica becomes the primary
    #[arg(long, value_name = "MS", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=600_000))]
    pub failover_ms: u32,

    /// Time until a failed server is back, as a complete replica
    #[arg(long, value_name = "S", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub return_s: u32,

    /// Duration
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub seconds: u32,

    /// Seed of the random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latencies {
    pub count: usize,
    pub p50_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    pub longest_us: f64,
}

impl Latencies {
    fn of(mut all_ns: Vec<u64>) -> Latencies {
        all_ns.sort_unstable();
        let at = |share: f64| {
            let rank = (all_ns.len() as f64 * share) as usize;
            all_ns.get(rank).or(all_ns.last()).map_or(0.0, |ns| *ns as f64 / 1000.0)
        };
        Latencies {
            count: all_ns.len(),
            p50_us: at(0.5),
            p99_us: at(0.99),
            p999_us: at(0.999),
            longest_us: at(1.0),
        }
    }
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Found {
    pub reads: Latencies,
    pub writes: Latencies,
    /// Writes that timed out: their pages stayed in memory.
    pub failed_writes: u64,
    pub late_reads: u64,
    pub lost_extents: u64,
    pub repaired_copies: u64,
    pub longest_repair_s: f64,
    pub busy_share: f64,
}
