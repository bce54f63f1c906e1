//! The two fault mechanisms, and the choice of a process.

use crate::memory::with_set;
use crate::{self_memory, uffd};
use std::cell::Cell;
use std::fmt;
use std::io;
use std::str::FromStr;

/// The mechanism by which a touch of an absent page reaches the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u64)]
pub enum Faults {
    /// userfaultfd if the kernel and the container allow it, else page protection.
    #[default]
    Auto = 0,
    /// userfaultfd: absent pages are missing, and a touch raises SIGBUS.
    Userfaultfd = 1,
    /// Page protection: absent pages are inaccessible, and a touch raises SIGSEGV.
    Protection = 2,
}

impl FromStr for Faults {
    type Err = String;

    fn from_str(text: &str) -> Result<Faults, String> {
        let found = Faults::NAMES.iter().find(|(name, _)| *name == text);
        found
            .map(|(_, faults)| *faults)
            .ok_or_else(|| format!("\"{text}\" is not \"auto\", \"userfaultfd\" or \"protection\""))
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name =
            Faults::NAMES.iter().find(|(_, faults)| faults == self).map_or("", |(name, _)| name);
        f.write_str(name)
    }
}

impl Faults {
    pub const NAMES: [(&str, Faults); 3] = [
        ("auto", Faults::Auto),
        ("userfaultfd", Faults::Userfaultfd),
        ("protection", Faults::Protection),
    ];

    pub fn settled(self) -> Faults {
        match self {
            Faults::Auto if uffd::is_allowed() => Faults::Userfaultfd,
            Faults::Auto => Faults::Protection,
            decided => decided,
        }
    }

    pub fn check(self) -> io::Result<()> {
        match self.settled() {
            Faults::Protection => self_memory::try_out(),
            Faults::Userfaultfd | Faults::Auto => uffd::try_out(),
        }
    }
}

thread_local! {
    static CURRENT: Cell<Faults> = const { Cell::new(Faults::Auto) };
}

/// Runs `body`. The windows that it reserves use this mechanism.
pub fn taken<R>(faults: Faults, body: impl FnOnce() -> R) -> R {
    with_set(&CURRENT, faults, body)
}

pub(crate) fn in_force() -> Faults {
    CURRENT.get().settled()
}
