//! Eviction and swap-in by aligned clusters, for a process near its limit on mappings: each run of
//! pages with the same protection is a mapping.

use crate::base::page::{PageNo, Place};
use crate::core::Memory;
use crate::policy::clock::Victim;
use softswap_sys::window::MappingPressure;
use std::ops::Range;

pub(crate) fn cluster_pages(memory: &Memory) -> u64 {
    match memory.window.mapping_pressure() {
        MappingPressure::None => 1,
        MappingPressure::Half => 16,
        MappingPressure::High | MappingPressure::Full => 32,
    }
}

pub(crate) fn cluster_of(page: PageNo, cluster: u64) -> Range<PageNo> {
    let first = page / cluster * cluster;
    first..first + cluster
}

/// Replaces victims by the whole clusters of the first victims. Returns the number of pages.
pub(crate) fn claim_clusters(
    memory: &Memory,
    cluster: u64,
    victims: &mut [Victim<'static>],
) -> usize {
    let mut seeds = [const { None }; crate::memory::context::BATCH_PAGES];
    for (seed, victim) in seeds.iter_mut().zip(victims.iter_mut()) {
        *seed = victim.take();
    }
    let (mut found, mut behind) = (0, None);
    for at in 0..seeds.len() {
        let Some((page, _)) = &seeds[at] else { continue };
        let whole = cluster_of(*page, cluster);
        if behind == Some(whole.end) {
            continue;
        }
        behind = Some(whole.end);
        for page in whole {
            if found == victims.len() {
                return found;
            }
            let is_this_page =
                |victim: &&mut Victim<'_>| victim.as_ref().is_some_and(|it| it.0 == page);
            let seed = seeds[at..].iter_mut().find(is_this_page).and_then(Option::take);
            victims[found] = seed.or_else(|| claim(memory, page));
            found += usize::from(victims[found].is_some());
        }
    }
    found
}

fn claim(memory: &Memory, page: PageNo) -> Victim<'static> {
    let seen = memory.pages.load(page);
    let is_evictable = matches!(seen.place(), Place::Resident { .. }) && seen.pins() == 0;
    let claim =
        if is_evictable && !seen.is_busy() { memory.pages.try_claim(page, seen) } else { None };
    claim.map(|claim| (page, claim))
}
