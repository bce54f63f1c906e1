//! When the storage of an area is told what is not needed.

use std::fmt;
use std::str::FromStr;

/// As `swapon --discard` has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Discard {
    /// Never.
    #[default]
    None,
    /// All of it, before it is first used.
    Once,
    /// Clusters, when they have become free.
    Pages,
    /// Both.
    Both,
}

impl Discard {
    const ALL: [(Discard, &str); 4] = [
        (Discard::None, "none"),
        (Discard::Once, "once"),
        (Discard::Pages, "pages"),
        (Discard::Both, "both"),
    ];

    /// Whether all of the area is discarded before it is used.
    #[must_use]
    pub(crate) fn at_start(self) -> bool {
        matches!(self, Discard::Once | Discard::Both)
    }

    /// Whether clusters are discarded when they have become free.
    #[must_use]
    pub(crate) fn of_clusters(self) -> bool {
        matches!(self, Discard::Pages | Discard::Both)
    }
}

impl fmt::Display for Discard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = Self::ALL.into_iter().find(|(discard, _)| discard == self);
        f.write_str(named.map_or("", |(_, name)| name))
    }
}

/// Not one of the words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no discard `{0}`; give once, pages, both or none")]
pub struct BadDiscard(String);

impl FromStr for Discard {
    type Err = BadDiscard;

    fn from_str(text: &str) -> Result<Self, BadDiscard> {
        let named = Self::ALL.into_iter().find(|(_, name)| *name == text);
        named.map(|(discard, _)| discard).ok_or_else(|| BadDiscard(text.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_understood_and_others_are_refused_by_name() {
        for (discard, name) in Discard::ALL {
            assert_eq!(name.parse(), Ok(discard));
            assert_eq!(discard.to_string(), name);
        }
        let refused = "Pages".parse::<Discard>().unwrap_err().to_string();
        assert!(refused.contains("Pages") && refused.contains("both"), "{refused}");
    }
}
