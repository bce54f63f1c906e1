//! Parsing of sizes.

use crate::error::{Error, Result};
use softswap_engine::api::settings::size_of_text;

pub(crate) fn bytes_of(text: &str) -> Result<u64> {
    let bytes = text.trim().parse().ok().or_else(|| size_of_text(text));
    bytes.ok_or_else(|| Error::Size { text: text.into() })
}
