//! Sizes, shares and times.

use bytesize::ByteSize;
use std::time::Duration;

/// No x86-64 machine can address more.
const MAX_BYTES: u64 = 1 << 56;

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Amount {
    Bytes(u64),
    /// Share of the available memory, above 0 and at most 100.
    Percent(f64),
}

/// Parses `512M`, `2GiB`, `1.5G`, `500MB`, `1048576`. As in coreutils `M` counts by 1024, `MB` by
/// 1000.
pub fn parse_size(text: &str) -> Result<u64, String> {
    const HOW: &str = "give a number with a unit, such as 512M or 2GiB";
    let text = text.trim();
    if text.strip_prefix('-').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit())) {
        return Err(format!("a size cannot be negative; {HOW}"));
    }
    let digits = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let number = &text[..text.len() - digits.len()];
    let unit = digits.trim();
    let full = match unit {
        "k" | "K" | "m" | "M" | "g" | "G" | "t" | "T" | "p" | "P" => {
            format!("{number}{}iB", unit.to_ascii_uppercase())
        }
        _ => text.to_string(),
    };
    let size: ByteSize = full.parse().map_err(|_| format!("not a size; {HOW}"))?;
    match size.as_u64() {
        bytes if bytes > MAX_BYTES => {
            Err("more than any machine can address; give at most 64P".into())
        }
        bytes => Ok(bytes),
    }
}

/// Parses a size, or a share such as `50%`.
pub fn parse_amount(text: &str) -> Result<Amount, String> {
    match text.trim().strip_suffix('%') {
        None => parse_size(text).map(Amount::Bytes).map_err(|why| {
            why.replace("or 2GiB", "or 2GiB, or a share of the available memory, such as 50%")
        }),
        Some(number) => match number.trim().parse::<f64>() {
            Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok(Amount::Percent(percent)),
            _ => Err("a share of the available memory must be above 0%, and at most 100%; give \
                      one such as 50%, or a size such as 512M"
                .into()),
        },
    }
}

/// `256.0 MiB`
pub fn bytes(count: u64) -> String {
    ByteSize(count).display().iec().to_string()
}

/// `850 ns`, `4.2 us`, `1.3 ms`, `2.51 s`
pub fn nanoseconds(ns: u64) -> String {
    let value = ns as f64;
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} us", value / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", value / 1e6),
        _ => duration(Duration::from_nanos(ns)),
    }
}

/// `2.51 s`, `3 min 20 s`, `2 h 05 min`
pub fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..60 => format!("{:.2} s", time.as_secs_f64()),
        60..3_600 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        _ => format!("{} h {:02} min", seconds / 3_600, seconds / 60 % 60),
    }
}

/// `1,234,567`
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Control characters could affect a terminal.
#[must_use]
pub fn visible(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unit_letters_are_binary_and_mb_decimal() {
        for (text, expected) in [
            ("512M", 512 << 20),
            ("512m", 512 << 20),
            ("512MiB", 512 << 20),
            ("512 MiB", 512 << 20),
            ("2GiB", 2 << 30),
            ("2G", 2 << 30),
            ("1.5G", 3 << 29),
            ("1T", 1 << 40),
            ("4K", 4096),
            ("500MB", 500_000_000),
            ("1048576", 1 << 20),
            ("0", 0),
        ] {
            assert_eq!(parse_size(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn invalid_sizes_are_rejected() {
        for text in ["", "banana", "-1", "-5G", "M", "12X", "1..5G", "1e9", "999999999999T", "50%"]
        {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn shares_are_bounded() {
        assert_eq!(parse_amount("50%"), Ok(Amount::Percent(50.0)));
        assert_eq!(parse_amount("12.5 %"), Ok(Amount::Percent(12.5)));
        assert_eq!(parse_amount("1G"), Ok(Amount::Bytes(1 << 30)));
        for text in ["0%", "-3%", "101%", "%", "x%", "NaN%"] {
            assert!(parse_amount(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_human_readable() {
        assert_eq!(bytes(256 << 20), "256.0 MiB");
        assert_eq!(nanoseconds(850), "850 ns");
        assert_eq!(nanoseconds(4_200), "4.2 us");
        assert_eq!(duration(Duration::from_secs(200)), "3 min 20 s");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(count(12), "12");
    }
}
