//! Counters that this process publishes in the tree's ledger for reports.
//!
//! A forked child has no budget thread, so it publishes them at exit and if it lacks memory.

use softswap_engine::api::engine::Engine;
use softswap_engine::base::stats::{Counter, TIERS, Tier};
use softswap_shared::ledger::{Counts, Member, Sizes};

// [`Counts::returns`] excludes the first tier.
const _: () = assert!(Tier::Zero as usize == 0);

pub(super) fn publish(engine: &Engine, member: &Member) {
    engine.note_peaks();
    publish_counts(engine, member);
    publish_sizes(engine, member);
}

pub(super) fn publish_sizes(engine: &Engine, member: &Member) {
    member.publish_sizes(&sizes(engine));
}

pub(crate) fn sizes(engine: &Engine) -> Sizes {
    let get = |counter| engine.stats().get(counter);
    Sizes {
        resident_bytes: get(Counter::ResidentBytes),
        pool_bytes: get(Counter::PoolUsedBytes),
        disk_bytes: get(Counter::DiskBytes),
        tables_bytes: get(Counter::MetadataPeakBytes),
        largest_block_bytes: get(Counter::LargestBlockBytes),
    }
}

pub(super) fn publish_counts(engine: &Engine, member: &Member) {
    let stats = engine.stats();
    member.publish_counts(&Counts {
        faults: TIERS.map(|tier| stats.faults(tier)),
        stalled_ns: stats.get(Counter::StalledNs),
        bytes_read: stats.get(Counter::BytesRead),
        bytes_written: stats.get(Counter::BytesWritten),
    });
}

pub(super) fn publish_resident(member: &Member, resident_bytes: u64) {
    member.publish_sizes(&Sizes { resident_bytes, ..Sizes::default() });
}
