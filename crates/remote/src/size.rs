//! Sizes, as everywhere in softswap: a single letter is a unit of a power of 1024.

use bytesize::ByteSize;

/// Larger sizes are taken for typing errors.
const MAX_BYTES: u64 = 1 << 56;

/// Parses `512M`, `2GiB`, `1.5G`, `500MB`, `1048576`.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let full = match text.as_bytes().last() {
        Some(b'k' | b'K' | b'm' | b'M' | b'g' | b'G' | b't' | b'T') => format!("{text}iB"),
        _ => text.to_string(),
    };
    match full.parse::<ByteSize>() {
        Ok(size) if (1..=MAX_BYTES).contains(&size.as_u64()) => Ok(size.as_u64()),
        Ok(size) if size.as_u64() > MAX_BYTES => Err(format!("at most {}", bytes(MAX_BYTES))),
        _ => Err("not a size; give a number with a unit, such as 512M or 2GiB".into()),
    }
}

/// Formats a size: `256.0 MiB`.
pub(crate) fn bytes(count: u64) -> String {
    ByteSize(count).display().iec().to_string()
}
