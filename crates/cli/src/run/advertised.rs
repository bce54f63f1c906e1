//! `--tell`: the memory that the program sees.

use super::areas::Common;
use super::sourced::Sourced;
use super::tables::MAX_BUDGETS_INCOMPRESSIBLE;
use crate::refusal::Refusal;
use softswap_engine::api::settings::{Config, MIN_MEMORY_BYTES};
use softswap_sys::PAGE_SIZE;
use softswap_view::units::{self, parse_size};
use std::path::Path;

pub(super) fn usable_bytes(config: &Config, common: &Common) -> u64 {
    let areas = config.areas.iter().enumerate().map(|(order, area)| {
        let free_bytes = free_bytes(&area.path).saturating_sub(config.reserve_bytes);
        let named = common.named.iter().find(|named| named.order == order);
        match (area.limit_bytes, named) {
            (_, Some(named)) => named.area.header.usable_pages() * PAGE_SIZE as u64,
            (Some(bytes), _) if !area.path.is_dir() => bytes,
            (limit, _) => limit.unwrap_or(u64::MAX).min(free_bytes),
        }
    });
    let all = areas.fold(config.memory_bytes, u64::saturating_add);
    // The engine's tables allow no more, even if pages do not compress.
    all.min(config.memory_bytes.saturating_mul(MAX_BUDGETS_INCOMPRESSIBLE))
}

fn free_bytes(dir: &Path) -> u64 {
    rustix::fs::statvfs(dir).map_or(0, |space| space.f_bavail.saturating_mul(space.f_frsize))
}

/// Returns 0 for the machine's memory.
pub(super) fn resolve(
    given: &Sourced,
    budget_bytes: u64,
    usable_bytes: u64,
) -> Result<u64, Refusal> {
    match given.text.as_str() {
        "off" => Ok(0),
        "budget" => Ok(budget_bytes),
        "auto" => Ok(usable_bytes),
        size => match parse_size(size) {
            Ok(bytes) if bytes >= MIN_MEMORY_BYTES => Ok(bytes),
            Ok(_) => Err(given.refuse(format!(
                "too little: programs expect at least {}",
                units::bytes(MIN_MEMORY_BYTES)
            ))),
            Err(why) => Err(given.refuse(format!("{why}; or auto, budget or off"))),
        },
    }
}
