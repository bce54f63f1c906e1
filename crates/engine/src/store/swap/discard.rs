//! Setting for the discard of an area's unused storage.

use std::fmt;
use std::str::FromStr;

/// Discard policy, as in `swapon --discard`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Discard {
    #[default]
    None,
    /// The whole area is discarded before its first use.
    Once,
    /// Clusters that have become free are discarded.
    Pages,
    Both,
}

impl Discard {
    const ALL: [(Discard, &str); 4] = [
        (Discard::None, "none"),
        (Discard::Once, "once"),
        (Discard::Pages, "pages"),
        (Discard::Both, "both"),
    ];

    pub(crate) fn at_start(self) -> bool {
        matches!(self, Discard::Once | Discard::Both)
    }

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

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a value of discard; give once, pages, both or none")]
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
    fn discard_words_are_parsed() {
        for (discard, name) in Discard::ALL {
            assert_eq!(name.parse(), Ok(discard));
            assert_eq!(discard.to_string(), name);
        }
        let refused = "Pages".parse::<Discard>().unwrap_err().to_string();
        assert!(refused.contains("Pages") && refused.contains("both"), "{refused}");
    }
}
