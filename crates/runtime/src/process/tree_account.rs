//! Counters that this process publishes in the tree's ledger for reports.
//!
//! The budget thread publishes them at least twice a second. A forked child has no such thread; it
//! publishes them when it finds no free memory, and at exit.

use softswap_engine::api::engine::Engine;
use softswap_engine::base::stats::{Counter, TIERS, Tier};
use softswap_shared::ledger::{Counts, Member, Sizes};

// [`Counts::returns`] leaves the first tier out.
const _: () = assert!(Tier::Zero as usize == 0);

/// Publishes all figures of a process with an engine.
pub(super) fn publish(engine: &Engine, member: &Member) {
    engine.note_peaks();
    publish_counts(engine, member);
    let get = |counter| engine.stats().get(counter);
    member.publish_sizes(&Sizes {
        resident_bytes: get(Counter::ResidentBytes),
        pool_bytes: get(Counter::PoolUsedBytes),
        disk_bytes: get(Counter::DiskBytes),
        tables_bytes: get(Counter::MetadataPeakBytes),
        largest_block_bytes: get(Counter::LargestBlockBytes),
    });
}

/// Publishes the events so far.
pub(super) fn publish_counts(engine: &Engine, member: &Member) {
    let stats = engine.stats();
    member.publish_counts(&Counts {
        faults: TIERS.map(|tier| stats.faults(tier)),
        stalled_ns: stats.get(Counter::StalledNs),
        bytes_read: stats.get(Counter::BytesRead),
        bytes_written: stats.get(Counter::BytesWritten),
    });
}

/// Publishes the resident memory of a process that sleeps, or shares inherited memory.
pub(super) fn publish_resident(member: &Member, resident_bytes: u64) {
    member.publish_sizes(&Sizes { resident_bytes, ..Sizes::default() });
}
