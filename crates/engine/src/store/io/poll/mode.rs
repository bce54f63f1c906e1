//! Modes of waiting for a read, and the settings that select them.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Mode {
    Interrupt = 0,
    Poll = 1,
    /// Sleeps for about half of the mean time, then polls.
    Hybrid = 2,
    /// Polls if no other thread wants the CPU and the wait is short.
    Auto = 3,
}

impl Mode {
    /// All modes, in the order of their numbers.
    pub const ALL: [Mode; 4] = [Mode::Interrupt, Mode::Poll, Mode::Hybrid, Mode::Auto];

    pub fn name(self) -> &'static str {
        ["interrupt", "poll", "hybrid", "auto"][self as usize]
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a way to wait; choose interrupt, poll, hybrid or auto")]
pub struct BadMode(pub(crate) String);

impl FromStr for Mode {
    type Err = BadMode;

    fn from_str(text: &str) -> Result<Mode, BadMode> {
        Mode::ALL
            .into_iter()
            .find(|mode| mode.name() == text)
            .ok_or_else(|| BadMode(text.to_string()))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sleep {
    Adaptive,
    /// In ns; 0 disables it.
    Fixed(u32),
}

/// Longest fixed sleep, in ns; polling after a longer one gains nothing.
pub(crate) const MAX_SLEEP_NS: u32 = 100_000_000;

/// Changes apply from the next I/O on.
#[derive(Debug)]
pub struct Knobs {
    mode: AtomicU8,
    sleep_ns: AtomicU32,
}

const ADAPTIVE: u32 = u32::MAX;

impl Knobs {
    pub(crate) fn new(mode: Mode) -> Knobs {
        Knobs { mode: AtomicU8::new(mode as u8), sleep_ns: AtomicU32::new(ADAPTIVE) }
    }

    pub fn mode(&self) -> Mode {
        Mode::ALL[usize::from(self.mode.load(Relaxed)) % Mode::ALL.len()]
    }

    pub fn set_mode(&self, mode: Mode) {
        self.mode.store(mode as u8, Relaxed);
    }

    pub fn sleep(&self) -> Sleep {
        match self.sleep_ns.load(Relaxed) {
            ADAPTIVE => Sleep::Adaptive,
            ns => Sleep::Fixed(ns),
        }
    }

    pub(crate) fn set_sleep(&self, sleep: Sleep) {
        self.sleep_ns.store(
            match sleep {
                Sleep::Adaptive => ADAPTIVE,
                Sleep::Fixed(ns) => ns.min(MAX_SLEEP_NS),
            },
            Relaxed,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mode_names_are_parsed() {
        for mode in Mode::ALL {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        let refused = "banana".parse::<Mode>().unwrap_err().to_string();
        for word in ["banana", "interrupt", "poll", "hybrid", "auto"] {
            assert!(refused.contains(word), "{refused}");
        }
    }

    #[test]
    fn knobs_return_their_settings() {
        let knobs = Knobs::new(Mode::Auto);
        assert_eq!((knobs.mode(), knobs.sleep()), (Mode::Auto, Sleep::Adaptive));
        knobs.set_mode(Mode::Hybrid);
        knobs.set_sleep(Sleep::Fixed(0));
        assert_eq!((knobs.mode(), knobs.sleep()), (Mode::Hybrid, Sleep::Fixed(0)));
        knobs.set_sleep(Sleep::Fixed(u32::MAX));
        assert_eq!(knobs.sleep(), Sleep::Fixed(MAX_SLEEP_NS));
    }
}
