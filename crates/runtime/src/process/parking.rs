//! This process's part in parking its tree: evicts all of its memory, and swaps in afterwards what
//! was resident before. Without a budget thread, as in a forked child, only threads that wait in a
//! fault evict.

use super::tree::{UNAVAILABLE, now_ms};
use super::tree_account;
use softswap_engine::api::engine::Engine;
use softswap_engine::api::engine::turns::{BringBack, Step};
use softswap_shared::ledger::{Eviction, Member};
use softswap_sys::futex;
use softswap_sys::raw::now_ns;

/// Longest eviction in a round, in ns.
const ROUND_NS: u64 = 20_000_000;
/// Pause once nothing is left to evict, in ns: calls in progress may still fault pages in.
const PAUSE_NS: u64 = 100_000_000;
/// Interval of the rounds that swap pages in, in ns.
const INTERVAL_NS: u64 = 15_000_000;
/// Number of failed tries after which nothing is left to evict: another thread may hold a page.
const MAX_FAILED_TRIES: u32 = 32;

#[derive(Debug, Default)]
pub(super) enum Parking {
    #[default]
    None,
    Parked {
        /// Number of pages that were resident before.
        resident_pages: usize,
    },
    Returning(BringBack),
}

impl Parking {
    /// Evicts some memory if the tree is parked. Returns the time until the next round, in ns, or
    /// `None` if the tree is not parked.
    pub(super) fn evict(&mut self, engine: &Engine, member: &Member) -> Option<u64> {
        if !member.ledger().is_parked(now_ms()) {
            return None;
        }
        if !matches!(self, Parking::Parked { .. }) {
            member.publish_eviction(Eviction::Running);
            engine.end_bring_back();
            *self = Parking::Parked { resident_pages: engine.resident_pages() };
        }
        let is_done = evict_for(ROUND_NS, engine, member);
        member.publish(UNAVAILABLE, engine.used_bytes() as u64);
        tree_account::publish(engine, member);
        Some(if is_done { PAUSE_NS } else { 0 })
    }

    /// Swaps in some of the pages that were resident before the tree was parked. Returns the time
    /// until the next round, in ns, or `None` if that is done.
    pub(super) fn bring_back(&mut self, engine: &Engine, member: &Member) -> Option<u64> {
        if let Parking::Parked { resident_pages } = *self {
            member.publish_eviction(Eviction::None);
            *self = Parking::Returning(BringBack::new(resident_pages as u64));
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

/// Evicts memory for up to `ns`, and publishes the progress. Returns true if nothing is left to
/// evict. Called by the budget thread, and without one (in a forked child) in faults.
pub(super) fn evict_for(ns: u64, engine: &Engine, member: &Member) -> bool {
    let (until_ns, mut failed) = (now_ns() + ns, 0);
    while failed < MAX_FAILED_TRIES && now_ns() < until_ns {
        failed = if engine.evict_more() { 0 } else { failed + 1 };
        if failed > 0 {
            futex::sleep_a_moment();
        }
    }
    let is_done = failed == MAX_FAILED_TRIES;
    member.publish_eviction(if is_done { Eviction::Done } else { Eviction::Running });
    is_done
}
