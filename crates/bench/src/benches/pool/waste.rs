//! How much of its memory a store cannot use, fresh and after a long life.

use super::stores::Store;
use crate::measure::noise::{below, noise, shuffled};
use serde::Serialize;
use softswap_engine::memory::context::BATCH_PAGES;
use softswap_sys::memory::Page;

/// Replacements for each object, until nothing is where it was first put.
const CHURN: usize = 4;

/// Shares of memory in use that hold no packed bytes, in percent.
#[derive(Debug, Clone, Serialize)]
pub(super) struct WasteRow {
    pub(super) variant: &'static str,
    pub(super) content: String,
    pub(super) filled_percent: f64,
    /// With a random half invalidated. Not waste as such: it is filled again.
    pub(super) halved_percent: f64,
    /// With other pages in the place of that half.
    pub(super) refilled_percent: f64,
    /// After [`CHURN`] times as many replacements as there are objects, of a
    /// random one each.
    pub(super) churned_percent: f64,
}

/// Fills `store` with `count` random ones of `pages`, and lets them go.
pub(super) fn measure(
    store: &dyn Store,
    variant: &'static str,
    content: &str,
    pages: &[&[Page]],
    count: usize,
) -> Result<WasteRow, String> {
    let mut numbers = noise(count as u64);
    let mut below_it = |bound: usize| below(numbers.next().unwrap_or(0), bound as u64) as usize;
    let mut pick = || {
        let group = pages[below_it(pages.len())];
        (&group[below_it(group.len())], below_it(count))
    };
    let mut hand = store.hand(0, count);
    for object in 0..count {
        hand.store(object, pick().0)?;
    }
    let filled_percent = store.waste_percent()?;
    let order = shuffled(count, 1);
    let half = &order[..count / 2];
    half.iter().try_for_each(|object| hand.invalidate(*object))?;
    let halved_percent = store.waste_percent()?;
    for batch in half.chunks(BATCH_PAGES) {
        batch.iter().try_for_each(|object| hand.store(*object, pick().0))?;
        hand.upkeep();
    }
    let refilled_percent = store.waste_percent()?;
    for step in 0..count * CHURN {
        let (page, object) = pick();
        hand.invalidate(object)?;
        hand.store(object, page)?;
        if step % BATCH_PAGES == 0 {
            hand.upkeep();
        }
    }
    let churned_percent = store.waste_percent()?;
    (0..count).try_for_each(|object| hand.invalidate(object))?;
    Ok(WasteRow {
        variant,
        content: content.into(),
        filled_percent,
        halved_percent,
        refilled_percent,
        churned_percent,
    })
}

impl WasteRow {
    /// The states in which as much is stored as at first.
    pub(super) fn full(&self) -> [(&'static str, f64); 3] {
        [
            ("filled", self.filled_percent),
            ("refilled", self.refilled_percent),
            ("churned", self.churned_percent),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::super::page_kinds::of_every_size;
    use super::super::stores::Softswap;
    use super::*;

    #[test]
    fn a_half_empty_pool_wastes_more_than_a_full_one_and_is_empty_in_the_end() {
        let pages = of_every_size(200).unwrap();
        let store = Softswap::new(4000).unwrap();
        let row = measure(&store, "softswap", "sizes", &[pages], 4000).unwrap();
        for (state, percent) in row.full() {
            assert!((0.0..100.0).contains(&percent), "{state}: {row:?}");
        }
        assert!(row.halved_percent > row.filled_percent, "{row:?}");
        assert_eq!(store.waste_percent(), Ok(0.0));
    }
}
