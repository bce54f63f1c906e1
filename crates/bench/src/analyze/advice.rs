//! Recommends `--codec` and `--pool` for the analyzed pages.

use crate::pages::packing::Packing;
use serde::Serialize;

/// Share of compressible pages below which compression mostly fails.
const MIN_PACKED_SHARE: f64 = 0.1;
/// Compression ratio below which the pool's slabs and slack outweigh the gain.
const MIN_RATIO: f64 = 1.5;
/// A slower codec must need less than this share of the fastest codec's DRAM.
const WORTH_THE_TIME: f64 = 0.85;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Advice {
    pub(super) codec: &'static str,
    pub(super) pool_percent: u8,
    pub(super) reason: String,
}

impl Advice {
    pub(super) fn of(found: &[(&'static str, Packing)]) -> Advice {
        let none = |reason: String| Advice { codec: "none", pool_percent: 0, reason };
        let Some((name, packing)) = best(found) else {
            return none("every page is same-filled: there is nothing to compress".into());
        };
        let share = packing.packed_share();
        let Some(ratio) = packing.ratio().filter(|_| share >= MIN_PACKED_SHARE) else {
            return none(format!(
                "only {:.0} % of the pages (same-filled ones excluded) compress: compression \
                 costs time and frees little memory",
                share * 100.0
            ));
        };
        if ratio < MIN_RATIO {
            return none(format!(
                "pages that compress become {ratio:.1} times smaller: too little for a compressed \
                 pool to be useful"
            ));
        }
        let pool_percent = pool_percent(share, ratio);
        let held = f64::from(pool_percent) / 100.0 * (ratio - 1.0) + 1.0;
        let reason = format!(
            "{:.0} % of the pages (same-filled ones excluded) compress, {ratio:.1} to 1. With a \
             pool of {pool_percent} % the budget holds {held:.1} times its size. The other {:.0} \
             % are written to the disk",
            share * 100.0,
            (1.0 - share) * 100.0
        );
        Advice { codec: name, pool_percent, reason }
    }
}

fn best<'p>(found: &'p [(&'static str, Packing)]) -> Option<(&'static str, &'p Packing)> {
    let speed = |packing: &Packing| packing.pack_mbps().unwrap_or(0.0);
    let tried = || found.iter().filter(|(_, packing)| packing.tried > 0);
    let (name, fastest) = tried().max_by(|a, b| speed(&a.1).total_cmp(&speed(&b.1)))?;
    let (small_name, smallest) = tried().min_by_key(|(_, packing)| packing.kept_bytes())?;
    let is_worthwhile =
        (smallest.kept_bytes() as f64) < fastest.kept_bytes() as f64 * WORTH_THE_TIME;
    Some(if is_worthwhile { (small_name, smallest) } else { (name, fastest) })
}

/// Returns percent of the budget: by the ratio, at most what all compressible pages need.
fn pool_percent(share: f64, ratio: f64) -> u8 {
    let by_ratio = match ratio {
        4.0.. => 60,
        2.5.. => 50,
        2.0.. => 40,
        _ => 30,
    };
    // The pool's share of DRAM if all pages were in DRAM and compressible ones compressed.
    let packed = share / ratio;
    let all = packed + (1.0 - share);
    let by_share = (packed / all * 20.0).ceil() as u8 * 5;
    by_ratio.min(by_share)
}
