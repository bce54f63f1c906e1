//! The configured limit of the compressed pool: a share of the budget, a size, or automatic.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolLimit {
    /// Adapts, from [`PoolLimit::MIN`] to [`PoolLimit::LARGEST`].
    Auto,
    Percent(u8),
    Bytes(u64),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a limit for the pool; give auto, a share from 0% to {MAX_POOL_PERCENT}% of \
     the budget, or a size such as 64M"
)]
pub struct BadPoolLimit(String);

/// A larger pool would leave too little memory for resident pages.
const MAX_POOL_PERCENT: u8 = 80;

impl PoolLimit {
    pub const LARGEST: PoolLimit = PoolLimit::Percent(MAX_POOL_PERCENT);
    /// Lower bound of `Auto`: small, because a working set that just fits loses as much.
    pub const MIN: PoolLimit = PoolLimit::Percent(2);

    /// A size is cut to the upper bound.
    pub fn bytes_of(self, memory_bytes: usize) -> usize {
        let share = |percent: u8| memory_bytes / 100 * usize::from(percent);
        match self {
            PoolLimit::Auto => share(MAX_POOL_PERCENT),
            PoolLimit::Percent(percent) => share(percent),
            PoolLimit::Bytes(bytes) => {
                usize::try_from(bytes).unwrap_or(usize::MAX).min(share(MAX_POOL_PERCENT))
            }
        }
    }
}

impl std::fmt::Display for PoolLimit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PoolLimit::Auto => f.write_str("auto"),
            PoolLimit::Percent(percent) => write!(f, "{percent}%"),
            PoolLimit::Bytes(bytes) => write!(f, "{bytes}B"),
        }
    }
}

impl std::str::FromStr for PoolLimit {
    type Err = BadPoolLimit;

    /// Parses a share (`20%`, `20`), a size (`64M`, `64MiB`, `1G`, `65536B`) or `auto`.
    fn from_str(text: &str) -> Result<PoolLimit, BadPoolLimit> {
        let bad = || BadPoolLimit(text.to_string());
        let given = text.trim();
        if given == "auto" {
            return Ok(PoolLimit::Auto);
        }
        let digits = given.trim_end_matches(|c: char| !c.is_ascii_digit());
        let unit = given[digits.len()..].trim();
        if unit.is_empty() || unit == "%" {
            let percent = digits.parse().ok().filter(|it| *it <= MAX_POOL_PERCENT);
            return percent.map(PoolLimit::Percent).ok_or_else(bad);
        }
        size_of_text(given).map(PoolLimit::Bytes).ok_or_else(bad)
    }
}

/// Parses a size with its unit: `64M`, `64 MiB`, `1g`, `65536B`.
pub fn size_of_text(text: &str) -> Option<u64> {
    const UNITS: [(&str, u64); 3] = [("K", 1 << 10), ("M", 1 << 20), ("G", 1 << 30)];
    let given = text.trim();
    let digits = given.trim_end_matches(|c: char| !c.is_ascii_digit());
    let (number, unit) = (digits.parse::<u64>().ok()?, given[digits.len()..].trim());
    if unit == "B" {
        return Some(number);
    }
    let unit = unit.to_ascii_uppercase();
    let unit = unit.strip_suffix("IB").unwrap_or(&unit);
    let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit)?;
    number.checked_mul(*factor)
}

/// Formats a size as [`size_of_text`] parses it.
pub(crate) fn text_of_size(bytes: u64) -> String {
    match bytes {
        whole if whole > 0 && whole.is_multiple_of(1 << 20) => format!("{}M", whole >> 20),
        _ => format!("{bytes}B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pool_limit_parses_share_and_size() {
        let good = [
            ("40%", PoolLimit::Percent(40)),
            (" 0 % ", PoolLimit::Percent(0)),
            ("80", PoolLimit::Percent(80)),
            ("64M", PoolLimit::Bytes(64 << 20)),
            ("64 MiB", PoolLimit::Bytes(64 << 20)),
            ("1g", PoolLimit::Bytes(1 << 30)),
            ("65536B", PoolLimit::Bytes(65536)),
        ];
        for (text, limit) in good {
            assert_eq!(text.parse(), Ok(limit), "{text}");
            assert_eq!(limit.to_string().parse(), Ok(limit));
        }
        for text in
            ["", "81%", "-1", "4.5%", "M", "64X", "99999999999999999999", "18446744073709551615G"]
        {
            assert_eq!(text.parse::<PoolLimit>(), Err(BadPoolLimit(text.into())));
        }
        let most = PoolLimit::Bytes(1 << 40).bytes_of(100 << 20);
        assert_eq!(most, PoolLimit::LARGEST.bytes_of(100 << 20));
        assert_eq!(PoolLimit::Bytes(5 << 20).bytes_of(100 << 20), 5 << 20);
    }

    #[test]
    fn size_display_round_trips() {
        for (bytes, shown) in
            [(64 << 20, "64M"), (1 << 30, "1024M"), (6_684_672, "6684672B"), (0, "0B")]
        {
            assert_eq!(text_of_size(bytes), shown);
            assert_eq!(size_of_text(shown), Some(bytes));
        }
        for text in ["", "64", "-1M", "1.5G", "64%", "auto", "18446744073709551615G"] {
            assert_eq!(size_of_text(text), None, "{text}");
        }
    }
}
