//! Removal of extents without pages. The upkeep removes those for which a caller would wait.

use crate::placement::{PAGES, extent_of};
use crate::router::Request;
use crate::shared::Shared;
use redis::cmd;
use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;
use tokio::time::Instant;

const REMOVED_AT_ONCE: usize = 64;
/// Timeout of a batch; readers of its extents wait at most this long.
const REMOVED_WITHIN: Duration = Duration::from_millis(250);

impl Shared {
    pub(crate) async fn remove_pages(&self, pages: Range<u64>) {
        if !pages.is_empty() {
            let emptied = self.note_removed(&pages);
            self.remove_emptied(&emptied).await;
        }
    }

    fn note_removed(&self, removed: &Range<u64>) -> Vec<u64> {
        let extents = extent_of(removed.start)..=extent_of(removed.end - 1);
        let mut emptied = Vec::new();
        for (extent, pages) in self.live().range_mut(extents) {
            let first = extent * PAGES;
            let places = (0..PAGES).filter(|place| removed.contains(&(first + place)));
            *pages &= !places.fold(0, |mask, place| mask | 1 << place);
            if *pages == 0 {
                emptied.push(*extent);
            }
        }
        emptied
    }

    /// Skips extents with pages, and those whose servers refuse writes. Stops at the first failure.
    pub(crate) async fn remove_emptied(&self, extents: &[u64]) {
        for extents in extents.chunks(REMOVED_AT_ONCE) {
            let (free, _held) = self.lock_unused(extents);
            let is_empty = |extent: &u64| self.live().get(extent) == Some(&0);
            let answer = |extent: &u64| {
                self.group(*extent).places().all(|slot| self.router.takes_writes(slot))
            };
            let mut removed: BTreeSet<u64> =
                free.into_iter().filter(is_empty).filter(answer).collect();
            let copies = removed.iter().flat_map(|extent| {
                let group = self.group(*extent);
                // An obsolete copy on an unavailable server remains until the run ends.
                let takes = |slot: &u16| self.router.takes_writes(*slot);
                let obsolete = group.obsolete.iter().copied().filter(takes);
                let slots: Vec<u16> = group.places().chain(obsolete).collect();
                slots.into_iter().map(|slot| (*extent, slot))
            });
            let remaining = self.unlink_copies(copies.collect(), REMOVED_WITHIN).await;
            removed.retain(|extent| !remaining.contains(extent));
            let mut live = self.live();
            removed.iter().for_each(|extent| _ = live.remove(extent));
            drop(live);
            if !remaining.is_empty() {
                return;
            }
        }
    }

    /// Returns the extents of which a server has not removed its copy.
    pub(crate) async fn unlink_copies(
        &self,
        copies: Vec<(u64, u16)>,
        within: Duration,
    ) -> BTreeSet<u64> {
        let request = |(extent, slot): &(u64, u16)| {
            let unlink = cmd("UNLINK").arg(self.keys.extent(*slot, *extent)).take();
            Request { slot: *slot, commands: vec![unlink], answer_bytes: 0 }
        };
        let requests = copies.iter().map(request).collect();
        let answers = self.router.once(requests, Instant::now() + within).await;
        let failed = copies.iter().zip(answers).filter(|(_, answer)| answer.is_err());
        failed.map(|((extent, _), _)| *extent).collect()
    }
}
