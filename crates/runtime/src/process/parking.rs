//! This process's part in parking its tree: evicts its memory, and swaps in afterwards what was
//! resident. A process without a budget thread, such as a forked child, does neither.

use super::tree::{UNAVAILABLE, now_ms};
use super::tree_account;
use softswap_engine::api::engine::Engine;
use softswap_engine::api::engine::turns::{BringBack, Step};
use softswap_shared::ledger::{Eviction, Member};
use softswap_sys::futex;
use softswap_sys::raw::now_ns;

const ROUND_NS: u64 = 20_000_000;
/// Pause once nothing is left to evict, in ns: calls in progress may still fault pages in.
const PAUSE_NS: u64 = 100_000_000;
const INTERVAL_NS: u64 = 15_000_000;
/// Number of failed tries after which nothing is left to evict: another thread may hold a page.
const MAX_FAILED_TRIES: u32 = 32;

#[derive(Debug, Default)]
pub(super) enum Parking {
    #[default]
    None,
    Parked {
        shares_pages: bool,
        resident_pages: usize,
    },
    Returning(BringBack),
}

impl Parking {
    /// Returns the time until the next round, in ns, or `None` if the tree is not parked.
    pub(super) fn evict(&mut self, engine: &Engine, member: &Member) -> Option<u64> {
        if !member.ledger().is_parked(now_ms()) {
            return None;
        }
        if !matches!(self, Parking::Parked { .. }) {
            member.publish_eviction(Eviction::Running);
            engine.end_bring_back();
            let shares_pages = shares_pages();
            *self = Parking::Parked { shares_pages, resident_pages: engine.resident_pages() };
        }
        // The other processes keep shared pages in DRAM. Swapping in would duplicate each.
        let shares_pages = matches!(self, Parking::Parked { shares_pages: true, .. });
        let is_done = shares_pages || evict_round(engine);
        member.publish_eviction(if is_done { Eviction::Done } else { Eviction::Running });
        member.publish(UNAVAILABLE, engine.used_bytes() as u64);
        tree_account::publish(engine, member);
        Some(if is_done { PAUSE_NS } else { 0 })
    }

    /// Returns the time until the next round, in ns, or `None` once the pages are swapped in.
    pub(super) fn bring_back(&mut self, engine: &Engine, member: &Member) -> Option<u64> {
        if let Parking::Parked { shares_pages, resident_pages } = *self {
            member.publish_eviction(Eviction::None);
            let pages = if shares_pages { 0 } else { resident_pages };
            *self = Parking::Returning(BringBack::new(pages as u64));
        }
        let Parking::Returning(pages) = self else { return None };
        if engine.bring_back(pages) == Step::More {
            return Some(INTERVAL_NS);
        }
        engine.end_bring_back();
        *self = Parking::None;
        None
    }
}

/// Evicts memory for up to [`ROUND_NS`]. Returns true if nothing is left to evict.
fn evict_round(engine: &Engine) -> bool {
    let (until_ns, mut failed) = (now_ns() + ROUND_NS, 0);
    while failed < MAX_FAILED_TRIES && now_ns() < until_ns {
        failed = if engine.evict_more() { 0 } else { failed + 1 };
        if failed > 0 {
            futex::sleep_a_moment();
        }
    }
    failed == MAX_FAILED_TRIES
}

/// Returns true if other processes own over an eighth of the anonymous memory (1/N per page).
fn shares_pages() -> bool {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let kib = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    };
    let [anonymous, own] = ["Anonymous:", "Pss_Anon:"].map(kib);
    anonymous.zip(own).is_some_and(|(anonymous, own)| own < anonymous - anonymous / 8)
}
