//! The configured compressor, which can change while the program runs.

use super::Compressor;
use softswap_sys::zstd::{DEFAULT_LEVEL, LEVELS};
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// `auto`: LZ4 while the pool has plenty of free space, zstd afterwards.
    Auto,
    /// `lz4`, `zstd`, `zstd:LEVEL`; or `none`: pages go directly to the disk.
    Fixed(Option<Compressor>),
}

impl Choice {
    pub const NONE: Choice = Choice::Fixed(None);
    pub const LZ4: Choice = Choice::Fixed(Some(Compressor::Lz4));
    /// All choices with their names, except other levels of zstd.
    pub const NAMES: [(&str, Choice); 4] = [
        ("auto", Choice::Auto),
        ("lz4", Choice::LZ4),
        ("zstd", Choice::Fixed(Some(Compressor::Zstd { level: DEFAULT_LEVEL }))),
        ("none", Choice::NONE),
    ];
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Choice::Auto => f.write_str("auto"),
            Choice::Fixed(None) => f.write_str("none"),
            Choice::Fixed(Some(Compressor::Zstd { level })) if *level != DEFAULT_LEVEL => {
                write!(f, "zstd:{level}")
            }
            Choice::Fixed(Some(compressor)) => f.write_str(compressor.codec().name()),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a codec; choose auto, lz4, zstd, zstd:LEVEL with a level from {first} to \
     {last}, or none",
    first = LEVELS.start(), last = LEVELS.end()
)]
pub struct BadChoice(pub(crate) String);

impl FromStr for Choice {
    type Err = BadChoice;

    fn from_str(text: &str) -> Result<Choice, BadChoice> {
        let bad = || BadChoice(text.to_string());
        if let Some((_, choice)) = Choice::NAMES.iter().find(|(name, _)| *name == text) {
            return Ok(*choice);
        }
        let level = text.strip_prefix("zstd:").ok_or_else(bad)?;
        // `parse` takes a plus sign, too.
        let level = level.parse().ok().filter(|_| !level.starts_with('+'));
        let level = level.filter(|level| LEVELS.contains(level)).ok_or_else(bad)?;
        Ok(Choice::Fixed(Some(Compressor::Zstd { level })))
    }
}

#[derive(Debug)]
pub struct Selector(AtomicU8);

const NONE: u8 = 0;
const LZ4: u8 = 1;
/// Code of the lowest zstd level. Those of higher levels follow.
const ZSTD: u8 = 2;
const AUTO: u8 = u8::MAX;

impl Selector {
    pub(crate) fn new(choice: Choice) -> Selector {
        Selector(AtomicU8::new(code_of(choice)))
    }

    pub fn get(&self) -> Choice {
        match self.0.load(Relaxed) {
            NONE => Choice::NONE,
            LZ4 => Choice::LZ4,
            AUTO => Choice::Auto,
            code => Choice::Fixed(Some(Compressor::Zstd {
                level: LEVELS.start() + (code - ZSTD) as i8,
            })),
        }
    }

    pub fn set(&self, choice: Choice) {
        self.0.store(code_of(choice), Relaxed);
    }
}

fn code_of(choice: Choice) -> u8 {
    match choice {
        Choice::Auto => AUTO,
        Choice::Fixed(None) => NONE,
        Choice::Fixed(Some(Compressor::Lz4)) => LZ4,
        Choice::Fixed(Some(Compressor::Zstd { level })) => {
            let level = level.clamp(*LEVELS.start(), *LEVELS.end());
            ZSTD + (level - LEVELS.start()) as u8
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every_choice() -> impl Iterator<Item = Choice> {
        let levels = LEVELS.map(|level| Choice::Fixed(Some(Compressor::Zstd { level })));
        [Choice::Auto, Choice::NONE, Choice::LZ4].into_iter().chain(levels)
    }

    #[test]
    fn choice_display_round_trips() {
        for choice in every_choice() {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        assert_eq!("zstd".parse(), Ok(Choice::Fixed(Some(Compressor::Zstd { level: 1 }))));
        assert_eq!("zstd:1".parse::<Choice>().unwrap().to_string(), "zstd");
        assert_eq!("zstd:-1".parse(), Ok(Choice::Fixed(Some(Compressor::Zstd { level: -1 }))));
    }

    #[test]
    fn invalid_choice_is_rejected_with_valid_ones() {
        for text in [
            "",
            "snappy",
            "LZ4",
            "lz4:1",
            "none:1",
            "auto:1",
            "Auto",
            "zstd:",
            "zstd:99",
            "zstd:10",
            "zstd:-6",
            "zstd:+1",
            "zstd:1.5",
            "zstd: 1",
            " zstd",
            "zstd:1000",
            "zstd:fast",
        ] {
            let refused = text.parse::<Choice>().unwrap_err().to_string();
            for part in [&format!("{text:?}"), "auto", "lz4", "zstd:LEVEL", "from -5 to 9", "none"]
            {
                assert!(refused.contains(part), "{refused}");
            }
        }
    }
}
