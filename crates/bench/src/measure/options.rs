//! Options shared by several benchmarks.

use clap::builder::RangedI64ValueParser;
use clap::{Args, ValueEnum};
use softswap_cli::refusal::Refusal;
use softswap_cli::swapdir::{self, SwapDir};
use softswap_cli::units;
use softswap_sys::memory_limits;
use std::fmt::Display;
use std::ops::RangeBounds;
use std::path::PathBuf;
use std::time::Duration;

/// Options of a benchmark with swap files; `ROUNDS` is the default.
#[derive(Args)]
pub(crate) struct InRounds<const ROUNDS: u32> {
    /// Rounds, in which the variants take turns
    #[arg(long, value_name = "N", default_value = Self::DEFAULT, value_parser = within(1..=1000))]
    pub(crate) rounds: u32,

    /// The directory for swap files
    #[arg(long, alias = "dir", value_name = "DIR", default_value = "/var/tmp")]
    pub(crate) swap: PathBuf,
}

impl<const ROUNDS: u32> InRounds<ROUNDS> {
    /// `default_value_t` would keep the first text in a static that all values of `ROUNDS` share.
    const DEFAULT: &'static str = match ROUNDS {
        5 => "5",
        9 => "9",
        15 => "15",
        _ => panic!("no text for this default"),
    };

    /// Fails without space for `bytes`.
    pub(crate) fn dir(&self, bytes: u64) -> Result<SwapDir, Refusal> {
        swapdir::check("--swap", &self.swap, bytes)
    }
}

pub(crate) fn check_memory(option: impl Display, needed_bytes: u64) -> Result<(), Refusal> {
    let available_bytes = memory_limits::available().bytes;
    let [needed, available] = [needed_bytes, available_bytes].map(units::bytes);
    match available_bytes < needed_bytes {
        true => Err(Refusal::usage(format!(
            "{option}: {needed} of memory are needed, but {available} are available; give less"
        ))),
        false => Ok(()),
    }
}

/// Accepts the numbers in `range`.
pub(crate) fn within(range: impl RangeBounds<i64>) -> RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(range)
}

pub(crate) fn parse_seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.001..=600.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("give between 0.001 and 600 seconds".into()),
    }
}

pub(crate) trait Named: ValueEnum {
    fn name(&self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().into())
    }

    fn all() -> Vec<Self> {
        Self::value_variants().to_vec()
    }
}

impl<T: ValueEnum> Named for T {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn benchmarks_have_their_own_numbers_of_rounds() {
        let default_of = |command: clap::Command| {
            let found = command.get_matches_from(["bench"]);
            *found.get_one::<u32>("rounds").unwrap()
        };
        assert_eq!(default_of(InRounds::<9>::augment_args(clap::Command::new("bench"))), 9);
        assert_eq!(default_of(InRounds::<5>::augment_args(clap::Command::new("bench"))), 5);
    }
}
