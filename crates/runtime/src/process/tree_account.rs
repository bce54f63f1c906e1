//! What this process says at its tree's ledger for reports: what it has done, and what it has.
//!
//! Said by the thread that looks after its part of the budget, twice a second at least. A forked
//! child, which has none, says what it has done where it finds no memory free, and when it ends.

use softswap_engine::base::stats::{Counter, TIERS};
use softswap_engine::door::engine::Engine;
use softswap_engine::ledger::{Counts, Seat, Sizes};

/// Says both, of a process that has all that its engine counts.
pub(super) fn tell(engine: &Engine, seat: &Seat) {
    engine.note_peaks();
    tell_counts(engine, seat);
    let get = |counter| engine.stats().get(counter);
    seat.publish_sizes(&Sizes {
        resident_bytes: get(Counter::ResidentBytes),
        pool_bytes: get(Counter::PoolUsedBytes),
        disk_bytes: get(Counter::DiskBytes),
    });
}

/// Says what it has done.
pub(super) fn tell_counts(engine: &Engine, seat: &Seat) {
    let stats = engine.stats();
    seat.publish_counts(&Counts {
        faults: TIERS.map(|tier| stats.faults(tier)),
        stalled_ns: stats.get(Counter::StalledNs),
        bytes_read: stats.get(Counter::BytesRead),
        bytes_written: stats.get(Counter::BytesWritten),
    });
}

/// Says what one has of which only that is known: that sleeps, or shares what it has inherited.
pub(super) fn tell_resident(seat: &Seat, resident_bytes: u64) {
    seat.publish_sizes(&Sizes { resident_bytes, ..Sizes::default() });
}
